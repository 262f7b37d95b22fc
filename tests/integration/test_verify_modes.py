"""`verify` in every mode and with a transformation: equal after a load, each difference found."""

from __future__ import annotations

from typing import Any

import pytest

from integration.commands import DONE, FAILED
from integration.conftest import Make, MakeProject, Place
from integration.here import tidegate
from integration.orders import CREATE, FILL, contents
from tidegate.core.errors import DestinationError, DriftRefused
from tidegate.load import context as context_module
from tidegate.project import Project
from tidegate.verify import compare, transformation
from tidegate.verify.report import ColumnDifference, RowDifference, RowReason, Verdict, Verification
from tidegate.verify.verify import verify_sync

BARE = {"source": "shop:public.orders", "target": "warehouse:raw.orders"}
ORDERS = {**BARE, "cursor": "updated_at"}
STAMP = "'2026-01-01'::timestamptz + {} * interval '1 minute'"
VERSIONS = {**ORDERS, "mode": "append", "key": "id", "lookback": "1 hour"}
WAYS: dict[str, dict[str, Any]] = {
    "delete_insert": {**ORDERS, "mode": "delete_insert"},
    "replace": {**BARE, "mode": "replace"},
    "versions": VERSIONS,
    "some": {**ORDERS, "columns": ["id", "name"], "where": "total <> 3 -- not that one"},
    "query": {
        **ORDERS,
        "source": "shop",
        "query": "SELECT id, name || '!' AS name, updated_at FROM orders -- loud",
        "key": "id",
        "null_cursor": "raise",
    },
}
TWICE = ("delete_insert", "versions")


def seed(place: Place, *, key: bool = True) -> None:
    place.source.execute(
        f"CREATE TABLE orders (id bigint {'PRIMARY KEY' if key else ''}, name text,"
        " total numeric, updated_at timestamptz NOT NULL)",
        f"INSERT INTO orders SELECT n, 'n' || n, n, {STAMP.format('n')}"
        " FROM generate_series(1, 6) n",
    )


def several(make: Make, **syncs: Any) -> tuple[Project, Place]:
    """Syncs that each load a table of their name."""
    return make(
        *({**one, "name": name, "target": f"warehouse:raw.{name}"} for name, one in syncs.items())
    )


def run_all(project: Project) -> None:
    for name in project.syncs:
        project.run(name)


def verify(project: Project, name: str = "orders") -> Verification:
    return verify_sync(project.context, project.sync(name))


def sums(found: Verification) -> tuple[Verdict, int, int]:
    return found.verdict, found.source_rows, found.target_rows


def difference(found: Verification) -> RowDifference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.intact is False
    assert found.difference is not None
    return found.difference


def counts(found: Verification) -> tuple[int, int, int]:
    wrong = difference(found)
    return wrong.missing, wrong.extra, wrong.different


def test_each_way_to_load_is_equal_until_somebody_touches_the_target(make: Make) -> None:
    project, place = several(make, **WAYS)
    seed(place)
    run_all(project)
    # Those that keep or replace rows by key load a change as well.
    for way in (*sorted(WAYS.keys() - set(TWICE)), *TWICE):
        if way in TWICE:
            change = f"UPDATE orders SET name = 'x', updated_at = {STAMP.format(9)} WHERE id = 2"
            place.source.execute(change)
            project.run(way)
        found = verify(project, way)
        rows = 5 if way == "some" else 6
        assert sums(found) == (Verdict.EQUAL, rows, rows), way
        assert found.not_yet_loaded == 0
        table = "raw.versions_raw" if way == "versions" else f"raw.{way}"
        columns = "id, name" if way == "some" else "id, name, updated_at"
        values = "99, 'mine'" + ("" if way == "some" else ", now()")
        if way == "versions":
            columns, values = f"{columns}, update_id", f"{values}, 'mine'"
        place.target.execute(
            f"DELETE FROM {table} WHERE id = 1",
            f"UPDATE {table} SET name = 'edited' WHERE id = 4",
            f"INSERT INTO {table} ({columns}) VALUES ({values})",
        )
        wrong = difference(verify(project, way))
        assert wrong.missing_keys == ("(1)",), way
        assert wrong.extra_keys == ("(99)",), way
        assert wrong.different_keys == ("(4)",), way


def test_a_row_that_left_the_range_or_the_condition_is_told_apart(make: Make) -> None:
    project, place = several(make, small={**ORDERS, "where": "total < 6"}, versions=VERSIONS)
    seed(place)
    run_all(project)
    place.source.execute(
        f"UPDATE orders SET total = 10, updated_at = {STAMP.format(10)} WHERE id = 2"
    )
    above = verify(project, "versions")
    assert (above.verdict, above.source_rows, above.not_yet_loaded) == (Verdict.EQUAL, 5, 1)
    found = verify(project, "small")
    assert difference(found).extra_keys == ("(2)",)
    assert "do not meet `where` any more" in str(found.hint)


def test_a_replaced_table_whose_source_changed_is_not_called_unequal(make: Make) -> None:
    project, place = make(WAYS["replace"])
    seed(place)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 5", "UPDATE orders SET total = 0")
    found = verify(project)
    assert (found.verdict, found.intact) == (Verdict.CHANGED, True)
    assert "the target holds exactly what the last run loaded" in found.notes
    assert "tidegate run orders; then" in str(found.hint)
    done = tidegate(place.folder, "verify", "orders")
    assert done.code == DONE
    assert done.out.startswith("orders: changed since the last run\n  note: the target holds")
    project.run("orders")
    assert verify(project).verdict is Verdict.EQUAL

    # Both changed.
    place.source.execute("DELETE FROM orders WHERE id = 4")
    place.target.execute("UPDATE raw.orders SET name = 'edited' WHERE id = 1")
    found = verify(project)
    assert counts(found) == (0, 1, 1)
    assert "is not what that run loaded" in str(found.hint)
    assert tidegate(place.folder, "verify", "orders").code == FAILED

    # No run remembers what it loaded.
    project.run("orders")
    place.control.execute("UPDATE tidegate_control.jobs SET result = '{}'")
    assert verify(project).verdict is Verdict.EQUAL
    place.source.execute("DELETE FROM orders WHERE id = 3")
    found = verify(project)
    assert counts(found) == (0, 1, 0)
    assert "or the source changed since the last run" in str(found.hint)


def test_a_replace_without_a_key_is_compared_as_a_bag(make: Make) -> None:
    project, place = make(WAYS["replace"], databases=2)
    seed(place, key=False)
    place.source.execute("INSERT INTO orders SELECT * FROM orders WHERE id <= 2")
    project.run("orders")
    assert sums(verify(project)) == (Verdict.EQUAL, 8, 8)
    place.target.execute(
        "DELETE FROM raw.orders WHERE ctid = (SELECT min(ctid) FROM raw.orders WHERE id = 1)",
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id = 5",
        "UPDATE raw.orders SET name = 'edited' WHERE id = 6",
    )
    found = verify(project)
    assert counts(found) == (2, 2, 0)
    assert [text[:6] for text in difference(found).missing_keys] == ["(1,n1,", "(6,n6,"]
    assert [text[:6] for text in difference(found).extra_keys] == ["(5,n5,", "(6,edi"]


def test_a_plain_append_must_hold_every_loaded_row_and_may_hold_older_ones(make: Make) -> None:
    project, place = make({**ORDERS, "mode": "append"}, databases=2)
    seed(place, key=False)
    place.source.execute("INSERT INTO orders SELECT * FROM orders WHERE id = 3")
    project.run("orders")
    place.source.execute(
        f"UPDATE orders SET name = 'changed', updated_at = {STAMP.format(9)} WHERE id = 2",
        "DELETE FROM orders WHERE id = 5",
    )
    project.run("orders")
    place.source.execute(f"INSERT INTO orders VALUES (7, 'n7', 7, {STAMP.format(10)})")
    found = verify(project)
    assert sums(found) == (Verdict.EQUAL, 6, 8)
    assert found.not_yet_loaded == 1
    assert "2 more rows are there: older versions, or rows deleted since" in found.notes
    place.target.execute(
        "DELETE FROM raw.orders WHERE ctid = (SELECT min(ctid) FROM raw.orders WHERE id = 3)",
        "UPDATE raw.orders SET name = 'edited' WHERE id = 6",
    )
    place.source.execute("UPDATE orders SET name = 'unseen' WHERE id = 4")
    found = verify(project)
    assert counts(found) == (3, 0, 0)
    assert [text[:5] for text in difference(found).missing_keys] == ["(3,n3", "(4,un", "(6,n6"]


def test_rows_that_no_load_of_an_append_put_in_are_extra(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as in the source or more often: what was inserted twice is told by its number."""
    project, place = several(make, plain={**ORDERS, "mode": "append"})
    seed(place, key=False)
    run_all(project)
    place.source.execute(
        f"UPDATE orders SET updated_at = {STAMP.format(9)} WHERE id < 3",
        "DELETE FROM orders WHERE id = 4",
    )
    project.run("plain")
    assert verify(project, "plain").verdict is Verdict.EQUAL
    place.target.execute("INSERT INTO raw.plain SELECT * FROM raw.plain WHERE id > 4")
    found = verify(project, "plain")
    assert counts(found) == (0, 2, 0)
    assert "more rows are there than its loads put in" in str(found.hint)
    # Moving the watermark by hand puts no row in or out; a refresh leaves what it loads.
    project.watermark("plain").set("2026-02-01", reason="test")
    assert counts(verify(project, "plain")) == (0, 2, 0)
    project.run("plain", full_refresh=True)
    assert verify(project, "plain").verdict is Verdict.EQUAL

    # Bags that are larger than one pass are compared in several.
    place.source.execute(
        f"INSERT INTO orders SELECT n, 'n', n, {STAMP.format('n')} FROM generate_series(12, 500) n"
    )
    project.run("plain")
    place.target.execute(
        "INSERT INTO raw.plain SELECT id, 'old', total, updated_at FROM raw.plain",
        "DELETE FROM raw.plain WHERE id IN (44, 480) AND name = 'n'",
    )
    monkeypatch.setattr(compare, "PASS_ROWS", 50)
    found = verify(project, "plain")
    assert counts(found) == (2, 492, 0)
    assert [text[:4] for text in difference(found).missing_keys] == ["(44,", "(480"]


def test_rejected_keys_are_left_out_on_both_sides_and_counted(make: Make) -> None:
    checks = {
        "checks": {"no_four": "total <> 4", "named": "name IS NOT NULL"},
        "reject_limit": "100%",
    }
    project, place = several(
        make,
        merge={**ORDERS, **checks},
        append={**ORDERS, **checks, "mode": "append", "key": "id"},
    )
    seed(place)
    run_all(project)
    for name in project.syncs:
        good = verify(project, name)
        assert (*sums(good)[:2], good.rejected) == (Verdict.EQUAL, 5, 1), name
    # One goes bad after it was loaded: the target keeps its last good version.
    place.source.execute(
        f"UPDATE orders SET name = NULL, updated_at = {STAMP.format(9)} WHERE id=2"
    )
    run_all(project)
    for name in project.syncs:
        found = verify(project, name)
        assert (*sums(found)[:2], found.rejected) == (Verdict.EQUAL, 4, 2), name
        place.target.execute(f"DELETE FROM raw.{name}_rejected WHERE key = '{{\"id\": 4}}'")
        wrong = difference(verify(project, name))
        keys = (wrong.missing_keys, wrong.extra_keys, wrong.different_keys)
        assert keys == (("(4)",), (), ()), name


def test_rejected_rows_without_a_key_count_as_there(make: Make) -> None:
    checks = {"checks": {"no_four": "total <> 4"}, "reject_limit": "100%"}
    project, place = several(
        make,
        append={**ORDERS, **checks, "mode": "append"},
        replace={**BARE, **checks, "mode": "replace"},
    )
    seed(place, key=False)
    run_all(project)
    done = tidegate(place.folder, "verify", "append")
    assert done.code == DONE
    assert done.out == (
        "append: 6 rows equal, 1 rejected\n  note: rows have no key here: each loaded row of the"
        " source must be there, at least as often, and no more rows than its loads put in\n"
    )
    document = tidegate(place.folder, "verify", "append", "--json").document[0]
    assert (document["rejected"], document["intact"]) == (1, True)
    place.source.execute(f"INSERT INTO orders VALUES (7, 'n7', 4, {STAMP.format(7)})")
    run_all(project)
    for name in project.syncs:
        found = verify(project, name)
        assert (*sums(found), found.rejected) == (Verdict.EQUAL, 7, 5, 2), name
        place.target.execute(f"DELETE FROM raw.{name}_rejected WHERE row ->> 'id' = '7'")
        assert counts(verify(project, name)) == (1, 0, 0), name


@pytest.mark.chaos
def test_rejected_keys_of_any_type_are_recognised(make: Make) -> None:
    checks = {"checks": {"positive": "total > 0"}, "reject_limit": "100%"}
    project, place = make({**ORDERS, **checks, "key": ["day", "part", "at"]}, databases=2)
    place.source.execute(
        "CREATE TABLE orders (day date, part text, at timestamptz, total real,"
        " updated_at timestamptz NOT NULL, PRIMARY KEY (day, part, at))",
        "INSERT INTO orders SELECT '2026-01-01', E'a\"b,\\\\ü' || n,"
        f" {STAMP.format('n')} + interval '0.123456 s', n - 2, {STAMP.format('n')}"
        " FROM generate_series(1, 6) n",
    )
    project.run("orders")
    found = verify(project)
    assert (*sums(found)[:2], found.rejected) == (Verdict.EQUAL, 4, 2)


@pytest.mark.chaos
def test_what_a_refused_type_names_as_the_way_can_be_run_as_it_is(make: Make) -> None:
    """No cast leads from one to the other, and a view of versions shows the column."""
    project, place = make(VERSIONS)
    seed(place)
    project.run("orders")
    place.source.execute(
        "ALTER TABLE orders DROP total, ADD total uuid NOT NULL DEFAULT uuidv4()",
        "UPDATE orders SET updated_at = updated_at + interval '1 hour'",
    )
    with pytest.raises(DriftRefused) as refused:
        project.run("orders")
    way_on = str(refused.value.hint).partition("by hand: ")[2]
    place.target.execute(way_on.replace(" (or exclude_columns)", ""))
    project.run("orders")
    assert verify(project).verdict is Verdict.EQUAL


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


def verify_with_spark(project: Project, name: str = "orders") -> Verification:
    found = verify_sync(project.context, project.sync(name))
    assert found.used_spark
    return found


def not_loaded_yet(found: Verification) -> tuple[Verdict, int, int]:
    return found.verdict, found.source_rows, found.not_yet_loaded


def different_rows(found: Verification) -> RowDifference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    return found.difference


def test_a_transformation_is_run_again_compared_and_repaired(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded(make_project, doubled(), databases=3)
    before = contents(place.source, place.target, place.control)
    assert not_loaded_yet(verify_with_spark(project)) == (Verdict.EQUAL, 9, 0)
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
    assert not_loaded_yet(verify_with_spark(project)) == (Verdict.EQUAL, 9, 0)
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
        verify_with_spark(project)
    told = raised.value.message
    place.source.execute("UPDATE orders SET updated_at = now()")
    (note,) = project.run("orders").outcome.notes
    assert told == f"the source of raw.orders changed since the last load: {note}"
    assert verify_with_spark(project).intact


def test_changed_keys_and_no_rows_at_all_are_compared(make_project: MakeProject) -> None:
    project, place = loaded(make_project, OTHERS)
    place.source.execute("UPDATE orders SET total = 50, updated_at = now() WHERE id = 2")
    assert not_loaded_yet(verify_with_spark(project, "moved")) == (Verdict.EQUAL, 9, 1)
    found = verify_with_spark(project, "none")
    assert (found.verdict, found.source_rows, found.target_rows) == (Verdict.EQUAL, 0, 0)


def test_a_replaced_table_is_transformed_whole_and_a_changed_source_is_told_apart(
    make_project: MakeProject,
) -> None:
    pipelines = doubled(more=', mode="replace"').replace(', cursor="updated_at"', "")
    project, place = loaded(make_project, pipelines)
    place.target.execute("UPDATE raw.orders SET double = 1 WHERE id = 5")
    assert different_rows(verify_with_spark(project)).different_keys == ("(5)",)
    place.source.execute("DELETE FROM orders WHERE id = 6")
    found = verify_with_spark(project)
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
    found = verify_with_spark(project)
    assert not_loaded_yet(found) == (Verdict.EQUAL, 8 if key else 9, 1)
    assert found.rejected == 1
    table = "raw.orders_raw" if key else "raw.orders"
    place.target.execute(
        f"DELETE FROM {table} WHERE id = 7", f"UPDATE {table} SET double = 1 WHERE id = 8"
    )
    wrong = different_rows(verify_with_spark(project))
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
