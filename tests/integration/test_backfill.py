"""`backfill` of a sync loads a range again, in chunks, and leaves the watermark alone."""

from __future__ import annotations

from typing import Any

import pytest

from integration.commands import tidegate
from integration.conftest import MakePlace
from integration.lakes import make_lake_project
from integration.orders import CREATE, ORDERS
from tidegate.errors import TidegateError, UsageError
from tidegate.model.verification import Verdict
from tidegate.project import Project
from tidegate.runtime import backfilling
from tidegate.spark.session import SparkSessions

# Ten days with ten orders each, but none on the fifth.
FILL = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + (n / 10) * interval '1 day'"
    " + interval '1 hour' FROM generate_series(0, 99) n WHERE n / 10 <> 4"
)
SAME = "SELECT id, total::text, updated_at::text FROM {} ORDER BY id"
MARKERS = "SELECT count(*) FROM tidegate.table_updates"


def loaded(make_project: Any, **options: Any) -> tuple[Project, Any]:
    sync = {**ORDERS, **options.pop("sync", {})}
    project, place = make_project(sync, **options)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    return project, place


def late(place: Any) -> None:
    """Rows and changes of the third day that no watermark shows."""
    place.source.execute(
        "INSERT INTO orders VALUES (500, 1, '2026-01-03 05:00+00')",
        "UPDATE orders SET total = total + 1000 WHERE id BETWEEN 20 AND 29",
        "UPDATE orders SET total = total + 1000 WHERE id BETWEEN 80 AND 89",
    )


def totals(place: Any, *ids: int) -> list[int]:
    rows = place.target.execute("SELECT id, total::int FROM raw.orders")
    return [dict(rows)[one] for one in ids]


def test_a_range_is_loaded_in_chunks_each_with_a_marker_and_no_more(make_project: Any) -> None:
    project, place = loaded(make_project, databases=2)
    before = project.watermark("orders").value
    markers = place.target.value(MARKERS)
    late(place)
    report = project.backfill("orders", low="2026-01-02", high="2026-01-07")
    assert (report.chunks, report.loaded, report.empty, report.already) == (5, 4, 1, 0)
    assert (report.rows, report.changed) == (41, 11)
    assert totals(place, 20, 500, 80) == [1020, 1, 80]
    assert place.target.value(MARKERS) == markers + 4
    assert project.watermark("orders").value == before
    job = place.control.execute(
        "SELECT kind, status, payload->>'from', payload->>'chunk' FROM tidegate_control.jobs"
        " ORDER BY job_id DESC LIMIT 1"
    )
    assert job == [("backfill", "done", "2026-01-02 00:00:00+00", "1 day")]
    place.source.execute("INSERT INTO orders VALUES (1000, 1)")
    assert project.run("orders").rows == 1


def test_the_end_of_the_range_is_not_in_it(make_project: Any) -> None:
    project, place = loaded(make_project)
    late(place)
    at = "2026-01-03 05:00+00"
    assert project.backfill("orders", low="2026-01-03 01:30+00", high=at).rows == 0
    assert project.backfill("orders", low=at, high="2026-01-03 05:00:01+00").rows == 1


def test_a_newer_row_of_the_target_is_kept_by_the_guard(make_project: Any) -> None:
    project, place = loaded(make_project)
    place.target.execute(
        "UPDATE raw.orders SET total = 7, updated_at = updated_at + interval '1 day' WHERE id = 20"
    )
    project.backfill("orders", low="2026-01-03", high="2026-01-04")
    assert totals(place, 20) == [7]


def test_one_that_did_not_come_to_its_end_goes_on_and_a_finished_one_begins_again(
    make_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded(make_project)
    late(place)
    original = backfilling.record_load
    seen: list[Any] = []

    def fails(attempt: Any, load: Any) -> None:
        original(attempt, load)
        seen.append(load)
        if len(seen) == 2:
            raise UsageError("interrupted", None)

    monkeypatch.setattr(backfilling, "record_load", fails)
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


@pytest.mark.parametrize(
    ("kind", "values", "given", "chunks", "rows"),
    [
        ("integer", "n", {"low": "10", "high": "35", "chunk": "10"}, 3, 25),
        ("bigint", "n * 10", {"low": "-5", "high": "101"}, 1, 11),
        ("date", "date '2026-01-01' + n", {"low": "2026-01-10", "high": "2026-02-10",
                                           "chunk": "1 month"}, 1, 31),
        ("timestamp", "timestamp '2026-01-01' + n * interval '1 hour'",
         {"low": "2026-01-01 10:00", "high": "2026-01-01 20:00", "chunk": "3 hours"}, 4, 10),
    ],
)  # fmt: skip
def test_every_type_of_cursor_can_be_cut(
    make_project: Any, kind: str, values: str, given: dict[str, str], chunks: int, rows: int
) -> None:
    sync = {**ORDERS, "cursor": "at", "lookback": "2 days" if kind == "date" else None}
    project, place = make_project({name: value for name, value in sync.items() if value})
    place.source.execute(
        f"CREATE TABLE orders (id int PRIMARY KEY, at {kind} NOT NULL)",
        f"INSERT INTO orders SELECT n, {values} FROM generate_series(0, 99) n",
    )
    report = project.backfill("orders", **given)
    assert (report.chunks, report.rows) == (chunks, rows)
    # Before the first run, which then loads everything.
    project.run("orders")
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_append_with_a_key_gets_what_is_missing_once(make_project: Any) -> None:
    project, place = loaded(make_project, sync={"mode": "append", "key": ["id"]})
    late(place)
    for _ in range(2):
        project.backfill("orders", low="2026-01-01", high="2026-02-01", chunk="5 days")
    assert place.target.value("SELECT count(*) FROM raw.orders_raw") == 90 + 1 + 20
    assert project.verify("orders").verdict is Verdict.EQUAL


@pytest.mark.parametrize(
    ("sync", "given", "says"),
    [
        ({"mode": "append"}, {}, "rows have no key"),
        ({"mode": "replace", "cursor": None}, {}, "has no cursor"),
        ({}, {"low": "yesterday-ish"}, "cannot be read"),
        ({}, {"high": "2026-01-01"}, "is not above --from"),
        ({}, {"chunk": "-1 day"}, "leads nowhere"),
        ({}, {"chunk": "1 furlong"}, "cannot be read"),
        ({}, {"chunk": "1 second", "high": "2027-01-01"}, "more than 100,000 chunks"),
    ],
)
def test_what_cannot_be_backfilled_is_refused_before_there_is_a_job(
    make_project: Any, sync: dict[str, Any], given: dict[str, str], says: str
) -> None:
    declared = {name: one for name, one in {**ORDERS, **sync}.items() if one is not None}
    project, place = make_project(declared)
    place.source.execute(*CREATE, FILL)
    wanted = {"low": "2026-01-01", "high": "2026-01-05", **given}
    with pytest.raises(UsageError, match=says):
        project.backfill("orders", **wanted)
    assert place.control.value("SELECT to_regclass('tidegate_control.jobs')") is None


def test_a_lake_is_backfilled_and_its_last_chunk_may_be_empty(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    sync = {**ORDERS, "target": "lake:raw.orders"}
    project, place = make_lake_project(make_place, warm_spark, sync, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    late(place)
    wanted = {"low": "2026-01-01", "high": "2026-01-20", "chunk": "10 days"}
    report = project.backfill("orders", **wanted)
    assert (report.chunks, report.loaded, report.rows, report.changed) == (2, 2, 91, 21)
    assert project.verify("orders").verdict is Verdict.EQUAL
    again = project.backfill("orders", **wanted)
    assert (again.already, again.changed) == (0, 0)


def test_the_command_takes_a_sync_and_tells_each_chunk(make_project: Any) -> None:
    _, place = loaded(make_project)
    late(place)
    given = ("backfill", "orders", "--from", "2026-01-01", "--to", "2026-01-06")
    done = tidegate(place.folder, *given, "--chunk", "1 day", "--json")
    assert done.code == 0, done.said
    found = done.document
    assert (found["loaded"], found["empty"], found["rows"]) == (5, 0, 41)
    wrong = tidegate(place.folder, *given, "--param", "a=b")
    assert (wrong.code, "--param is for tasks" in wrong.said) == (2, True)
