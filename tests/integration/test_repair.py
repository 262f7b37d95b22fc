"""`verify --repair` and `backfill` load ranges again, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from in_process import InProcess
from integration.commands import DONE, FAILED, USAGE
from integration.conftest import Make, MakePlace, Place
from integration.here import tidegate
from integration.lakes import make_lake_project
from integration.orders import CREATE, FILL, ORDERS
from tidegate.core.batch import LoadResult
from tidegate.core.errors import DeclarationError, DestinationError, TidegateError, UsageError
from tidegate.load import context
from tidegate.load.engine import Transfer
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.verify import compare as compare_module
from tidegate.verify.report import Repair, RowDifference, Verdict, Verification

MANY = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + n * interval '1 second'"
    " FROM generate_series(1, 1200) n"
)
SAME = "SELECT id, total::text, updated_at::text FROM {} ORDER BY id"
JOBS = "SELECT count(*) FROM tidegate_control.jobs"


def loaded(make: Make, fill: str = FILL, **options: Any) -> tuple[Project, Place]:
    project, place = make({**ORDERS, **options.pop("sync", {})}, **options)
    place.source.execute(*CREATE, fill)
    project.run("orders")
    return project, place


def repaired(found: Verification) -> tuple[Repair, RowDifference]:
    assert found.verdict is Verdict.EQUAL
    assert found.repair is not None
    assert found.repair.difference is not None
    return found.repair, found.repair.difference


def kinds(was: RowDifference) -> tuple[int, int, int]:
    return was.missing, was.extra, was.different


def assert_same(place: Place) -> None:
    assert place.target.execute(SAME.format("raw.orders")) == place.source.execute(
        SAME.format("orders")
    )


def damage(place: Place) -> None:
    """Rows that a cursor never shows: late, deleted, changed on either side."""
    place.source.execute(
        "INSERT INTO orders VALUES (9001, 1, '2026-01-01 00:00:30+00')",
        "DELETE FROM orders WHERE id IN (7, 8)",
        "UPDATE orders SET total = total + 1 WHERE id = 3",
    )
    place.target.execute(
        "DELETE FROM raw.orders WHERE id = 1",
        # A cursor above the source's: the guard of a merge would keep this row.
        "UPDATE raw.orders SET total = -5, updated_at = updated_at + interval '1 hour'"
        " WHERE id = 5",
    )


def test_what_differs_is_put_right_by_a_load_that_leaves_the_watermark_alone(make: Make) -> None:
    project, place = loaded(make, databases=3)
    before = project.watermark("orders").value
    assert project.verify("orders", repair=True).repair is None
    assert place.control.value(JOBS) == 1
    damage(place)
    repair, was = repaired(project.verify("orders", repair=True))
    assert (kinds(was), repair.loads) == ((2, 2, 2), 1)
    assert_same(place)
    moves = place.target.execute(
        "SELECT old_watermark, new_watermark, reason, m.update_id IS NOT NULL"
        " FROM tidegate.watermark_log l LEFT JOIN tidegate.table_updates m USING (update_id)"
        " ORDER BY l.version DESC LIMIT 1"
    )
    assert moves == [(before, before, "load repair", True)]
    jobs = place.control.execute("SELECT kind, status FROM tidegate_control.jobs ORDER BY job_id")
    assert jobs == [("sync", "done"), ("repair", "done")]

    # Rows above the watermark are left to the next run.
    place.source.execute(
        "UPDATE orders SET total = -1, updated_at = now() WHERE id = 2",
        "INSERT INTO orders VALUES (12, 1)",
        "DELETE FROM orders WHERE id = 4",
    )
    _, was = repaired(project.verify("orders", repair=True))
    assert kinds(was) == (0, 1, 0)
    left = place.target.execute("SELECT id, total::int FROM raw.orders WHERE id IN (2, 4, 12)")
    assert left == [(2, 2)]
    assert project.run("orders").rows == 2
    assert_same(place)

    # All rows may be gone.
    place.source.execute("DELETE FROM orders")
    _, was = repaired(project.verify("orders", repair=True))
    assert kinds(was) == (0, 9, 0)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 0
    place.source.execute("INSERT INTO orders VALUES (1, 1)")
    project.run("orders")
    assert_same(place)


def test_only_the_differing_ranges_are_loaded_again_each_load_with_a_marker(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded(make, MANY, sync={"batch_rows": 320})
    place.target.execute("UPDATE raw.orders SET total = 0 WHERE id IN (10, 1100)")
    place.source.execute("DELETE FROM orders WHERE id = 77")
    repair, was = repaired(project.verify("orders", repair=True))
    assert (kinds(was), repair.changed) == ((0, 1, 2), 3)
    assert repair.rows < 30
    assert_same(place)

    # What differs is cut finer where that spares rows.
    place.target.execute("UPDATE raw.orders SET total = 0 WHERE id = 10")
    with monkeypatch.context() as coarse:
        coarse.setattr(compare_module, "BITS", 2)
        coarse.setattr(compare_module, "DETAIL_ROWS", 100)
        repair, was = repaired(project.verify("orders", repair=True))
    assert (kinds(was), repair.rows) == ((0, 0, 1), 1)
    assert_same(place)

    markers = "SELECT count(*) FROM tidegate.table_updates"
    before = place.target.value(markers)
    place.target.execute("UPDATE raw.orders SET total = total + 1")
    place.source.execute("DELETE FROM orders WHERE id % 10 = 0")
    repair, was = repaired(project.verify("orders", repair=True))
    assert (kinds(was), was.complete) == ((0, 120, 1079), True)
    assert repair.loads == place.target.value(markers) - before >= 4
    assert_same(place)


@pytest.mark.chaos
def test_mode_condition_and_columns_are_respected_and_keys_of_any_type(make: Make) -> None:
    some = {"mode": "delete_insert", "where": "id <= 9", "columns": ["id", "total"]}
    odd = {**ORDERS, "name": "odd", "source": "shop:odd", "target": "warehouse:raw.odd"}
    project, place = make({**ORDERS, **some}, odd, databases=2)
    place.source.execute(
        *CREATE,
        FILL,
        "CREATE TYPE kind AS ENUM ('a', 'b')",
        "CREATE TABLE odd (name text, day date, kind kind, price numeric, tags text[],"
        " updated_at timestamptz NOT NULL, PRIMARY KEY (name, day, kind))",
        "INSERT INTO odd SELECT 'n ' || n, date '2026-01-01' + n, 'a', n / 3.0,"
        " ARRAY['x', n::text], timestamptz '2026-01-01' + n * interval '1 hour'"
        " FROM generate_series(1, 50) n",
    )
    project.run("orders")
    project.run("odd")
    place.source.execute(
        "DELETE FROM orders WHERE id = 3",
        "UPDATE orders SET total = 50 WHERE id = 4",
        "DELETE FROM odd WHERE name = 'n 7'",
        "UPDATE odd SET kind = 'b' WHERE name = 'n 8'",
        "UPDATE odd SET tags = NULL WHERE name = 'n 9'",
    )
    repaired(project.verify("orders", repair=True))
    rows = place.target.execute("SELECT id, total::int FROM raw.orders ORDER BY id")
    assert rows == [(1, 1), (2, 2), (4, 50), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9)]
    _, was = repaired(project.verify("odd", repair=True))
    assert kinds(was) == (1, 2, 1)


def test_what_cannot_be_repaired_by_key_or_not_yet_is_refused(make: Make) -> None:
    bare = {name: value for name, value in ORDERS.items() if name != "cursor"}
    declared: dict[str, dict[str, Any]] = {
        "versions": {**ORDERS, "mode": "append", "key": ["id"]},
        "replace": {**bare, "mode": "replace"},
        "drifted": {**ORDERS, "source": "shop:strict"},
        "begun": ORDERS,
    }
    project, place = make(
        *({**one, "name": n, "target": f"warehouse:raw.{n}"} for n, one in declared.items())
    )
    place.source.execute(
        *CREATE,
        FILL,
        "CREATE TABLE strict (id bigint PRIMARY KEY, total numeric(10,2) NOT NULL,"
        " updated_at timestamptz NOT NULL)",
        "INSERT INTO strict TABLE orders",
    )
    for name in declared:
        project.run(name)
    place.source.execute("ALTER TABLE strict ALTER total DROP NOT NULL")
    for table in ("versions_raw", "replace", "drifted", "begun"):
        place.target.execute(f"DELETE FROM raw.{table} WHERE id = 4")
    place.target.execute(
        "UPDATE tidegate.etl_state SET declaration ="
        " declaration || jsonb_build_object('refreshing', version)"
        " WHERE table_name = 'raw.begun'"
    )
    before = place.control.value(JOBS)
    kind: type[TidegateError]
    for name, kind, says, hint in (
        ("versions", DeclarationError, "append keeps every row", "--full-refresh"),
        ("replace", DeclarationError, "replace", "--full-refresh"),
        ("drifted", DestinationError, "changed since the last load", "tidegate run drifted"),
        ("begun", DeclarationError, "a full refresh was begun", ""),
    ):
        with pytest.raises(kind, match=says) as refused:
            project.verify(name, repair=True)
        assert hint in str(refused.value.hint), name
        if hint == "--full-refresh":
            assert place.control.value(JOBS) == before, name


def test_the_command_repairs_and_exits_with_zero(make: Make) -> None:
    _, place = loaded(make)
    damage(place)
    command = ["verify", "orders"]
    assert tidegate(place.folder, *command).code == FAILED
    done = tidegate(place.folder, *command, "--repair")
    assert done.code == DONE, done
    assert "repaired: 2 missing, 2 extra, 2 different, in 1 load" in done.said
    assert "rows equal" in done.out
    again = tidegate(place.folder, *command, "--repair", "--json")
    assert again.code == DONE
    (document,) = json.loads(again.out)
    assert (document["verdict"], document["repair"]) == ("equal", None)


# Ten days with ten orders each, but none on the fifth.
DAYS = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + (n / 10) * interval '1 day'"
    " + interval '1 hour' FROM generate_series(0, 99) n WHERE n / 10 <> 4"
)
MARKERS = "SELECT count(*) FROM tidegate.table_updates"


def late(place: Place) -> None:
    """Rows and changes of the third day and the ninth that no watermark shows."""
    place.source.execute(
        "INSERT INTO orders VALUES (500, 1, '2026-01-03 05:00+00')",
        "UPDATE orders SET total = total + 1000 WHERE id BETWEEN 20 AND 29",
        "UPDATE orders SET total = total + 1000 WHERE id BETWEEN 80 AND 89",
    )


def totals(place: Place, *ids: int) -> list[int]:
    rows: dict[int, int] = dict(place.target.execute("SELECT id, total::int FROM raw.orders"))
    return [rows[one] for one in ids]


def test_a_range_is_loaded_in_chunks_each_with_a_marker_and_no_more(make: Make) -> None:
    project, place = loaded(make, DAYS, databases=2)
    before = project.watermark("orders").value
    markers = place.target.value(MARKERS)
    late(place)
    # The guard keeps a row of the target that is newer.
    place.target.execute(
        "UPDATE raw.orders SET total = 7, updated_at = updated_at + interval '1 day' WHERE id = 21"
    )
    report = project.backfill("orders", low="2026-01-02", high="2026-01-07")
    assert (report.chunks, report.loaded, report.empty, report.already) == (5, 4, 1, 0)
    assert (report.rows, report.changed) == (41, 10)
    assert totals(place, 20, 500, 80, 21) == [1020, 1, 80, 7]
    assert place.target.value(MARKERS) == markers + 4
    assert project.watermark("orders").value == before
    job = place.control.execute(
        "SELECT kind, status, payload->>'from', payload->>'chunk' FROM tidegate_control.jobs"
        " ORDER BY job_id DESC LIMIT 1"
    )
    assert job == [("backfill", "done", "2026-01-02 00:00:00+00", "1 day")]
    # The end of the range is not in it.
    at = "2026-01-03 05:00+00"
    assert project.backfill("orders", low="2026-01-03 01:30+00", high=at).rows == 0
    assert project.backfill("orders", low=at, high="2026-01-03 05:00:01+00").rows == 1
    place.source.execute("INSERT INTO orders VALUES (1000, 1)")
    assert project.run("orders").rows == 1


def test_one_that_did_not_come_to_its_end_goes_on_and_a_finished_one_begins_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded(make, DAYS)
    late(place)
    original = Transfer.add
    seen: list[Any] = []

    def fails(transfer: Transfer, load: LoadResult) -> None:
        original(transfer, load)
        seen.append(load)
        if len(seen) == 2:
            raise UsageError("interrupted", None)

    monkeypatch.setattr(Transfer, "add", fails)
    wanted = {"low": "2026-01-02", "high": "2026-01-07", "chunk": "1 day"}
    with pytest.raises(TidegateError, match="interrupted"):
        project.backfill("orders", **wanted)
    on = project.backfill("orders", **wanted)
    assert (on.already, on.loaded, on.empty) == (2, 2, 1)
    for _ in range(2):
        again = project.backfill("orders", **wanted)
        assert (again.already, again.loaded, again.changed) == (0, 4, 0)
    # Another cut is another backfill.
    other = project.backfill("orders", **{**wanted, "chunk": "2 days"})
    assert (other.chunks, other.already) == (3, 0)


# What the cursor of row n is, the range and how it is cut; how many chunks and rows that makes.
CURSORS = {
    "integer": ("n", ("10", "35", "10"), (3, 25)),
    "bigint": ("n * 10", ("-5", "101", None), (1, 11)),
    "date": ("date '2026-01-01' + n", ("2026-01-10", "2026-02-10", "1 month"), (1, 31)),
    "timestamp": (
        "timestamp '2026-01-01' + n * interval '1 hour'",
        ("2026-01-01 10:00", "2026-01-01 20:00", "3 hours"),
        (4, 10),
    ),
}


def test_every_type_of_cursor_can_be_cut(make: Make) -> None:
    """Before the first run, which then loads everything."""
    project, place = make(
        *({**ORDERS, "name": one, "source": f"shop:by_{one}", "target": f"warehouse:raw.{one}",
           "cursor": "at", "lookback": "2 days" if one == "date" else None} for one in CURSORS)
    )  # fmt: skip
    for kind, (values, (low, high, chunk), found) in CURSORS.items():
        place.source.execute(
            f"CREATE TABLE by_{kind} (id int PRIMARY KEY, at {kind} NOT NULL)",
            f"INSERT INTO by_{kind} SELECT n, {values} FROM generate_series(0, 99) n",
        )
        report = project.backfill(kind, low=low, high=high, chunk=chunk)
        assert (report.chunks, report.rows) == found, kind
    project.run("date")
    assert project.verify("date").verdict is Verdict.EQUAL


@pytest.mark.chaos
def test_append_with_a_key_gets_what_is_missing_once(make: Make) -> None:
    project, place = loaded(make, DAYS, sync={"mode": "append", "key": ["id"]})
    late(place)
    for _ in range(2):
        project.backfill("orders", low="2026-01-01", high="2026-02-01", chunk="15 days")
    assert place.target.value("SELECT count(*) FROM raw.orders_raw") == 90 + 1 + 20
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_what_cannot_be_backfilled_is_refused_before_there_is_a_job(make: Make) -> None:
    bare = {name: one for name, one in ORDERS.items() if name != "cursor"}
    append = {**ORDERS, "name": "append", "mode": "append", "target": "warehouse:raw.a"}
    whole = {**bare, "name": "whole", "mode": "replace", "target": "warehouse:raw.w"}
    project, place = make(ORDERS, append, whole)
    place.source.execute(*CREATE, DAYS)
    given: dict[str, str]
    for name, given, says in (
        ("append", {}, "rows have no key"),
        ("whole", {}, "has no cursor"),
        ("orders", {"low": "yesterday-ish"}, "cannot be read"),
        ("orders", {"high": "2026-01-01"}, "is not above --from"),
        ("orders", {"chunk": "-1 day"}, "leads nowhere"),
        ("orders", {"chunk": "1 furlong"}, "cannot be read"),
        ("orders", {"chunk": "1 second", "high": "2026-01-02 03:47"}, "more than 100,000 chunks"),
    ):
        with pytest.raises(UsageError, match=says):
            project.backfill(name, **{"low": "2026-01-01", "high": "2026-01-05", **given})
    assert place.control.value("SELECT count(*) FROM tidegate_control.jobs") == 0
    words = ("backfill", "orders", "--from", "2026-01-01", "--to", "2026-01-06")
    wrong = tidegate(place.folder, *words, "--param", "a=b")
    assert (wrong.code, "--param is for tasks" in wrong.said) == (USAGE, True)


def test_a_lake_is_backfilled_and_its_last_chunk_may_be_empty(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    sync = {**ORDERS, "target": "lake:raw.orders"}
    project, place = make_lake_project(make_place, warm_spark, sync)
    place.source.execute(*CREATE, DAYS)
    project.run("orders")
    late(place)
    wanted = {"low": "2026-01-01", "high": "2026-01-20", "chunk": "10 days"}
    report = project.backfill("orders", **wanted)
    assert (report.chunks, report.loaded, report.rows, report.changed) == (2, 2, 91, 21)
    assert project.verify("orders").verdict is Verdict.EQUAL
    again = project.backfill("orders", **wanted)
    assert (again.already, again.changed) == (0, 0)


def test_the_command_tells_what_was_loaded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "Stager", InProcess)
    _, place = loaded(make, DAYS)
    late(place)
    given = ("backfill", "orders", "--from", "2026-01-01", "--to", "2026-01-06")
    done = tidegate(place.folder, *given, "--chunk", "5 days", "--json")
    assert done.code == DONE, done
    found = done.document
    assert (found["loaded"], found["empty"], found["rows"]) == (1, 0, 41)
