"""Sparks: borrowed, kept, forked from daemons, started quickly, and quiet on standard output."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import java_archive
import tidegate as tg
from acceptance.processes import until
from forked import Piped
from integration.conftest import Database, MakePlace
from integration.orders import CREATE, FILL, ORDERS
from tidegate.core.errors import UsageError
from tidegate.jobs import heartbeat
from tidegate.jobs.heartbeat import KeptSessions
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


@pytest.fixture
def sessions(make_place: MakePlace) -> KeptSessions:
    context = make_place().open().context
    context.control_id()
    return KeptSessions(context.plane)


def pid(sessions: KeptSessions) -> int:
    with sessions.borrow() as connection:
        return connection.info.backend_pid


def test_sessions_are_used_again_while_they_are_good(
    sessions: KeptSessions, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pid(sessions) == pid(sessions)
    with sessions.borrow() as connection:
        assert pid(sessions) != connection.info.backend_pid

    # not after a job that failed or left a transaction open
    with pytest.raises(ValueError, match="broken"), sessions.borrow() as connection:
        raise ValueError("broken")
    assert connection.closed
    with sessions.borrow() as left:
        left.execute("BEGIN")
    assert left.closed

    # nor when the server has ended it meanwhile
    monkeypatch.setattr(heartbeat, "_TRUSTED_SECONDS", 0.0)
    before = pid(sessions)
    assert pid(sessions) == before
    database.execute(f"SELECT pg_terminate_backend({before}, 10000)")
    assert pid(sessions) != before
    sessions.close()


def test_what_is_given_back_after_the_end_is_closed(sessions: KeptSessions) -> None:
    with sessions.borrow() as idle:
        pass
    with sessions.borrow() as first, sessions.borrow() as second:
        assert idle is first
    with sessions.borrow() as used:
        sessions.close()
        assert not used.closed
    assert used.closed
    assert {first.closed, second.closed} == {True}


# A sync that fails as nobody expected, which is logged.
SCRIPT = """
from dataclasses import replace
import tidegate as tg

{setup}
with tg.open(".") as project:
    broken = replace(project.sync("orders"), refused=RuntimeError("out of luck"))
    print(len(project.run_many([broken]).failed), "failed")
"""
BASIC = "import logging; logging.basicConfig(filename='app.log', format='%(name)s %(message)s')"
STRUCTLOG = """
import structlog
structlog.configure(processors=[structlog.processors.JSONRenderer()])
"""
COMMAND = "from tidegate.cli.output import configure; configure(); configure()"


def test_a_scripts_output_is_its_own_and_what_is_logged_goes_where_it_says(
    make_place: MakePlace,
) -> None:
    folder = make_place(ORDERS).folder

    def logged(setup: str) -> str:
        """What such a script says on its standard error."""
        (folder / "script.py").write_text(SCRIPT.format(setup=setup))
        code, out, err = Piped([str(folder / "script.py")], os.environ, folder).communicate()
        assert (code, out) == (0, "1 failed\n"), err
        return err

    for setup in ("", STRUCTLOG):
        err = logged(setup)
        assert "event='run_failed' sync='orders'" in err
        assert "RuntimeError: out of luck" in err
    # An application that sets up logging gets the events.
    assert logged(BASIC) == ""
    text = (folder / "app.log").read_text()
    assert text.startswith("tidegate event='run_failed' sync='orders'\n")
    assert "RuntimeError: out of luck" in text
    # A command logs one line with time and level.
    (line,) = logged(COMMAND).splitlines()
    assert line.startswith("timestamp='20")
    assert "Z' level='error' event='run_failed' sync='orders'" in line


def test_a_worker_starts_with_everything_imported_from_where_it_is_installed(
    warm_spark: SparkSessions,
) -> None:
    def look(_: int) -> tuple[str, str, bool]:
        import sys

        return (
            getattr(sys.modules["__main__"].__spec__, "name", ""),
            sys.modules["pyspark"].__file__ or "",
            {"pandas", "pyarrow", "tidegate.spark.binary_copy"} <= set(sys.modules),
        )

    (found,) = warm_spark.get().sparkContext.parallelize([0], 1).map(look).collect()
    assert found == ("tidegate.spark.daemon", str(Path(pyspark.__file__)), True)


# One that Spark needs to start.
SUBMIT = "org.apache.spark.deploy.SparkSubmit"


def java(options: str, *arguments: str) -> str:
    """All that a Java prints."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    done = subprocess.run(
        [program, *options.split(), *arguments],
        env={key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_spark_finds_its_classes_in_an_archive_that_fits_and_notices_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = java_archive.environment(java_archive.FOLDER)["JDK_JAVA_OPTIONS"]
    (tmp_path / "log4j2.properties").touch()
    path = f"{java_archive.class_path()}:{tmp_path}"
    loaded = java(options, "-Xlog:class+load", "-cp", path, SUBMIT, "--version").splitlines()
    assert [line for line in loaded if SUBMIT in line and "shared objects file (top)" in line]

    archive = options.rpartition("=")[2]
    damaged = tmp_path / "damaged.jsa"
    damaged.write_bytes(b"nothing" * 1000)
    expected = java(java_archive.QUICK, "-cp", str(tmp_path), "Missing")
    for unfit in (archive, damaged, tmp_path / "missing.jsa"):
        given = options.replace(archive, str(unfit))
        # No class path fits any of them here.
        assert java(given, "-cp", str(tmp_path), "Missing") == expected

    monkeypatch.setattr(java_archive, "_TRAINING", "raise SystemExit(1)")
    assert java_archive.environment(tmp_path) == {}
