"""`verify`, its repair and `why` of a sync with a transformation, which is run again with Spark."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import MakeProject, Place
from integration.orders import CREATE, FILL, contents
from tidegate.core.errors import DestinationError
from tidegate.load import context as context_module
from tidegate.project import Project
from tidegate.verify import transformation
from tidegate.verify.report import ColumnDifference, RowDifference, RowReason, Verdict, Verification
from tidegate.verify.verify import verify_sync

HEAD = "import tidegate as tg\n"
DOUBLED = """
@tg.sync(source="shop:orders", target="warehouse:raw.{name}", cursor="updated_at"{more})
def {name}(df):
    return df.selectExpr("*", "total * 2 AS double").drop("total").where("id <> 3")
"""
OTHERS = """
@tg.sync(source="shop:orders", target="warehouse:raw.moved", cursor="updated_at")
def moved(df):
    return df.selectExpr("id + 1000 AS id", "total", "updated_at")

@tg.sync(source="shop:orders", target="warehouse:raw.none", cursor="updated_at")
def none(df):
    return df.where("id < 0")
"""


def doubled(name: str = "orders", more: str = "") -> str:
    return DOUBLED.format(name=name, more=more)


def loaded(make_project: MakeProject, pipelines: str, databases: int = 1) -> tuple[Project, Place]:
    project, place = make_project(databases=databases, pipelines=HEAD + pipelines)
    place.source.execute(*CREATE, FILL)
    for name in project.syncs:
        project.run(name)
    return project, place


def verify(project: Project, name: str = "orders") -> Verification:
    found = verify_sync(project.context, project.sync(name))
    assert found.used_spark
    return found


def sums(found: Verification) -> tuple[Verdict, int, int]:
    return found.verdict, found.source_rows, found.not_yet_loaded


def difference(found: Verification) -> RowDifference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    return found.difference


def test_a_transformation_is_run_again_compared_and_repaired(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded(make_project, doubled(), databases=3)
    before = contents(place.source, place.target, place.control)
    assert sums(verify(project)) == (Verdict.EQUAL, 9, 0)
    assert contents(place.source, place.target, place.control) == before

    # A run meanwhile is noticed, and compared anew; staged rows that a sweep took are staged again.
    real_reading, real_send = context_module.reading, transformation.send_left_out
    ran: list[int] = []
    swept: list[int] = []

    def run_first(*arguments: Any) -> Any:
        # The run reads as well.
        monkeypatch.setattr(context_module, "reading", real_reading)
        place.source.execute("UPDATE orders SET total = 5, updated_at = now() WHERE id < 3")
        ran.append(project.run("orders").rows)
        return real_reading(*arguments)

    def sweep_first(*arguments: Any, **options: Any) -> Any:
        if not swept:
            destination = project.context.destination(project.sync("orders").target)
            swept.append(destination.sweep(set))
        return real_send(*arguments, **options)

    monkeypatch.setattr(context_module, "reading", run_first)
    monkeypatch.setattr(transformation, "send_left_out", sweep_first)
    assert sums(verify(project)) == (Verdict.EQUAL, 9, 0)
    assert ran == [2]
    assert swept[0] > 0

    place.target.execute("UPDATE raw.orders SET double = 1 WHERE id = 5")
    place.source.execute("DELETE FROM orders WHERE id = 6")
    found = project.verify("orders", repair=True)
    assert found.used_spark
    assert found.verdict is Verdict.EQUAL
    assert found.repair is not None
    was = found.repair.difference
    assert was is not None
    assert (was.different_keys, was.extra_keys, was.missing) == (("(5)",), ("(6)",), 0)
    rows = place.target.execute("SELECT id, double::int FROM raw.orders ORDER BY id")
    assert rows == [(1, 10), (2, 10), *((n, 2 * n) for n in (4, 5, 7, 8, 9, 10))]
    staged = "SELECT count(*) FROM pg_class WHERE relname ~ '^stg_'"
    assert place.target.value(staged) == 0

    place.source.execute("ALTER TABLE orders ADD note text")
    with pytest.raises(DestinationError) as raised:
        verify(project)
    told = raised.value.message
    place.source.execute("UPDATE orders SET updated_at = now()")
    (note,) = project.run("orders").outcome.notes
    assert told == f"the source of raw.orders changed since the last load: {note}"
    assert verify(project).intact


def test_changed_keys_and_no_rows_at_all_are_compared(make_project: MakeProject) -> None:
    project, place = loaded(make_project, OTHERS)
    place.source.execute("UPDATE orders SET total = 50, updated_at = now() WHERE id = 2")
    assert sums(verify(project, "moved")) == (Verdict.EQUAL, 9, 1)
    found = verify(project, "none")
    assert (found.verdict, found.source_rows, found.target_rows) == (Verdict.EQUAL, 0, 0)


def test_a_replaced_table_is_transformed_whole_and_a_changed_source_is_told_apart(
    make_project: MakeProject,
) -> None:
    pipelines = doubled(more=', mode="replace"').replace(', cursor="updated_at"', "")
    project, place = loaded(make_project, pipelines)
    place.target.execute("UPDATE raw.orders SET double = 1 WHERE id = 5")
    assert difference(verify(project)).different_keys == ("(5)",)
    place.source.execute("DELETE FROM orders WHERE id = 6")
    found = verify(project)
    assert (found.verdict, found.intact) == (Verdict.CHANGED, False)


@pytest.mark.chaos
@pytest.mark.parametrize("key", [True, False])
def test_transformed_rows_that_are_appended_are_compared_by_their_mode(
    make_project: MakeProject, key: bool
) -> None:
    more = ', mode="append"' + (', key="id"' if key else "")
    more += ', checks={"no_four": "id <> 4"}, reject_limit=1.0'
    project, place = loaded(make_project, doubled(more=more))
    change = "UPDATE orders SET total = 50, updated_at = '2026-02-01' WHERE id = 2"
    place.source.execute(change)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (11, 1)")
    found = verify(project)
    assert sums(found) == (Verdict.EQUAL, 8 if key else 9, 1)
    assert found.rejected == 1
    table = "raw.orders_raw" if key else "raw.orders"
    place.target.execute(
        f"DELETE FROM {table} WHERE id = 7", f"UPDATE {table} SET double = 1 WHERE id = 8"
    )
    wrong = difference(verify(project))
    assert (wrong.missing, wrong.different) == ((1, 1) if key else (2, 0))


def test_why_runs_a_transformation_on_one_row_only_when_that_is_asked_for(
    make_project: MakeProject,
) -> None:
    project, place = loaded(make_project, doubled(more=', where="id <> 9"'))
    before = contents(place.source, place.target)
    cold = place.open()
    there, dropped = cold.why("orders", id=5), cold.why("orders", id=3)
    assert cold.context.spark.started is False
    assert (there.reason, there.differences) == (RowReason.LOADED, ())
    assert there.target_row is not None
    assert there.target_row["double"] == "10.00"
    assert there.carrier is not None
    assert there.carrier.reason == "load range"
    assert dropped.reason is RowReason.MAYBE_TRANSFORMED
    assert "--run-transform" in str(dropped.hint)
    assert cold.why("orders", id=9).reason is RowReason.FILTERED

    assert project.why("orders", id=5, run_transform=True).reason is RowReason.EQUAL
    assert project.why("orders", id=3, run_transform=True).reason is RowReason.TRANSFORMED
    assert project.why("orders", id=9, run_transform=True).reason is RowReason.FILTERED
    assert contents(place.source, place.target) == before
    place.target.execute(
        "UPDATE raw.orders SET double = 1 WHERE id = 5", "DELETE FROM raw.orders WHERE id = 6"
    )
    edited = project.why("orders", id=5, run_transform=True)
    assert edited.reason is RowReason.CHANGED_UNSEEN
    assert edited.differences == (ColumnDifference("double", "10.00", "1.00"),)
    assert project.why("orders", id=6, run_transform=True).reason is RowReason.LATE
    assert project.why("orders", id=6).reason is RowReason.MAYBE_TRANSFORMED
    place.source.execute("UPDATE orders SET total = 7, updated_at = '2026-02-01' WHERE id = 7")
    assert project.why("orders", id=7).reason is RowReason.CHANGED
