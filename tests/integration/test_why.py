"""`why` explains one row: every reason there is, the load that brought it, and bad questions."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from integration.commands import DONE, USAGE
from integration.conftest import Make, Place
from integration.here import tidegate
from integration.orders import contents, open_transaction
from tidegate.core.errors import UsageError
from tidegate.project import Project
from tidegate.verify.report import ColumnDifference, Explanation, RowLoad, RowReason

TARGET = "warehouse:raw.orders"
BARE = {"source": "shop:public.orders", "target": TARGET}
ORDERS = {**BARE, "cursor": "updated_at"}
STAMP = "'2026-01-01'::timestamptz + {} * interval '1 minute'"


def seed(place: Place, *, null: str = "NOT NULL", key: str = "PRIMARY KEY") -> None:
    place.source.execute(
        f"CREATE TABLE orders (id bigint {key}, name text, total numeric,"
        f" updated_at timestamptz {null} DEFAULT now())",
        "CREATE INDEX ON orders (updated_at)",
        f"INSERT INTO orders SELECT n, 'n' || n, n, {STAMP.format('n')}"
        " FROM generate_series(1, 9) n",
    )


def loaded(make: Make, **options: Any) -> tuple[Project, Place]:
    project, place = make({**ORDERS, **options})
    seed(place)
    project.run("orders")
    return project, place


def several(make: Make, null: str = "NOT NULL", **syncs: Any) -> tuple[Project, Place]:
    """Syncs of one source, each into a table of its name, and each has run."""
    declared = [
        {**sync, "name": name, "target": f"warehouse:raw.{name}"} for name, sync in syncs.items()
    ]
    project, place = make(*declared)
    seed(place, null=null)
    for name in syncs:
        project.run(name)
    return project, place


def why(
    project: Project,
    row: int,
    reason: RowReason | None = None,
    *words: str,
    target: str = TARGET,
    hint: str = "",
) -> Explanation:
    """What is said of a row: this reason, these words in its sentence and this in its hint."""
    found = project.why(target, id=row)
    assert found.key == {"id": str(row)}
    assert found.reason is (reason or found.reason), found
    for word in words:
        assert word in found.sentence
    assert hint in str(found.hint)
    return found


def carrier(found: Explanation) -> RowLoad:
    assert found.carrier is not None
    return found.carrier


def updates(place: Place, name: str = "orders") -> list[str]:
    """The loads of a sync, the first one first."""
    rows = place.target.execute(
        "SELECT update_id FROM tidegate.watermark_log WHERE update_id IS NOT NULL"
        f" AND pipeline_name = 'shop.{name}' ORDER BY id"
    )
    return [row[0] for row in rows]


def test_an_equal_row_names_the_load_that_brought_it(make: Make) -> None:
    project, place = make({**ORDERS, "batch_rows": 3}, databases=3)
    seed(place)
    nothing = contents(place.source, place.target)
    why(project, 5, RowReason.NOT_YET, "sync orders has never run")
    assert contents(place.source, place.target) == nothing
    project.run("orders")
    before = contents(place.source, place.target, place.control)
    found = why(project, 5, RowReason.EQUAL)
    assert contents(place.source, place.target, place.control) == before
    assert (found.hint, found.differences) == (None, ())
    row = {"id": "5", "name": "n5", "total": "5", "updated_at": "2026-01-01 00:05:00+00"}
    assert found.source_row == found.target_row == row
    by = carrier(found)
    assert (by.update_id, by.reason, by.others) == (updates(place)[1], "load range", 0)
    recorded = place.control.execute(
        "SELECT a.attempt_id, j.job_id::text FROM tidegate_control.job_attempts a"
        " JOIN tidegate_control.jobs j USING (job_id)"
    )
    assert recorded == [(by.attempt_id, by.job_id)]
    assert "tidegate run" in by.moved_by


def test_a_row_on_either_side_of_the_watermark_has_its_reason(make: Make) -> None:
    project, place = loaded(make)
    place.source.execute(
        "UPDATE orders SET updated_at = '2999-01-01' WHERE id = 1",
        f"UPDATE orders SET name = NULL, updated_at = {STAMP.format(20)} WHERE id = 3",
        "UPDATE orders SET total = 77 WHERE id = 4",
        f"UPDATE orders SET total = 78, updated_at = {STAMP.format('8.5')} WHERE id = 5",
        f"UPDATE orders SET total = 79, updated_at = {STAMP.format('0.5')} WHERE id = 6",
        f"INSERT INTO orders VALUES (10, 'new', 1, {STAMP.format(21)})",
        f"INSERT INTO orders VALUES (50, 'late', 1, {STAMP.format('2.5')})",
    )
    above = "lies above the watermark (2026-01-01 00:09:00+00)"
    changed = why(project, 3, RowReason.CHANGED, above)
    assert changed.differences[0] == ColumnDifference("name", None, "n3")
    assert [one.column for one in changed.differences] == ["name", "updated_at"]
    assert carrier(changed).update_id == updates(place)[0]
    new = why(project, 10, RowReason.NOT_YET, hint="tidegate run orders")
    assert (new.target_row, new.carrier) == (None, None)

    unseen = why(project, 4, RowReason.CHANGED_UNSEEN, "changed without raising it")
    assert [one.column for one in unseen.differences] == ["total"]
    why(project, 5, RowReason.LATE, "newer than the target's")
    why(project, 6, RowReason.CHANGED_UNSEEN, "went back at the source")
    for word in ("tidegate verify orders", "tidegate watermark rewind", "lookback"):
        why(project, 50, RowReason.LATE, hint=word)
    future = why(project, 1, RowReason.HELD_BACK, "the target holds an older version")
    assert "held back" not in future.sentence
    why(project, 30, RowReason.UNKNOWN, hint="the nearest are id=10 and id=50")
    why(project, 1000, RowReason.UNKNOWN, hint="the nearest are id=50")

    with open_transaction(place.source, "SELECT 1"):
        place.source.execute("INSERT INTO orders VALUES (60, 'new', 1, clock_timestamp())")
        why(project, 60, RowReason.HELD_BACK, "held back by process", "(late writer)")
    why(project, 60, RowReason.NOT_YET)
    project.run("orders")
    why(project, 3, RowReason.EQUAL)
    why(project, 10, RowReason.EQUAL)

    # The target may lack columns, or be gone.
    place.source.execute("ALTER TABLE orders ADD colour text DEFAULT 'red', ADD size int")
    place.target.execute("UPDATE raw.orders SET name = 'edited' WHERE id = 7")
    same = why(project, 8, RowReason.EQUAL)
    assert same.notes == ("the target has no column colour, size",)
    assert [one.column for one in why(project, 7).differences] == ["name"]
    place.target.execute("DROP TABLE raw.orders")
    gone = why(project, 8, RowReason.LATE)
    assert gone.notes == ("warehouse:raw.orders does not exist any more",)


def test_a_row_out_of_reach_of_the_cursor_or_the_condition_is_told(make: Make) -> None:
    """Within the lookback the next run is the way out."""
    where = "total IS NULL OR total < 8 -- the small ones"
    project, place = several(
        make,
        null="",
        include={**ORDERS, "null_cursor": "include", "lookback": "5 minutes"},
        small={**ORDERS, "null_cursor": "exclude", "where": where},
    )
    place.source.execute(
        "INSERT INTO orders VALUES (10, 'none', 1, NULL)",
        f"INSERT INTO orders VALUES (50, 'late', 1, {STAMP.format('5.5')}),"
        f" (51, 'later', 1, {STAMP.format('2.5')})",
        f"UPDATE orders SET total = 80, updated_at = {STAMP.format(20)} WHERE id = 2",
    )
    filtered = why(project, 9, RowReason.FILTERED, "total < 8", target="small")
    assert filtered.target_row is None
    grown = "holds the version that was loaded before"
    why(project, 2, RowReason.FILTERED, grown, target="small", hint="--full-refresh")
    why(project, 3, RowReason.EQUAL, target="small")
    why(project, 10, RowReason.NO_CURSOR, "updated_at is NULL", "exclude", target="small")
    why(project, 10, RowReason.NO_CURSOR, "updated_at is NULL", target="include")

    next_run = "the next run loads it: tidegate run include"
    why(project, 50, RowReason.LATE, target="include", hint=next_run)
    why(project, 51, RowReason.LATE, target="include", hint="tidegate watermark rewind")
    project.run("include")
    by = carrier(why(project, 50, RowReason.EQUAL, target="include"))
    assert (by.reason, by.others) == ("load lookback", 1)
    why(project, 51, RowReason.LATE, target="include")
    assert carrier(why(project, 10, RowReason.EQUAL, target="include")).reason == "load nulls"


def test_a_rejected_row_names_its_checks_and_the_load(make: Make) -> None:
    checks = {
        "checks": {"no_four": "total <> 4", "named": "name <> 'n4'"},
        "reject_limit": "100%",
    }
    project, place = several(
        make, merge={**ORDERS, **checks}, plain={**ORDERS, **checks, "mode": "append"}
    )
    words = ("rejected by no_four, named at 20", "the target has no row for it")
    for name in ("merge", "plain"):
        found = why(project, 4, RowReason.REJECTED, *words, target=name)
        assert found.target_row is None
        assert found.rejection is not None
        assert found.rejection.failed == ("no_four", "named")
        assert found.rejection.update_id == updates(place, name)[0]
    place.source.execute(f"UPDATE orders SET total = 4, updated_at = {STAMP.format(20)} WHERE id=2")
    project.run("merge")
    kept = why(project, 2, RowReason.REJECTED, "keeps its last good version", target="merge")
    assert kept.differences[0] == ColumnDifference("total", "4", "2")


def test_a_rewind_a_skip_and_a_full_refresh_are_told(make: Make) -> None:
    project, place = loaded(make)
    project.watermark("orders").rewind("2026-01-01 00:04:00+00", reason="again")
    project.run("orders")
    twice, once = carrier(why(project, 5)), carrier(why(project, 4))
    first, second = updates(place)
    assert (twice.update_id, twice.generation, twice.others) == (second, 1, 1)
    assert (once.update_id, once.others) == (first, 0)
    place.source.execute(f"INSERT INTO orders VALUES (10, 'old', 1, {STAMP.format(15)})")
    project.watermark("orders").set("2026-01-01 00:30:00+00", reason="not wanted")
    why(project, 10, RowReason.SKIPPED, "moved the watermark past it (not wanted)")
    project.run("orders", full_refresh=True)
    by = carrier(why(project, 2))
    assert (by.update_id, by.reason) == (updates(place)[-1], "load full")


def test_each_mode_tells_of_deleted_edited_and_older_rows(make: Make) -> None:
    project, place = several(
        make,
        merge=ORDERS,
        versions={**ORDERS, "mode": "append", "key": "id", "lookback": "1 hour"},
        plain={**ORDERS, "mode": "append"},
        replace={**BARE, "mode": "replace"},
    )
    equal = why(project, 3, RowReason.EQUAL, target="replace")
    assert carrier(equal).reason == "load full"
    place.target.execute(
        "UPDATE raw.replace SET name = 'edited' WHERE id = 3",
        "DELETE FROM raw.replace WHERE id = 4",
    )
    for row, done in ((3, "changed"), (4, "removed")):
        words = f"somebody {done} the row in the target"
        why(project, row, RowReason.EDITED, words, target="replace")

    place.source.execute("UPDATE orders SET name = 'x' WHERE id = 2")
    why(project, 2, RowReason.CHANGED, target="replace")
    why(project, 1, RowReason.EQUAL, target="replace")
    project.run("versions")
    newest = why(project, 2, RowReason.EQUAL, target="versions")
    assert newest.notes == ("2 versions of it are kept; this is the newest",)
    by, (first, second) = carrier(newest), updates(place, "versions")
    assert (by.is_certain, by.update_id, by.reason) == (True, second, "load lookback")
    assert carrier(why(project, 3, target="versions")).update_id == first

    # A plain append is asked by the primary key of its source.
    place.source.execute(f"UPDATE orders SET updated_at = {STAMP.format(20)} WHERE id = 2")
    project.run("plain")
    newest = why(project, 2, RowReason.EQUAL, target="plain")
    assert newest.notes == ("2 rows of the target have this key; this is the newest",)
    place.source.execute("UPDATE orders SET name = 'y' WHERE id = 2")
    why(project, 2, RowReason.CHANGED_UNSEEN, target="plain")

    place.source.execute("DELETE FROM orders WHERE id = 6")
    for name, words, hint in (
        ("merge", "merge by a cursor does not see deleted rows", "--repair"),
        ("versions", "append keeps what it has loaded", "--full-refresh"),
        ("replace", "the next run removes it here", "tidegate run replace"),
    ):
        found = why(project, 6, RowReason.DELETED, words, target=name, hint=hint)
        assert (found.source_row, found.target_row is None) == (None, False)


@pytest.mark.chaos
def test_a_query_and_keys_of_several_columns_are_explained(make: Make) -> None:
    sync = {
        "source": "shop",
        "target": TARGET,
        "query": 'SELECT id, name AS "the Name", updated_at AS at FROM orders WHERE id <> 3 -- x',
        "key": ["the Name", "id"],
        "cursor": "at",
        "null_cursor": "raise",
    }
    project, place = make(sync)
    seed(place)
    project.run("orders")
    found = project.explain("orders", {"id": 5, "the Name": "n5"})
    assert (found.reason, found.key) == (RowReason.EQUAL, {"the Name": "n5", "id": "5"})
    gone = project.explain("orders", {"id": 3, "the Name": "n3"})
    assert gone.reason is RowReason.UNKNOWN
    assert gone.hint == "the nearest are the Name=n2 id=2 and the Name=n4 id=4"
    place.source.execute("DELETE FROM orders WHERE id = 5")
    found = project.explain("orders", {"id": 5, "the Name": "n5"})
    assert found.reason is RowReason.DELETED
    assert found.sentence.startswith("the query gives no such row any m")


def test_a_wrong_question_is_answered_with_the_right_one(make: Make) -> None:
    whole = {**BARE, "name": "whole", "source": "shop:public.bag", "mode": "replace"}
    bag = {**whole, "target": "warehouse:raw.whole"}
    again = {**ORDERS, "name": "more", "target": "warehouse:raw.more"}
    twice = {**ORDERS, "name": "twice", "target": "warehouse:raw.more"}
    project, place = make(ORDERS, bag, again, twice)
    seed(place)
    place.source.execute("CREATE TABLE bag (id bigint)")
    project.run("orders")
    key = "the key of orders is id (bigint)"
    for target, asked, words, hint in (
        ("warehouse:raw.order", {"id": 1}, "no declared sync loads", "warehouse:raw.orders"),
        ("order", {"id": 1}, "there is no sync order", "orders"),
        ("warehouse:a.b.c", {"id": 1}, "is not a table name", "schema.table"),
        ("orders", {"nr": 1}, "nr is not part of the key", key),
        ("orders", {}, "no value was given for id", key),
        ("orders", {"id": None}, "no value was given for id", key),
        ("orders", {"id": "x"}, "id = 'x' is not a bigint", key),
        ("warehouse:raw.more", {"id": 1}, "is loaded by more, twice", ""),
        ("whole", {"id": 1}, "rows of sync whole have no key", ""),
    ):
        with pytest.raises(UsageError) as raised:
            project.explain(target, asked)
        assert words in raised.value.message
        assert hint in str(raised.value.hint)


def test_the_command_prints_the_reason_both_rows_and_the_load(make: Make) -> None:
    _, place = loaded(make)
    place.source.execute("UPDATE orders SET total = NULL WHERE id = 4")
    done = tidegate(place.folder, "why", TARGET, "id=4")
    assert done.code == DONE
    lines = done.out.splitlines()
    assert lines[0] == "warehouse:raw.orders id=4: changed without raising its cursor"
    assert lines[2].startswith("  fix: see how many there are: tidegate verify orders; ")
    assert lines[3] == "  source: id=4 name=n4 total=NULL updated_at=2026-01-01 00:04:00+00"
    assert lines[4] == "  target: id=4 name=n4 total=4 updated_at=2026-01-01 00:04:00+00"
    assert lines[5].startswith(f"  brought by: {updates(place)[0]} (load range), 20")
    assert [line.split() for line in lines[7:]] == [
        ["column", "source", "target"],
        ["total", "NULL", "4"],
    ]
    document = tidegate(place.folder, "why", "orders", "id=4", "--json").document
    assert document["reason"] == "changed without raising its cursor"
    assert document["differences"] == [{"column": "total", "source": None, "target": "4"}]
    assert document["carrier"]["update_id"] == updates(place)[0]
    for wrong in (["id"], ["id=1", "id=2"], [], ["id=1", "--run-transform"]):
        assert tidegate(place.folder, "why", "orders", *wrong).code == USAGE, wrong


@pytest.mark.chaos
def test_a_row_is_found_by_index_in_a_large_source(make: Make) -> None:
    """Nothing that `why` asks of the source reads the whole of it."""
    project, place = loaded(make)
    place.source.execute(
        "ALTER TABLE orders SET (autovacuum_enabled = false)",
        f"INSERT INTO orders SELECT n, 'n', n, {STAMP.format(1)}"
        " FROM generate_series(1000, 30000) n",
        "ANALYZE orders",
    )
    with place.source.connect() as session:
        session.execute("SELECT pg_stat_force_next_flush()")
    scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'orders'"
    before = place.source.value(scans)
    why(project, 2000, RowReason.LATE)
    project.context.databases.close()
    with psycopg.connect(place.source.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_stat_force_next_flush()")
        session.execute("SELECT pg_stat_clear_snapshot()")
    assert place.source.value(scans) == before
