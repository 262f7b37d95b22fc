"""Tasks with a target: what they return is published once for each set of parameters."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from integration.conftest import MakeProject, Place
from integration.orders import ORDERS
from integration.without_spark import open_without_spark
from tidegate.errors import DeclarationError, RemovalRefused, SourceError, TidegateError
from tidegate.model.task import TaskRun
from tidegate.project import Project
from tidegate.runtime.task_graph_run import GraphReport

PIPELINES = """
from datetime import date
from pathlib import Path
import tidegate as tg

CALLS = Path(__file__).parent / "calls"

@tg.task(target="warehouse:marts.revenue", mode="delete_insert", requires=["orders"])
def revenue(ctx, day: date, least: int = 0):
    with CALLS.open("a") as calls:
        calls.write(f"revenue {day}\\n")
    orders = ctx.read("warehouse:raw.orders").where(f"total >= {least}")
    return (
        orders.selectExpr("to_date(updated_at) AS day", "id % 3 AS shop", "total")
        .where(f"day = DATE '{day}'")
        .groupBy("day", "shop")
        .sum("total")
        .withColumnRenamed("sum(total)", "total")
    )

@tg.task(target="warehouse:marts.best", key="day", requires=[revenue])
def best(ctx, day: date):
    found = ctx.read("warehouse:marts.revenue").where(f"day = DATE '{day}'")
    return found.groupBy("day").agg({"total": "max"}).toDF("day", "top")

@tg.task(target="warehouse:marts.stray", mode="delete_insert")
def stray(ctx, shop: str, others: bool = True):
    condition = "true" if others else f"shop = '{shop}'"
    rows = [("a", 1), ("b", 2)]
    return ctx.spark.createDataFrame(rows, "shop string, n int").where(condition)

@tg.task(target="warehouse:marts.top", mode="replace")
def top(ctx, least: int):
    return ctx.spark.range(least, 200)

@tg.task(target="warehouse:marts.nothing", mode="append")
def nothing(ctx):
    return 7

@tg.task(target="warehouse:marts.lost", mode="append")
def lost(ctx):
    return ctx.read("warehouse:raw.no_such_table")
"""
FIRST, SECOND = date(2026, 11, 1), date(2026, 11, 2)
REVENUE = "SELECT day::text, shop, total::int FROM marts.revenue ORDER BY 1, 2"


def make(make_project: MakeProject) -> tuple[Project, Place]:
    project, place = make_project(ORDERS, databases=2, pipelines=PIPELINES)
    place.source.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10,2),"
        " updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT n, 10, '2026-11-01 12:00+00'::timestamptz"
        " + (n % 2) * interval '1 day' FROM generate_series(1, 12) n",
    )
    return project, place


def states(report: GraphReport) -> dict[str, str]:
    return {str(end.step): end.state.value for end in report.ends}


def calls(place: Place) -> list[str]:
    return (place.folder / "calls").read_text().splitlines()


def forget(project: Project, run: TaskRun) -> None:
    assert run.task.target is not None
    with project.connect(run.task.target.connection) as connection:
        connection.execute(
            "DELETE FROM tidegate.table_updates WHERE update_id = %s", (run.update_id,)
        )


def failure(report: GraphReport) -> TidegateError:
    (end,) = report.failed
    assert end.error is not None
    return end.error


def test_a_task_after_its_sync_is_published_once_and_then_skipped_without_spark(
    make_project: MakeProject,
) -> None:
    project, place = make(make_project)
    first = project.run_task("best", day=FIRST)
    assert states(first) == {
        "sync orders": "done",
        "revenue(day=2026-11-01, least=0)": "done",
        "best(day=2026-11-01)": "done",
    }, failure(first)
    expected = [(str(FIRST), shop, 20) for shop in range(3)]
    assert place.target.execute(REVENUE) == expected
    assert place.target.execute("SELECT day, top::int FROM marts.best") == [(FIRST, 20)]
    # Complete is told by the marker: no function is called, no Spark is started.
    again = open_without_spark(place).run_task("best", day=FIRST)
    assert states(again) == {"best(day=2026-11-01)": "complete"}
    assert calls(place) == [f"revenue {FIRST}"]


def test_replace_asks_before_it_takes_most_rows_away_and_so_does_a_worker(
    make_project: MakeProject,
) -> None:
    project, place = make(make_project)
    count = "SELECT count(*) FROM marts.top"
    assert project.run_task("top", least=0).exit_code == 0
    refused = failure(project.run_task("top", least=150))
    assert isinstance(refused, RemovalRefused)
    assert "tidegate run top --param least=… --allow-removal" in str(refused)
    assert place.target.value(count) == 200
    run = project.task_run("top", {"least": 150})
    project.submit_graph([replace(run, allow_removal=True)])
    project.worker(once=True).run()
    assert place.target.value(count) == 50


def test_delete_insert_replaces_the_slice_of_the_parameters_and_nothing_else(
    make_project: MakeProject,
) -> None:
    project, place = make(make_project)
    for day in (FIRST, SECOND):
        assert states(project.run_task("revenue", day=day))["sync orders"] == "done"
    before = place.target.execute(REVENUE)
    assert len(before) == 6

    run = project.task_run("revenue", {"day": FIRST})
    forget(project, run)
    place.target.execute("UPDATE raw.orders SET total = 5 WHERE id % 3 = 0")
    place.target.execute("DELETE FROM raw.orders WHERE id % 3 = 1")
    report = project.run_graph([run])
    assert report.exit_code == 0, failure(report)
    after = place.target.execute(REVENUE)
    assert after == [(str(FIRST), 0, 10), (str(FIRST), 2, 20), *before[3:]]

    # No row at all is a slice as well: an empty one.
    forget(project, run)
    place.target.execute("DELETE FROM raw.orders WHERE updated_at < '2026-11-02'")
    (end,) = [end for end in project.run_graph([run]).ends if end.step == run]
    assert end.task is not None
    assert (end.task.rows, end.task.changed) == (0, 2)
    assert place.target.execute(REVENUE) == before[3:]


def test_rows_outside_the_slice_are_refused(make_project: MakeProject) -> None:
    project, place = make(make_project)
    refused = failure(project.run_task("stray", shop="a"))
    assert isinstance(refused, DeclarationError)
    assert "1 rows for marts.stray are not of the part that they replace (shop = a)" in str(refused)
    assert project.run_task("stray", shop="a", others=False).exit_code == 0
    assert place.target.execute("SELECT shop, n FROM marts.stray") == [("a", 1)]


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("nothing", DeclarationError, "returned int, not a DataFrame"),
        ("lost", SourceError, "warehouse:raw.no_such_table does not exist"),
    ],
)
def test_what_a_task_cannot_publish_is_refused_by_name(
    make_project: MakeProject, name: str, kind: type[Any], said: str
) -> None:
    project, _ = make(make_project)
    refused = failure(project.run_task(name))
    assert isinstance(refused, kind)
    assert said in refused.message


def test_a_worker_publishes_a_queued_task(make_project: MakeProject) -> None:
    project, place = make(make_project)
    queued = project.submit_task("stray", shop="b", others=False)
    assert project.worker(burst=True).run().exit_code == 0
    assert queued.state() == "done"
    assert place.target.execute("SELECT shop, n FROM marts.stray") == [("b", 2)]
