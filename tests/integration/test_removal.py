"""What would remove too much of a target stops and asks; what a trigger keeps out is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from integration.cdc_places import orders_sync
from integration.conftest import Database, Make, Place
from integration.destination_harness import Row, load
from integration.orders import CREATE, ORDERS, plan_one
from integration.postgres_harness import PostgresHarness, make_shape, shared
from tidegate.config.sync import Mode, RemovalLimit, Rules
from tidegate.core.batch import BatchKind
from tidegate.core.errors import RemovalRefused
from tidegate.project import Project
from tidegate.verify.report import Verdict

__all__ = ["shared"]

HALF = RemovalLimit(0.5, "tidegate run orders --full-refresh --allow-removal")
RARE = pytest.mark.chaos
MODES = [
    (Mode.MERGE, "id"),
    (Mode.REPLACE, ""),
    (Mode.APPEND, "id"),
    pytest.param(Mode.DELETE_INSERT, "id", marks=RARE),
    pytest.param(Mode.REPLACE, "id", marks=RARE),
    pytest.param(Mode.APPEND, "", marks=RARE),
]


def made(database: Database, mode: Mode, key: str) -> PostgresHarness:
    shape = make_shape("id integer, name text, c bigint", key, "c", unique=bool(key))
    return PostgresHarness(database, shape, Rules(mode=mode, removal=HALF))


def some(first: int, last: int, c: int = 1) -> list[Row]:
    return [(n, "a", c) for n in range(first, last + 1)]


@pytest.mark.parametrize(("mode", "key"), MODES)
def test_a_load_of_everything_that_removes_more_than_a_half_changes_nothing(
    shared: Database, mode: Mode, key: str
) -> None:
    harness = made(shared, mode, key)
    load(harness, *some(1, 200))
    before, markers = harness.rows(), harness.markers()
    for rows in (some(1, 99), []):
        with pytest.raises(RemovalRefused) as refused:
            load(harness, *rows, kind=BatchKind.FULL)
        assert f"{200 - len(rows)} of the 200 rows of {harness.table}" in refused.value.message
        assert HALF.allow in str(refused.value)
    assert (harness.rows(), harness.markers()) == (before, markers)
    load(harness, *some(1, 100), kind=BatchKind.FULL)
    assert len(harness.rows()) == 100
    # Other keys in the place of those that were there are a removal where there are keys.
    if key:
        with pytest.raises(RemovalRefused, match="51 of the 100 rows"):
            load(harness, *some(52, 151), kind=BatchKind.FULL)
    harness.rules = replace(harness.rules, removal=None)
    load(harness, *some(500, 598), kind=BatchKind.FULL)
    assert len(harness.rows()) == 99
    # Of a small target nobody is asked.
    harness.rules = replace(harness.rules, removal=HALF)
    load(harness, kind=BatchKind.FULL)
    assert harness.rows() == []


def test_versions_of_a_row_count_once(shared: Database) -> None:
    harness = made(shared, Mode.APPEND, "id")
    load(harness, *some(1, 120))
    for c in (2, 3):
        load(harness, *some(1, 20, c))
    with pytest.raises(RemovalRefused, match="100 of the 120 rows"):
        load(harness, *some(1, 20, 9), kind=BatchKind.FULL)
    load(harness, *some(1, 60, 9), kind=BatchKind.FULL)
    assert len(harness.rows()) == 60


def test_the_share_itself_may_go() -> None:
    for share, removed, rows, asks in (
        (0.5, 50, 100, False),
        (0.5, 51, 100, True),
        (0.5, 99, 99, False),
        (0.29, 29, 100, False),
        (0.29, 30, 100, True),
        (0.0, 1, 100, True),
        (0.0, 0, 100, False),
    ):
        assert RemovalLimit(share, "").is_exceeded(removed, rows) is asks, (share, removed)


SWALLOW = (
    "CREATE OR REPLACE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN IF NEW.name = 'x' THEN RETURN NULL; END IF; RETURN NEW; END$$"
)


@pytest.mark.parametrize(
    ("mode", "key", "kind"),
    [
        (Mode.MERGE, "id", BatchKind.RANGE),
        (Mode.REPLACE, "", BatchKind.FULL),
        pytest.param(Mode.MERGE, "id", BatchKind.FULL, marks=RARE),
        pytest.param(Mode.DELETE_INSERT, "id", BatchKind.RANGE, marks=RARE),
        pytest.param(Mode.APPEND, "id", BatchKind.RANGE, marks=RARE),
        pytest.param(Mode.APPEND, "", BatchKind.FULL, marks=RARE),
    ],
)
def test_rows_that_a_trigger_swallows_are_said(
    shared: Database, mode: Mode, key: str, kind: BatchKind
) -> None:
    harness = made(shared, mode, key)
    shared.execute(
        SWALLOW,
        f'CREATE TRIGGER "No x" BEFORE INSERT OR UPDATE ON {harness.physical}'
        " FOR EACH ROW EXECUTE FUNCTION swallow()",
    )
    assert load(harness, (1, "a", 1), (2, "x", 1), (3, "x", 1), kind=kind).notes != ()
    assert load(harness, (1, "b", 2), (4, "d", 2), kind=kind).notes == ()
    found = load(harness, (1, "x", 3), (4, "e", 3), (5, "f", 3), kind=kind)
    assert "1 of 3 rows" in found.notes[0]
    assert "No x" in found.notes[0]
    if mode is Mode.MERGE:
        # What has not changed is not put in, and so not missed.
        assert load(harness, (4, "e", 3), (5, "f", 3)).notes == ()


MANY = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + n * interval '1 second'"
    " FROM generate_series(1, 200) n"
)


def filled(make: Make, **sync: Any) -> tuple[Project, Place]:
    values = {name: value for name, value in {**ORDERS, **sync}.items() if value is not None}
    project, place = make(values)
    place.source.execute(*CREATE, MANY)
    project.run("orders")
    return project, place


def count(place: Place, condition: str = "true") -> int:
    return int(place.target.value(f"SELECT count(*) FROM raw.orders WHERE {condition}"))


def test_a_refresh_that_was_refused_is_finished_once_the_source_is_right(make: Make) -> None:
    project, place = filled(make)
    place.source.execute("CREATE TABLE kept AS TABLE orders", "TRUNCATE orders")
    with pytest.raises(RemovalRefused) as refused:
        project.run("orders", full_refresh=True)
    assert refused.value.message.startswith("200 of the 200 rows of raw.orders would be removed")
    assert HALF.allow in str(refused.value)
    assert refused.value.exit_code == 1
    # A plain run has to finish it, and meets the same question.
    with pytest.raises(RemovalRefused, match="200 of the 200"):
        project.run("orders")
    assert count(place) == 200
    plan = plan_one(project)
    assert plan.removes == 200
    assert any("200 of the 200 rows" in one and "--allow-removal" in one for one in plan.warnings)
    failed = place.control.execute(
        "SELECT error FROM tidegate_control.jobs WHERE status = 'failed'"
    )
    assert [HALF.allow in error for (error,) in failed] == [True, True]
    assert place.target.execute("SELECT FROM pg_tables WHERE tablename LIKE 'stg\\_%'") == []

    place.source.execute("INSERT INTO orders SELECT * FROM kept WHERE id > 50")
    assert project.run("orders").rows == 150
    assert count(place) == 150
    assert project.run("orders").found_nothing
    place.source.execute("DELETE FROM orders WHERE id > 60")
    project.run("orders", full_refresh=True, allow_removal=True)
    assert count(place) == 10


def test_a_queued_run_is_refused_once_and_carries_what_it_was_allowed(make: Make) -> None:
    project, place = filled(make, mode="replace", cursor=None)
    place.source.execute("DELETE FROM orders WHERE id > 20")
    assert plan_one(project).removes == 180
    refused = project.submit("orders")
    project.worker(once=True).run()
    assert (refused.state(), count(place)) == ("failed", 200)
    allowed = project.submit("orders", allow_removal=True)
    project.worker(once=True).run()
    assert (allowed.state(), count(place)) == ("done", 20)
    jobs = place.control.execute(
        "SELECT kind, status, payload ->> 'allow_removal' FROM tidegate_control.jobs"
        " ORDER BY job_id"
    )
    assert [(kind, status) for kind, status, _ in jobs] == [
        ("sync", "done"),
        ("sync", "failed"),
        ("sync", "done"),
    ]
    assert [allow == "true" for *_, allow in jobs] == [False, False, True]


def test_a_repair_looks_at_all_ranges_before_it_loads_the_first(make: Make) -> None:
    project, place = filled(make, batch_rows=70)
    place.source.execute("DELETE FROM orders WHERE id > 90", "UPDATE orders SET total = 0")
    with pytest.raises(RemovalRefused, match="110 of the 200 rows") as refused:
        project.verify("orders", repair=True)
    assert "tidegate verify orders --repair --allow-removal" in str(refused.value)
    assert (count(place), count(place, "total = 0")) == (200, 0)
    found = project.verify("orders", repair=True, allow_removal=True)
    assert (found.verdict, count(place)) == (Verdict.EQUAL, 90)
    # Rows that only differ are none that go.
    place.source.execute("UPDATE orders SET total = 1")
    assert project.verify("orders", repair=True).verdict is Verdict.EQUAL


@pytest.mark.chaos
def test_rows_that_would_be_marked_as_gone_count_as_removed(make: Make) -> None:
    project, place = filled(make, **orders_sync(deletes="soft"), cursor=None)
    place.target.execute(
        "INSERT INTO raw.orders (id, updated_at)"
        " SELECT n, now() FROM generate_series(1001, 1300) n",
    )
    with pytest.raises(RemovalRefused, match="300 of the 500 rows"):
        project.verify("orders", repair=True)
    assert count(place, "deleted_at IS NOT NULL") == 0


def test_a_truncate_in_the_log_is_the_sources_own_doing_and_a_copy_is_not(make: Make) -> None:
    project, place = filled(make, **orders_sync(), cursor=None)
    place.source.execute("TRUNCATE orders")
    project.run("orders")
    assert count(place) == 0
    place.source.execute(MANY)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id > 10")
    with pytest.raises(RemovalRefused, match="190 of the 200 rows"):
        project.run("orders", full_refresh=True)
    assert count(place) == 200


@pytest.mark.parametrize(
    "sync",
    [
        {"mode": "merge"},
        pytest.param({"cursor": "day"}, marks=RARE),
        pytest.param({"mode": "delete_insert"}, marks=RARE),
        pytest.param({"mode": "append"}, marks=RARE),
    ],
    ids=lambda sync: "-".join(sync.values()),
)
def test_a_full_refresh_keeps_rows_that_an_open_transaction_of_the_source_holds_back(
    make: Make, sync: dict[str, Any]
) -> None:
    project, place = make({**ORDERS, "key": "id", **sync}, databases=2)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now(),"
        " day date NOT NULL DEFAULT current_date - 1)",
        "INSERT INTO orders SELECT generate_series(1, 9)",
    )
    project.run("orders")
    with place.source.connect() as open_session, open_session.transaction():
        open_session.execute("INSERT INTO orders VALUES (10, now(), current_date)")
        place.source.execute(
            "UPDATE orders SET updated_at = clock_timestamp(), day = current_date WHERE id < 5",
            "INSERT INTO orders VALUES (11, now() + interval '1 year', current_date + 400)",
        )
        project.run("orders", full_refresh=True)
        ids = [number for (number,) in place.target.execute("SELECT id FROM raw.orders ORDER BY 1")]
        assert ids == list(range(1, 10))
        assert project.verify("orders").verdict is Verdict.EQUAL
    project.run("orders")
    # A day is read when it is over.
    days = sync.get("cursor") == "day"
    assert count(place) == (9 if days else 10)
    assert project.verify("orders").verdict is Verdict.EQUAL
