"""Runs into a lake, and what the commands say of it before and after."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from integration.commands import DONE
from integration.conftest import MakePlace, Place
from integration.filled_lakes import (
    ORDERS,
    fill_table,
    lake_place,
    open_table,
    orders,
    rows_of,
    table_of,
)
from integration.here import tidegate
from integration.orders import CREATE, FILL
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Relation
from tidegate.jobs.job import JobStatus
from tidegate.load.planner import plan_project
from tidegate.spark.session import SparkSessions


def plan_of(place: Place) -> Any:
    project = place.open()
    found = plan_project(project.context, project.syncs.values())
    assert found.refusals == ()
    return found.plans[0]


def test_an_adopted_table_goes_on_evolves_and_starts_again_after_its_removal(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    fill_table(place, orders(range(1, 6)))
    assert tidegate(place.folder, "adopt", "orders", "--from-target-max").code == DONE
    planned = plan_of(place)
    assert (planned.rows, planned.watermark) == (6, "2026-01-01 00:04:00+00")

    report = place.open(warm_spark).run("orders")
    assert (report.rows, report.outcome.changed) == (6, 5)
    expected = [(n,) for n in range(1, 11)]
    assert rows_of(open_table(place), "id") == expected
    assert plan_of(place).next_batch is None
    (found,) = tidegate(place.folder, "status", "--json").document["syncs"]
    assert (found["state"], found["lag"]["rows"]) == ("done", 0)
    (marker,) = tidegate(place.folder, "marker", "list", "--json").document
    assert place.open().marker("lake:raw.orders", update_id=marker["update_id"]).exists()

    place.source.execute(
        "ALTER TABLE orders ADD note text",
        "INSERT INTO orders VALUES (11, 11, now() - interval '1 minute', 'new')",
    )
    assert plan_of(place).target_table.alter == (
        "ALTER TABLE `lake`.`raw`.`orders` ADD COLUMNS (`note` string)",
    )
    assert place.open(warm_spark).run("orders").rows == 1
    assert rows_of(open_table(place), "id", "note")[-2:] == [(10, None), (11, "new")]
    assert plan_of(place).target_table.alter == ()

    assert tidegate(place.folder, "remove", "orders", "--yes").code == DONE
    planned = plan_of(place)
    assert (planned.watermark, planned.rows, planned.target_table.rows_present) == (None, 11, True)
    report = place.open(warm_spark).run("orders")
    assert (report.rows, report.outcome.changed) == (11, 0)
    assert rows_of(open_table(place), "id") == [*expected, (11,)]


def test_the_tables_of_a_group_are_planned_loaded_by_a_worker_and_removed(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    group = {"name": "shop", "source": "shop:public.*", "target": "lake:raw.{table}"}
    late = {"name": "late", "source": "shop:other.late", "target": "lake:raw.late"}
    place = lake_place(make_place, group, {**ORDERS, **late, "lookback": "1 hour"})
    place.source.execute(
        *CREATE, FILL, "CREATE TABLE countries (code text PRIMARY KEY, name text)",
        "INSERT INTO countries VALUES ('at', 'Austria'), ('pt', 'Portugal')",
    )  # fmt: skip
    planned = tidegate(place.folder, "plan", "shop", "--json").document["plans"]
    plans = {one["sync"]: one for one in planned}
    assert plans["shop.countries"]["target"] == "lake:raw.countries"
    assert plans["shop.countries"]["target_table"]["create"] == ["`code` string", "`name` string"]
    assert plans["shop.orders"]["mode"] == "merge"
    done = tidegate(place.folder, "run", "shop", "--queue")
    assert done.code == DONE, done
    project = place.open(warm_spark)
    project.worker(burst=True, concurrency=1).run()
    jobs = tidegate(place.folder, "job", "list", "--json").document["jobs"]
    assert {(one["name"], one["status"]) for one in jobs} == {
        ("shop.orders", JobStatus.DONE),
        ("shop.countries", JobStatus.DONE),
    }
    shown = tidegate(place.folder, "job", "show", jobs[0]["job_id"])
    assert f"into: lake:raw.{jobs[0]['name'].partition('.')[2]}" in shown.out
    countries = open_table(place, Relation("raw", "countries"))
    assert rows_of(countries, "code") == [("at",), ("pt",)]
    assert len(rows_of(open_table(place), "id")) == 10
    listed = tidegate(place.folder, "watermark", "list", "--json").document
    targets = {one["sync"]: one["target"] for one in listed}
    assert targets["shop.orders"] == "lake:raw.orders"
    gone = tidegate(place.folder, "remove", "shop", "--yes", "--json").document["removed"]
    assert {one["sync"] for one in gone} == {"shop.orders", "shop.countries"}

    # What a lookback finds wins over a higher cursor.
    place.source.execute(
        "CREATE SCHEMA other", "CREATE TABLE other.late (LIKE orders INCLUDING ALL)",
        "INSERT INTO other.late TABLE orders",
    )  # fmt: skip
    project.run("late")
    place.source.execute(
        "UPDATE other.late SET total = 77, updated_at = '2026-01-01 00:08:30+00' WHERE id = 10"
    )
    project.run("late")
    assert rows_of(open_table(place, Relation("raw", "late")), "id", "total")[-1] == (10, 77)


def test_a_dataframe_is_published_into_a_lake_once(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = lake_place(make_place, {**ORDERS, "target": "lake:raw.others"})
    project = place.open(warm_spark)
    frame = warm_spark.get().sql("SELECT id, id * 2 AS total FROM range(5)")
    target = "lake:marts.totals"
    with pytest.raises(DeclarationError, match="which has no primary key, and merge needs a key"):
        project.publish(frame, target=target, update_id="t-1")
    report = project.publish(frame, target=target, key="id", update_id="t-1")
    assert (report.status, report.rows) == ("done", 5)
    again = project.publish(frame, target=target, key="id", update_id="t-1")
    assert (again.status, again.already) == ("already", True)
    relation = Relation("marts", "totals")
    assert rows_of(open_table(place, relation), "id", "total")[-1] == (4, 8)
    assert project.marker(target, update_id="t-1").exists()
    done = tidegate(place.folder, "marker", "forget", target, "t-1")
    assert "itself says that t-1 is in" in done.err
    # Its snapshot says so still: it is recorded again, not loaded again.
    again = project.publish(frame, target=target, key="id", update_id="t-1")
    assert again.already
    assert table_of(place, relation).rows() == 5
    assert project.marker(target, update_id="t-1").exists()


PLAIN_SPARK = """
import sys
import tidegate as tg
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
tg.publish(spark.range(3), target="lake:marts.x", key="id", update_id="x", project=sys.argv[1])
"""


@pytest.mark.chaos
def test_a_spark_of_the_users_that_has_no_iceberg_is_told_what_it_needs(
    make_place: MakePlace,
) -> None:
    place = lake_place(make_place)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SPARK, str(place.folder)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "this Spark was started without Iceberg" in done.stderr
    assert "spark.jars.packages=org.apache.iceberg:" in done.stderr
    assert not (place.folder / ".tidegate" / "lake").exists()
