"""Tasks whose target is a lake's table: the slice of the parameters is replaced in one commit."""

from __future__ import annotations

import pytest

from integration.conftest import MakePlace
from integration.lakes import make_lake_project
from tidegate.errors import DeclarationError, UsageError
from tidegate.lake.metadata import read_table
from tidegate.lake.session import lake_session
from tidegate.model.relation import Relation
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

# `day` names the slice; `edition` makes another run of the same one.
PIPELINES = """
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


def sales(project: Project, table: str = "sales") -> list[tuple[object, ...]]:
    with lake_session(project.context.spark, project.context.catalog("lake")) as session:
        return sorted(session.run(f"SELECT * FROM lake.marts.{table}"), key=str)


def snapshots(project: Project) -> int:
    found = read_table(project.context.catalog("lake"), Relation("marts", "sales"))
    assert found is not None
    return len(list(found.ancestors()))


def run(project: Project, **parameters: object) -> int | None:
    report = project.run_task("sales", **parameters)
    assert report.exit_code == 0, report.failed
    assert report.ends[0].task is not None
    return report.ends[0].task.changed


def test_a_slice_of_a_lake_is_replaced_in_one_commit(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, _ = make_lake_project(make_place, warm_spark, pipelines=PIPELINES)
    first, second = "2026-11-01", "2026-11-02"
    run(project, day=first, edition=1)
    run(project, day=second, edition=1)
    before = snapshots(project)
    run(project, day=first, edition=2, rows=3)
    assert snapshots(project) == before + 1
    assert [(str(day), n, of) for day, n, of in sales(project)] == [
        *((first, n, 2) for n in range(3)),
        *((second, n, 1) for n in range(2)),
    ]
    assert run(project, day=first, edition=3, rows=0) == 3
    assert [(str(day), n, of) for day, n, of in sales(project)] == [
        (second, n, 1) for n in range(2)
    ]
    refused = project.run_task("sales", day=first, edition=4, stray=True).failed[0].error
    assert isinstance(refused, DeclarationError)
    assert "are not of the part that they replace (day = 2026-11-01)" in refused.message

    assert project.run_task("copy", day=second).exit_code == 0
    assert sales(project, "copy") == [(0, 1), (1, 1)]
    with pytest.raises(UsageError, match="a lake's table itself says what is in it"):
        project.forget_task(project.task_run("copy", {"day": second}))
