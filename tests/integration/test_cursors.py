"""Cursors that come late: what a lookback finds, and an xid8 column below the oldest open one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from integration.conftest import Make, MakeProject, Place
from integration.orders import CREATE, FILL, ORDERS, plan_one
from integration.test_snapshot_sync import plan, same, verify
from tidegate.admin.status import SyncStatus, list_syncs, read_status
from tidegate.cli.main import app
from tidegate.core.batch import Lateness
from tidegate.core.errors import UsageError
from tidegate.project import Project
from tidegate.verify.report import Verdict
from tidegate.verify.verify import verify_sync

SYNC = {**ORDERS, "lookback": "1 hour"}
# The watermark is at 00:10, stamped by a clock that is fast; this update comes later.
SKEWED = "UPDATE orders SET total = 77, updated_at = '2026-01-01 00:08:30+00' WHERE id = 10"
RAISED = "UPDATE orders SET total = 78, updated_at = '2026-01-01 00:11+00' WHERE id = 9"
UNSEEN = "an update that a slow clock stamped below the version before it is not taken"


def say(place: Any, *arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "--project", str(place.folder)]).output


def total(place: Any, key: int) -> Any:
    return place.target.value(f"SELECT total FROM raw.orders WHERE id = {key}")


def test_an_update_that_a_slow_clock_stamped_wins(make: Make) -> None:
    project, place = make(SYNC)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute(SKEWED, RAISED)
    assert not any(UNSEEN in text for text in plan_one(project).warnings)
    project.run("orders")
    assert (total(place, 10), total(place, 9)) == (77, 78)
    assert verify_sync(project.context, project.sync("orders")).verdict is Verdict.EQUAL
    # What is in already is left alone, and an older version is not read any more.
    assert project.run("orders").outcome.changed == 0


def test_where_a_key_may_occur_twice_the_cursor_decides_and_plan_says_so(make: Make) -> None:
    project, place = make({**SYNC, "key": "id", "duplicates": "newest"})
    place.source.execute(CREATE[0].replace(" PRIMARY KEY", ""), CREATE[1], FILL)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (10, 1, '2026-01-01 00:08:30+00')")
    assert any(UNSEEN in text for text in plan_one(project).warnings)
    project.run("orders")
    assert total(place, 10) == 10


def test_a_view_of_versions_goes_by_the_cursor_and_plan_says_so(make: Make) -> None:
    project, place = make({**SYNC, "mode": "append", "key": "id"})
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute(SKEWED)
    assert any(UNSEEN in text for text in plan_one(project).warnings)
    project.run("orders")
    assert total(place, 10) == 10
    assert place.target.value("SELECT count(*) FROM raw.orders_raw WHERE total = 77") == 1


@pytest.mark.parametrize(("kind", "index"), [("timestamptz", False), ("timestamp", True)])
def test_rows_from_the_future_are_named(make: Make, kind: str, index: bool) -> None:
    project, place = make({**ORDERS, "cursor_timezone": "UTC"})
    place.source.execute(CREATE[0].replace("timestamptz", kind), *CREATE[1:][:index])
    place.source.execute(
        FILL,
        "INSERT INTO orders VALUES (20, 1, '2031-01-01 00:00:00'), (21, 1, 'infinity'),"
        " (22, 1, 'infinity'), (23, 1, '-infinity')",
    )
    zone = "+00" if kind == "timestamptz" else ""
    expected = [
        f"1 row of public.orders is stamped in the future (up to 2031-01-01 00:00:00{zone}) and "
        "loaded when that time comes",
        "2 rows of public.orders are stamped infinity and never loaded; correct updated_at, or use "
        'changes = "snapshot"',
    ]
    first = project.run("orders")
    assert (first.outcome.rows, first.outcome.notes) == (11, expected)
    again = project.run("orders")
    assert (again.found_nothing, again.outcome.notes) == (True, expected)
    assert list(status(project).notes) == expected
    assert list(verify_sync(project.context, project.sync("orders")).notes) == expected
    assert f"orders: {expected[0]}" in say(place, "status")
    assert json.loads(say(place, "run", "orders", "--json"))[0]["notes"] == expected
    place.source.execute("DELETE FROM orders WHERE updated_at > '2030-01-01'")
    assert project.run("orders").outcome.notes == []


def status(project: Project) -> SyncStatus:
    (found,) = read_status(project.context, [project.sync("orders")]).syncs
    return found


def late(project: Project) -> Lateness:
    found = status(project).late
    assert found is not None
    return found


def test_late_rows_are_counted_and_measured_and_others_are_not(make: Make) -> None:
    project, place = make({**ORDERS, "lookback": "10 minutes"})
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    assert status(project).late is None
    # The watermark is at 00:10: these come 2, 4 and 7 minutes late; the last one too late.
    place.source.execute(
        "INSERT INTO orders VALUES (20, 1, '2026-01-01 00:08+00'),"
        " (21, 1, '2026-01-01 00:06+00'), (22, 1, '2026-01-01 00:03+00')",
        "UPDATE orders SET total = 77 WHERE id = 9",
    )
    project.run("orders")
    found = late(project)
    assert (found.rows, found.loads, found.farthest, found.in_seconds) == (4, 1, 420, True)
    assert found.half_within == 120
    with place.open().context.plane.connect() as control:
        (line,) = list_syncs(project.context, control, project.declared)
    assert (line.late_rows, line.late_farthest) == (4, 420)
    # What comes on time, or again, is not late.
    place.source.execute("INSERT INTO orders VALUES (30, 1, '2026-01-01 00:11+00')")
    project.run("orders")
    assert late(project) == found

    place.source.execute("INSERT INTO orders VALUES (31, 1, '2026-01-01 00:02+00')")
    project.run("orders")
    found = late(project)
    assert (found.rows, found.loads, found.farthest) == (5, 2, 540)

    told = say(place, "status")
    assert "orders: 5 late rows in 2 loads that had any, at most 9 min behind" in told
    assert "lookback = 10 minutes" in told
    assert json.loads(say(place, "status", "--json"))["syncs"][0]["late"]["farthest"] == 540


def test_an_integer_cursor_is_measured_in_its_own_steps_and_append_as_well(
    make: Make,
) -> None:
    sync = {**ORDERS, "cursor": "id", "lookback": 50, "mode": "append", "key": ["id"]}
    project, place = make(sync)
    place.source.execute(
        *CREATE, "INSERT INTO orders SELECT n * 10, n FROM generate_series(1, 9) n"
    )
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (85, 1), (42, 1)")
    project.run("orders")
    found = late(project)
    assert (found.rows, found.farthest, found.half_within) == (2, 48, 5)
    assert found.in_seconds is False


BY_XID = {**ORDERS, "cursor": "xid"}
CODE = """
import tidegate as tg

@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="xid", batch_rows=4)
def orders(rows):
    return rows
"""


def seed(place: Place) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text,"
        " xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
        "CREATE INDEX ON orders (xid)",
    )
    for number in range(1, 11):
        place.source.execute(f"INSERT INTO orders VALUES ({number}, 'n{number}')")


@pytest.mark.parametrize("transformed", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_rows_of_open_transactions_wait_and_none_is_lost(
    make_project: MakeProject, transformed: bool
) -> None:
    options: Any = {"pipelines": CODE} if transformed else {}
    syncs = [] if transformed else [{**BY_XID, "batch_rows": 4}]
    project, place = make_project(*syncs, databases=2, **options)
    seed(place)
    first = project.run("orders")
    assert [load.rows for load in first.loads] == [4, 4, 2]
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("UPDATE orders SET name = 'x', xid = pg_current_xact_id() WHERE id = 2")
        late.execute("SAVEPOINT a")
        late.execute("INSERT INTO orders VALUES (11, 'late')")
        place.source.execute("INSERT INTO orders VALUES (12, 'quick')")
        held = project.run("orders")
        assert held.found_nothing
        assert held.outcome.horizon is not None
        assert held.outcome.horizon.held_by is not None
        if not transformed:
            assert (plan(project).guarantee, plan(project).rows) == ("exact", 0)
        late.execute("COMMIT")
    assert project.run("orders").outcome.changed == 3
    assert same(place)
    kind = "SELECT pg_typeof(xid)::text FROM raw.orders LIMIT 1"
    assert place.target.value(kind) == "xid8"
    assert verify(project).difference is None


def test_ids_of_different_length_are_ordered_as_numbers(make_project: MakeProject) -> None:
    project, place = make_project({**BY_XID, "lookback": 100}, databases=2)
    seed(place)
    place.source.execute("UPDATE orders SET xid = id::text::xid8 WHERE id >= 9")
    project.run("orders")
    at = project.watermark("orders")
    assert int(str(at.value)) > 100
    place.source.execute("INSERT INTO orders VALUES (11, 'new')")
    assert project.run("orders").outcome.changed == 1
    assert project.why("orders", id=11).reason == "equal"
    with pytest.raises(UsageError, match="counts transactions"):
        project.backfill("orders", low="1", high="9")
    at.rewind("9", reason="again")
    assert [load.rows for load in project.run("orders").loads] == [1, 10]
    assert same(place)
