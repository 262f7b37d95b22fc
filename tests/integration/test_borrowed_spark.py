"""A Spark that the user had before: worked in, never changed, never stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from acceptance.processes import until
from integration.conftest import MakePlace
from integration.orders import CREATE, FILL, ORDERS
from tidegate.core.errors import UsageError
from tidegate.spark.session import SparkSessions
from tidegate.spark.tags import interrupt, tagged


@pytest.fixture
def spark(warm_spark: SparkSessions) -> SparkSession:
    """The user's own session."""
    return warm_spark.get()


def test_a_project_that_is_closed_leaves_the_spark_of_the_user_running(
    make_place: MakePlace, spark: SparkSession
) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE, FILL)
    name = "spark.sql.shuffle.partitions"
    theirs = spark.conf.get(name)
    spark.conf.set(name, "7")
    try:
        with tg.open(place.folder) as project:
            assert project.run("orders").rows == 10
            ours = project.context.spark.get()
            assert ours.sparkContext is spark.sparkContext
            assert ours.conf.get(name) != "7"
        assert not project.context.spark.started
        assert spark.conf.get(name) == "7"
        assert spark.range(3).count() == 3
    finally:
        spark.conf.set(name, theirs or "4")


@pytest.mark.chaos
def test_where_the_user_stopped_spark_a_project_starts_its_own_and_publishes_from_it(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE, FILL)
    theirs = warm_spark.get()
    df = theirs.sql("SELECT 1 AS id")
    options: dict[str, Any] = {"target": "warehouse:marts.ids", "key": "id"}
    with tg.open(place.folder, **{"spark.master": "local[2]"}) as project:
        project.run("orders")
        project.publish(df, update_id="1", **options)
        theirs.stop()
        with pytest.raises(UsageError, match="a Spark session that was stopped"):
            project.publish(df, update_id="2", **options)
        place.source.execute("UPDATE orders SET total = 0, updated_at = now()")
        assert project.run("orders").rows == 10
        ours = project.context.spark.get()
        project.publish(ours.sql("SELECT 2 AS id"), update_id="2", **options)
    assert place.target.execute("SELECT id FROM marts.ids ORDER BY 1") == [(1,), (2,)]
    with pytest.raises(Exception, match="NoneType"):
        ours.range(1).count()


def test_tagged_work_ends_from_another_thread_and_no_other_work_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    ended: dict[str, str] = {}
    go_on = tmp_path / "go-on"

    def work(name: str) -> None:
        started = tmp_path / name

        def wait(batches: Iterable[Any]) -> Iterator[Any]:
            import time

            for batch in batches:
                started.touch()
                while not go_on.exists():
                    time.sleep(0.02)
                yield batch

        def run() -> None:
            spark.range(0, 1, 1, 1).mapInArrow(wait, "id bigint").collect()

        try:
            if name == "ours":
                with tagged(spark, "tidegate-test"):
                    run()
            else:
                run()
            ended[name] = "done"
        except Exception:
            ended[name] = "interrupted"

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ours", "theirs")]
    for thread in threads:
        thread.start()
    try:
        until(lambda: (tmp_path / "ours").exists() and (tmp_path / "theirs").exists(), "both")
        interrupt(spark, "tidegate-test")
        until(lambda: not threads[0].is_alive(), "ours to end", seconds=30)
        assert ended == {"ours": "interrupted"}
    finally:
        go_on.touch()
        for thread in threads:
            thread.join()
    assert ended == {"ours": "interrupted", "theirs": "done"}
