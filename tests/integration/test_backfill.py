"""`backfill` of a sync loads a range again, in chunks, and leaves the watermark alone."""

from __future__ import annotations

from typing import Any

import pytest

from in_process import InProcess
from integration.commands import DONE, USAGE
from integration.conftest import MakePlace, Place
from integration.here import tidegate
from integration.lakes import make_lake_project
from integration.orders import CREATE, ORDERS
from integration.without_spark import Make, make
from tidegate.core.batch import LoadResult
from tidegate.core.errors import TidegateError, UsageError
from tidegate.load import context
from tidegate.load.engine import Transfer
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.verify.report import Verdict

__all__ = ["make"]

# Ten days with ten orders each, but none on the fifth.
FILL = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + (n / 10) * interval '1 day'"
    " + interval '1 hour' FROM generate_series(0, 99) n WHERE n / 10 <> 4"
)
MARKERS = "SELECT count(*) FROM tidegate.table_updates"


def loaded(make: Make, **options: Any) -> tuple[Project, Place]:
    project, place = make({**ORDERS, **options.pop("sync", {})}, **options)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    return project, place


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
    project, place = loaded(make, databases=2)
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
    project, place = loaded(make)
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
    project, place = loaded(make, sync={"mode": "append", "key": ["id"]})
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
    place.source.execute(*CREATE, FILL)
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
    place.source.execute(*CREATE, FILL)
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
    _, place = loaded(make)
    late(place)
    given = ("backfill", "orders", "--from", "2026-01-01", "--to", "2026-01-06")
    done = tidegate(place.folder, *given, "--chunk", "5 days", "--json")
    assert done.code == DONE, done
    found = done.document
    assert (found["loaded"], found["empty"], found["rows"]) == (1, 0, 41)
