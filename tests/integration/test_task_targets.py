"""Tasks with a target: what they return is published once for each set of parameters."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pyarrow as pa
import pytest

from integration.conftest import MakePlace, MakeProject, open_without_spark
from integration.filled_lakes import fill_table, open_table, table_of
from integration.lakes import make_lake_project
from integration.orders import ORDERS
from tidegate.config.task import TaskRun
from tidegate.core.errors import (
    DeclarationError,
    RemovalRefused,
    SourceError,
    TidegateError,
    UsageError,
)
from tidegate.core.relation import Relation
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.tasks.graph_runner import GraphReport

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


def states(report: GraphReport) -> dict[str, str]:
    return {str(end.step): end.state.value for end in report.ends}


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


def test_a_task_after_its_sync_is_published_once_and_replaces_the_slice_of_its_parameters(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2, pipelines=PIPELINES)
    place.source.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10,2),"
        " updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT n, 10, '2026-11-01 12:00+00'::timestamptz"
        " + (n % 2) * interval '1 day' FROM generate_series(1, 12) n",
    )
    first = project.run_task("best", day=FIRST)
    assert states(first) == {
        "sync orders": "done",
        "revenue(day=2026-11-01, least=0)": "done",
        "best(day=2026-11-01)": "done",
    }, failure(first)
    assert place.target.execute(REVENUE) == [(str(FIRST), shop, 20) for shop in range(3)]
    assert place.target.execute("SELECT day, top::int FROM marts.best") == [(FIRST, 20)]
    # Complete is told by the marker: no function is called, no Spark is started.
    again = open_without_spark(place).run_task("best", day=FIRST)
    assert states(again) == {"best(day=2026-11-01)": "complete"}
    assert (place.folder / "calls").read_text().splitlines() == [f"revenue {FIRST}"]

    assert states(project.run_task("revenue", day=SECOND))["sync orders"] == "done"
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


def test_what_a_task_must_not_publish_is_refused_here_and_a_worker_publishes_the_rest(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2, pipelines=PIPELINES)
    count = "SELECT count(*) FROM marts.top"
    assert project.run_task("top", least=0).exit_code == 0
    refused = failure(project.run_task("top", least=150))
    assert isinstance(refused, RemovalRefused)
    assert "tidegate run top --param least=… --allow-removal" in str(refused)
    assert place.target.value(count) == 200
    refused = failure(project.run_task("stray", shop="a"))
    assert isinstance(refused, DeclarationError)
    assert "1 rows for marts.stray are not of the part that they replace (shop = a)" in str(refused)
    assert place.target.execute("SELECT * FROM marts.stray") == []

    run = project.task_run("top", {"least": 150})
    project.submit_graph([replace(run, allow_removal=True)])
    queued = project.submit_task("stray", shop="b", others=False)
    assert project.worker(burst=True).run().exit_code == 0
    assert place.target.value(count) == 50
    assert queued.state() == "done"
    assert place.target.execute("SELECT shop, n FROM marts.stray") == [("b", 2)]

    refused = failure(project.run_task("nothing"))
    assert isinstance(refused, DeclarationError)
    assert "returned int, not a DataFrame" in refused.message
    refused = failure(project.run_task("lost"))
    assert isinstance(refused, SourceError)
    assert "warehouse:raw.no_such_table does not exist" in refused.message


# `day` names the slice; `edition` makes another run of the same one.
LAKE = """
from datetime import date
import tidegate as tg

@tg.task(target="lake:marts.sales", mode="delete_insert")
def sales(ctx, day: date, edition: int, rows: int = 2, stray: bool = False):
    given = [(date(2026, 12, 24) if stray else day, n, edition) for n in range(rows)]
    return ctx.spark.createDataFrame(given, "day date, n int, of int")

@tg.task(target="lake:marts.copy", key="n")
def copy(ctx, day: date):
    return ctx.read("lake:marts.sales").where(f"day = DATE '{day}'").select("n", "of")
"""


def test_a_slice_of_a_lake_is_replaced_in_one_commit(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, pipelines=LAKE)
    table = Relation("marts", "sales")
    days = [FIRST, FIRST, SECOND, SECOND]
    columns = pa.schema([("day", pa.date32()), ("n", pa.int32()), ("of", pa.int32())])
    given = pa.table({"day": days, "n": [0, 1, 0, 1], "of": [1] * 4}, schema=columns)
    fill_table(place, given, table)

    def rows(relation: Relation = table) -> list[tuple[object, ...]]:
        found = open_table(place, relation).scan().to_arrow().to_pylist()
        return sorted((tuple(row.values()) for row in found), key=str)

    def run(**parameters: object) -> int | None:
        before = len(list(table_of(place, table).ancestors()))
        report = project.run_task("sales", **parameters)
        assert report.exit_code == 0, report.failed
        assert len(list(table_of(place, table).ancestors())) == before + 1
        assert report.ends[0].task is not None
        return report.ends[0].task.changed

    kept = [(SECOND, n, 1) for n in range(2)]
    run(day=FIRST, edition=2, rows=3)
    assert rows() == [*((FIRST, n, 2) for n in range(3)), *kept]
    assert run(day=FIRST, edition=3, rows=0) == 3
    assert rows() == kept
    refused = failure(project.run_task("sales", day=FIRST, edition=4, stray=True))
    assert isinstance(refused, DeclarationError)
    assert "are not of the part that they replace (day = 2026-11-01)" in refused.message

    assert project.run_task("copy", day=SECOND).exit_code == 0
    assert rows(Relation("marts", "copy")) == [(0, 1), (1, 1)]
    with pytest.raises(UsageError, match="a lake's table itself says what is in it"):
        project.forget_task(project.task_run("copy", {"day": SECOND}))
