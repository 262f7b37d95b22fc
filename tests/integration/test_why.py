"""`why` explains one row: every reason there is, the load that brought it, and bad questions."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from integration.commands import DONE, USAGE, tidegate
from integration.conftest import Place
from integration.orders import contents, open_transaction
from integration.without_spark import Make, add_checks, make, open_without_spark
from tidegate.errors import UsageError
from tidegate.model.explanation import ColumnDifference, Explanation, Reason
from tidegate.project import Project

__all__ = ["make"]

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
    project, place = make({**ORDERS, **options}, databases=3)
    seed(place)
    project.run("orders")
    return project, place


def why(project: Project, row: int) -> Explanation:
    found = project.why(TARGET, id=row)
    assert found.key == {"id": str(row)}
    return found


def updates(place: Place) -> list[str]:
    """The loads, the first one first."""
    rows = place.target.execute(
        "SELECT update_id FROM tidegate.watermark_log WHERE update_id IS NOT NULL ORDER BY id"
    )
    return [row[0] for row in rows]


def test_an_equal_row_names_the_load_that_brought_it(make: Make) -> None:
    project, place = make({**ORDERS, "batch_rows": 3}, databases=3)
    seed(place)
    project.run("orders")
    before = contents(place.source, place.target, place.control)
    found = why(project, 5)
    assert contents(place.source, place.target, place.control) == before
    assert (found.reason, found.hint, found.differences) == (Reason.EQUAL, None, ())
    assert found.source_row == found.target_row
    assert found.source_row == {
        "id": "5",
        "name": "n5",
        "total": "5",
        "updated_at": "2026-01-01 00:05:00+00",
    }
    carrier = found.carrier
    assert carrier is not None
    assert (carrier.update_id, carrier.reason, carrier.others) == (
        updates(place)[1],
        "load range",
        0,
    )
    recorded = place.control.execute(
        "SELECT a.attempt_id, j.job_id::text FROM tidegate_control.job_attempts a"
        " JOIN tidegate_control.jobs j USING (job_id)"
    )
    assert recorded == [(carrier.attempt_id, carrier.job_id)]
    assert "tidegate run" in carrier.moved_by


def test_a_changed_row_is_told_from_a_new_one_by_the_target(make: Make) -> None:
    project, place = loaded(make)
    place.source.execute(
        f"UPDATE orders SET name = NULL, updated_at = {STAMP.format(20)} WHERE id = 3",
        f"INSERT INTO orders VALUES (10, 'new', 1, {STAMP.format(21)})",
    )
    changed, new = why(project, 3), why(project, 10)
    assert changed.reason is Reason.CHANGED
    assert "lies above the watermark (2026-01-01 00:09:00+00)" in changed.sentence
    assert changed.differences[0] == ColumnDifference("name", None, "n3")
    assert [one.column for one in changed.differences] == ["name", "updated_at"]
    assert changed.carrier is not None
    assert changed.carrier.update_id == updates(place)[0]
    assert (new.reason, new.target_row, new.carrier) == (Reason.NOT_YET, None, None)
    assert new.hint == "tidegate run orders"
    project.run("orders")
    assert why(project, 3).reason is why(project, 10).reason is Reason.EQUAL


def test_a_change_below_the_watermark_is_unseen_or_late(make: Make) -> None:
    project, place = loaded(make)
    place.source.execute(
        "UPDATE orders SET total = 77 WHERE id = 4",
        f"UPDATE orders SET total = 78, updated_at = {STAMP.format('8.5')} WHERE id = 5",
        f"UPDATE orders SET total = 79, updated_at = {STAMP.format('0.5')} WHERE id = 6",
        f"INSERT INTO orders VALUES (50, 'late', 1, {STAMP.format('2.5')})",
    )
    unseen, late, back, missing = (why(project, row) for row in (4, 5, 6, 50))
    assert unseen.reason is Reason.CHANGED_UNSEEN
    assert "changed without raising it" in unseen.sentence
    assert [one.column for one in unseen.differences] == ["total"]
    assert late.reason is Reason.LATE
    assert "newer than the target's" in late.sentence
    assert back.reason is Reason.CHANGED_UNSEEN
    assert "went back at the source" in back.sentence
    assert missing.reason is Reason.LATE
    for word in ("tidegate verify orders", "tidegate watermark rewind", "lookback"):
        assert word in str(missing.hint)


def test_within_the_lookback_the_next_run_is_the_way_out(make: Make) -> None:
    project, place = loaded(make, lookback="5 minutes")
    place.source.execute(
        f"INSERT INTO orders VALUES (50, 'late', 1, {STAMP.format('5.5')}),"
        f" (51, 'later', 1, {STAMP.format('2.5')})"
    )
    assert "the next run loads it: tidegate run orders" in str(why(project, 50).hint)
    assert "tidegate watermark rewind" in str(why(project, 51).hint)
    project.run("orders")
    found = why(project, 50)
    assert found.reason is Reason.EQUAL
    assert found.carrier is not None
    assert (found.carrier.reason, found.carrier.others) == ("load lookback", 1)
    assert why(project, 51).reason is Reason.LATE


def test_an_open_transaction_that_holds_a_row_back_is_named(make: Make) -> None:
    project, place = loaded(make)
    with open_transaction(place.source, "SELECT 1"):
        place.source.execute("INSERT INTO orders VALUES (10, 'new', 1, clock_timestamp())")
        found = why(project, 10)
    assert found.reason is Reason.HELD_BACK
    assert "held back by process" in found.sentence
    assert "(late writer)" in found.sentence
    assert why(project, 10).reason is Reason.NOT_YET


def test_a_row_stamped_in_the_future_is_above_the_horizon_of_the_clock(make: Make) -> None:
    project, place = loaded(make)
    place.source.execute("UPDATE orders SET updated_at = '2999-01-01' WHERE id = 1")
    found = why(project, 1)
    assert found.reason is Reason.HELD_BACK
    assert "held back" not in found.sentence
    assert "the target holds an older version" in found.sentence


def test_a_filtered_row_shows_the_condition_that_it_does_not_meet(make: Make) -> None:
    project, place = loaded(make, where="total < 8 -- the small ones")
    found = why(project, 9)
    assert (found.reason, found.target_row) == (Reason.FILTERED, None)
    assert "total < 8" in found.sentence
    place.source.execute("UPDATE orders SET total = NULL, updated_at = now() WHERE id = 2")
    grown = why(project, 2)
    assert grown.reason is Reason.FILTERED
    assert "holds the version that was loaded before" in grown.sentence
    assert "--full-refresh" in str(grown.hint)
    assert why(project, 3).reason is Reason.EQUAL


@pytest.mark.parametrize("policy", ["exclude", "raise", "include"])
def test_a_row_without_a_cursor_follows_its_policy(make: Make, policy: str) -> None:
    project, place = make({**ORDERS, "null_cursor": policy}, databases=2)
    seed(place, null="")
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (10, 'none', 1, NULL)")
    found = why(project, 10)
    assert found.reason is Reason.NO_CURSOR
    assert "updated_at is NULL" in found.sentence
    if policy == "include":
        project.run("orders")
        there = why(project, 10)
        assert there.reason is Reason.EQUAL
        assert there.carrier is not None
        assert there.carrier.reason == "load nulls"
    else:
        assert policy in found.sentence


@pytest.mark.parametrize("mode", ["merge", "append", "replace", "plain"])
def test_a_rejected_row_names_its_checks_and_the_load(make: Make, mode: str) -> None:
    sync = {**(BARE if mode == "replace" else ORDERS), "mode": mode, "key": "id"}
    if mode == "plain":
        sync = {**ORDERS, "mode": "append"}
    _, place = make(sync, databases=2)
    add_checks(place, no_four="total <> 4", named="name <> 'n4'")
    project = open_without_spark(place)
    seed(place)
    project.run("orders")
    found = why(project, 4)
    assert (found.reason, found.target_row) == (Reason.REJECTED, None)
    assert found.rejection is not None
    assert found.rejection.failed == ("no_four", "named")
    assert found.rejection.update_id == updates(place)[0]
    assert "rejected by no_four, named at 20" in found.sentence
    assert "the target has no row for it" in found.sentence
    place.source.execute(f"UPDATE orders SET total = 4, updated_at = {STAMP.format(20)} WHERE id=2")
    project.run("orders")
    if mode not in ("replace", "plain"):
        kept = why(project, 2)
        assert kept.reason is Reason.REJECTED
        assert "keeps its last good version" in kept.sentence
        assert kept.differences[0] == ColumnDifference("total", "4", "2")


@pytest.mark.parametrize(
    ("mode", "words", "hint"),
    [
        ("merge", "merge by a cursor does not see deleted rows", "--repair"),
        ("append", "append keeps what it has loaded", "--full-refresh"),
        ("replace", "the next run removes it here", "tidegate run orders"),
    ],
)
def test_a_deleted_row_is_still_there_until(make: Make, mode: str, words: str, hint: str) -> None:
    sync = {**(BARE if mode == "replace" else ORDERS), "mode": mode, "key": "id"}
    project, place = make(sync, databases=2)
    seed(place)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 6")
    found = why(project, 6)
    assert (found.reason, found.source_row) == (Reason.DELETED, None)
    assert found.target_row is not None
    assert words in found.sentence
    assert hint in str(found.hint)


def test_a_row_that_never_was_shows_its_neighbours(make: Make) -> None:
    project, place = loaded(make)
    place.source.execute("DELETE FROM orders WHERE id IN (5, 6)")
    place.target.execute("DELETE FROM raw.orders WHERE id IN (5, 6)")
    found = why(project, 5)
    assert found.reason is Reason.UNKNOWN
    assert found.hint == "the nearest are id=4 and id=7"
    assert why(project, 1000).hint == "the nearest are id=9"


def test_before_the_first_run_nothing_is_loaded_and_nothing_is_made(make: Make) -> None:
    project, place = make(ORDERS, databases=2)
    seed(place)
    before = contents(place.source, place.target)
    found = why(project, 5)
    assert (found.reason, found.sentence) == (Reason.NOT_YET, "sync orders has never run")
    assert contents(place.source, place.target) == before


def test_a_column_that_the_target_lacks_is_named_and_the_others_are_compared(make: Make) -> None:
    project, place = loaded(make)
    place.source.execute("ALTER TABLE orders ADD colour text DEFAULT 'red', ADD size int")
    place.target.execute("UPDATE raw.orders SET name = 'edited' WHERE id = 4")
    same, other = why(project, 3), why(project, 4)
    assert (same.reason, same.notes) == (Reason.EQUAL, ("the target has no column colour, size",))
    assert [one.column for one in other.differences] == ["name"]


def test_a_dropped_target_is_mentioned(make: Make) -> None:
    project, place = loaded(make)
    place.target.execute("DROP TABLE raw.orders")
    found = why(project, 5)
    assert found.reason is Reason.LATE
    assert found.notes == ("warehouse:raw.orders does not exist any more",)


def test_a_row_that_a_person_skipped_names_the_person_and_the_reason(make: Make) -> None:
    project, place = loaded(make)
    place.source.execute(f"INSERT INTO orders VALUES (10, 'old', 1, {STAMP.format(15)})")
    project.watermark("orders").set("2026-01-01 00:30:00+00", reason="not wanted")
    found = why(project, 10)
    assert found.reason is Reason.SKIPPED
    assert "moved the watermark past it (not wanted)" in found.sentence


def test_after_a_rewind_the_last_of_the_loads_is_named(make: Make) -> None:
    project, place = loaded(make)
    project.watermark("orders").rewind("2026-01-01 00:04:00+00", reason="again")
    project.run("orders")
    twice, once = why(project, 5).carrier, why(project, 4).carrier
    assert twice is not None
    assert once is not None
    first, second = updates(place)
    assert (twice.update_id, twice.generation, twice.others) == (second, 1, 1)
    assert (once.update_id, once.others) == (first, 0)


def test_a_full_refresh_has_brought_every_row(make: Make) -> None:
    project, place = loaded(make)
    project.run("orders", full_refresh=True)
    carrier = why(project, 2).carrier
    assert carrier is not None
    assert (carrier.update_id, carrier.reason) == (updates(place)[-1], "load full")


def test_rows_of_a_split_tie_may_have_come_with_any_part_of_it(make: Make) -> None:
    project, place = make({**ORDERS, "batch_rows": 3}, databases=2)
    seed(place)
    place.source.execute(
        f"UPDATE orders SET updated_at = {STAMP.format(5)} WHERE id < 9",
    )
    project.run("orders", max_batches=2)
    half = why(project, 6)
    assert half.reason is Reason.EQUAL
    assert half.carrier is not None
    assert (half.carrier.reason, half.carrier.others) == ("load tie", 1)
    assert why(project, 7).reason is Reason.NOT_YET
    project.run("orders")
    carrier, after = why(project, 7).carrier, why(project, 9).carrier
    assert carrier is not None
    assert (carrier.reason, carrier.others) == ("load tie", 2)
    assert after is not None
    assert (after.reason, after.others) == ("load range", 0)


def test_of_kept_versions_the_row_itself_names_its_load(make: Make) -> None:
    project, place = loaded(make, mode="append", key="id", lookback="1 hour")
    place.source.execute("UPDATE orders SET name = 'x' WHERE id = 2")
    project.run("orders")
    found = why(project, 2)
    assert found.reason is Reason.EQUAL
    assert found.notes == ("2 versions of it are kept; this is the newest",)
    assert found.carrier is not None
    assert found.carrier.is_certain
    assert (found.carrier.update_id, found.carrier.reason) == (updates(place)[1], "load lookback")
    other = why(project, 3).carrier
    assert other is not None
    assert other.update_id == updates(place)[0]


def test_a_plain_append_is_asked_by_the_primary_key_of_its_source(make: Make) -> None:
    project, place = loaded(make, mode="append")
    place.source.execute(
        f"UPDATE orders SET name = 'x', updated_at = {STAMP.format(20)} WHERE id = 2"
    )
    project.run("orders")
    found = why(project, 2)
    assert found.reason is Reason.EQUAL
    assert found.notes == ("2 rows of the target have this key; this is the newest",)
    place.source.execute("UPDATE orders SET name = 'y' WHERE id = 2")
    assert why(project, 2).reason is Reason.CHANGED_UNSEEN


def test_a_replaced_row_is_told_by_whether_the_source_changed(make: Make) -> None:
    project, place = make({**BARE, "mode": "replace"}, databases=2)
    seed(place)
    project.run("orders")
    equal = why(project, 3)
    assert equal.reason is Reason.EQUAL
    assert equal.carrier is not None
    assert equal.carrier.reason == "load full"
    place.target.execute(
        "UPDATE raw.orders SET name = 'edited' WHERE id = 3", "DELETE FROM raw.orders WHERE id = 4"
    )
    edited, removed = why(project, 3), why(project, 4)
    assert edited.reason is removed.reason is Reason.EDITED
    assert "somebody changed the row in the target" in edited.sentence
    assert "somebody removed the row in the target" in removed.sentence
    place.source.execute("UPDATE orders SET name = 'y' WHERE id = 5")
    assert why(project, 5).reason is Reason.CHANGED
    assert why(project, 6).reason is Reason.EQUAL


def test_a_query_and_keys_of_several_columns_are_explained(make: Make) -> None:
    sync = {
        "source": "shop",
        "target": TARGET,
        "query": 'SELECT id, name AS "the Name", updated_at AS at FROM orders WHERE id <> 3 -- x',
        "key": ["the Name", "id"],
        "cursor": "at",
        "null_cursor": "raise",
    }
    project, place = make(sync, databases=2)
    seed(place)
    project.run("orders")
    found = project.explain("orders", {"id": 5, "the Name": "n5"})
    assert (found.reason, found.key) == (Reason.EQUAL, {"the Name": "n5", "id": "5"})
    gone = project.explain("orders", {"id": 3, "the Name": "n3"})
    assert gone.reason is Reason.UNKNOWN
    assert gone.hint == "the nearest are the Name=n2 id=2 and the Name=n4 id=4"
    place.source.execute("DELETE FROM orders WHERE id = 5")
    found = project.explain("orders", {"id": 5, "the Name": "n5"})
    assert (found.reason, found.sentence[:33]) == (
        Reason.DELETED,
        "the query gives no such row any m",
    )


def test_of_rows_that_share_a_key_the_newest_is_looked_at(make: Make) -> None:
    project, place = make({**ORDERS, "key": "id", "duplicates": "newest"}, databases=2)
    seed(place, key="NOT NULL")
    # As text 9 would be above 10.
    place.source.execute(
        "ALTER TABLE orders ALTER updated_at DROP DEFAULT, ALTER updated_at TYPE bigint"
        " USING extract(minute FROM updated_at)::bigint",
        "INSERT INTO orders VALUES (9, 'newer', 1, 10)",
    )
    project.run("orders")
    found = why(project, 9)
    assert found.reason is Reason.EQUAL
    assert found.source_row is not None
    assert found.source_row["name"] == "newer"
    assert found.notes == ("2 rows of the source have this key; this is the newest",)


@pytest.mark.parametrize(
    ("target", "key", "words", "hint"),
    [
        ("warehouse:raw.order", {"id": 1}, "no declared sync loads", "warehouse:raw.orders"),
        ("order", {"id": 1}, "there is no sync order", "orders"),
        ("warehouse:a.b.c", {"id": 1}, "is not a table name", "schema.table"),
        ("orders", {"nr": 1}, "nr is not part of the key", r"the key of orders is id (bigint)"),
        ("orders", {}, "no value was given for id", "the key of orders is id (bigint)"),
        ("orders", {"id": None}, "no value was given for id", "the key of orders is id (bigint)"),
        ("orders", {"id": "x"}, "id = 'x' is not a bigint", "the key of orders is id (bigint)"),
    ],
)
def test_a_wrong_question_is_answered_with_the_right_one(
    make: Make, target: str, key: dict[str, Any], words: str, hint: str
) -> None:
    project, _ = loaded(make)
    with pytest.raises(UsageError) as raised:
        project.explain(target, key)
    assert words in raised.value.message
    assert hint in str(raised.value.hint)


def test_two_syncs_of_one_table_and_rows_without_a_key_are_refused(make: Make) -> None:
    both = {**ORDERS, "name": "more"}
    whole = {**BARE, "name": "whole", "mode": "replace", "target": "warehouse:raw.whole"}
    project, place = make(ORDERS, both, whole)
    seed(place, key="NOT NULL")
    with pytest.raises(UsageError, match="is loaded by orders, more"):
        project.why(TARGET, id=1)
    with pytest.raises(UsageError, match="rows of sync whole have no key"):
        project.why("whole", id=1)


def test_the_command_prints_the_reason_both_rows_and_the_load(make: Make) -> None:
    project, place = loaded(make)
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
    assert tidegate(place.folder, "why", "orders", "id").code == USAGE
    assert tidegate(place.folder, "why", "orders", "id=1", "id=2").code == USAGE
    assert tidegate(place.folder, "why", "orders").code == USAGE
    assert tidegate(place.folder, "why", "orders", "id=1", "--run-transform").code == USAGE
    assert project.context.spark.started is False


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
    assert why(project, 2000).reason is Reason.LATE
    project.context.databases.close()
    with psycopg.connect(place.source.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_stat_force_next_flush()")
        session.execute("SELECT pg_stat_clear_snapshot()")
    assert place.source.value(scans) == before
