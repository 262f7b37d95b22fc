"""`status` tells how every sync stands, whatever can be reached, and leaves no trace."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

import forked
from integration.orders import CREATE, FILL, ORDERS, contents, open_transaction
from tidegate.control.jobs import Jobs
from tidegate.control.workers import Worker, Workers
from tidegate.errors import TidegateError
from tidegate.insight import status as status_module
from tidegate.insight.status import ProjectStatus, State, SyncStatus, read_status
from tidegate.model.job import JobRequest
from tidegate.pipeline.lock import read_lock
from tidegate.pipeline.sessions import Sessions
from tidegate.project import Project


def status_all(project: Project) -> ProjectStatus:
    found = read_status(project.context, project.syncs.values())
    assert project.context.spark.started is False
    return found


def status_one(project: Project) -> SyncStatus:
    return status_all(project).syncs[0]


def command(place: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("status", "-C", str(place.folder), *arguments)


def test_a_sync_that_never_ran_is_told_apart_from_one_that_found_nothing(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE)
    never = status_one(place.open())
    assert (never.state, never.last_run_at, never.watermark) == (State.NEVER_RAN, None, None)
    project.run("orders")
    nothing = status_one(place.open())
    assert (nothing.state, nothing.rows, nothing.watermark) == (State.FOUND_NOTHING, 0, None)
    assert nothing.last_run_at is not None


def test_status_makes_nothing_in_a_project_that_never_ran(make_place: Any) -> None:
    place = make_place(ORDERS, databases=3)
    place.source.execute(*CREATE, FILL)
    before = contents(place.source, place.target, place.control)
    status_one(place.open())
    assert contents(place.source, place.target, place.control) == before


@pytest.mark.parametrize("cursor", ["updated_at", "id"])
def test_status_after_a_run_writes_nothing(make_project: Any, cursor: str) -> None:
    project, place = make_project({**ORDERS, "cursor": cursor}, databases=3)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    before = contents(place.source, place.target, place.control)
    found = status_one(place.open())
    assert contents(place.source, place.target, place.control) == before
    assert (found.state, found.rows, found.rows_synced) == (State.DONE, 10, 10)


def test_the_lag_counts_rows_where_an_index_makes_it_cheap(
    make_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("INSERT INTO orders SELECT n, n, now() FROM generate_series(11, 15) n")
    found = status_one(place.open())
    assert found.watermark == "2026-01-01 00:10:00+00"
    assert found.lag is not None
    assert (found.lag.rows, found.lag.rows_are_capped) == (5, False)
    monkeypatch.setattr(status_module, "LAG_ROWS_LIMIT", 3)
    capped = status_one(place.open())
    assert capped.lag is not None
    assert (capped.lag.rows, capped.lag.rows_are_capped) == (3, True)


def test_the_lag_without_an_index_is_a_distance_in_time(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(CREATE[0], FILL)
    project.run("orders")
    found = status_one(place.open())
    assert found.lag is not None
    assert found.lag.rows is None
    behind = datetime.now(UTC) - datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
    assert found.lag.seconds == pytest.approx(behind.total_seconds(), abs=60)


def test_the_lag_of_a_timestamp_without_zone_follows_its_declared_zone(make_project: Any) -> None:
    project, place = make_project({**ORDERS, "cursor_timezone": "Asia/Tokyo"})
    place.source.execute(CREATE[0], FILL, "ALTER TABLE orders ALTER updated_at TYPE timestamp")
    project.run("orders")
    found = status_one(place.open())
    assert found.lag is not None
    behind = datetime.now(UTC) - datetime(2025, 12, 31, 15, 10, tzinfo=UTC)
    assert found.lag.seconds == pytest.approx(behind.total_seconds(), abs=60)


def test_a_sync_held_back_says_when_where_and_by_whom(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    with open_transaction(place.source, "INSERT INTO orders VALUES (11, 1)"):
        quiet = status_one(place.open())
        place.source.execute("INSERT INTO orders VALUES (12, 2)")
        held = status_one(place.open()).held_back
    assert quiet.held_back is None
    assert held is not None
    assert "late writer" in held.by
    assert held.since is not None
    assert held.at is not None
    assert datetime.fromisoformat(held.at) < held.since
    assert status_one(place.open()).held_back is None


def test_an_unreachable_source_is_said_with_what_the_last_run_knew(make_project: Any) -> None:
    project, place = make_project(ORDERS, databases=2)
    place.source.execute(*CREATE, FILL)
    with open_transaction(place.source, "INSERT INTO orders VALUES (11, 1)"):
        project.run("orders")
    address = make_conninfo(place.source.conninfo, port=1)
    overrides = {"connections.shop": address, "project.control": place.target.conninfo}
    found = status_all(Project.open(place.folder, **overrides))
    assert 'connection "shop"' in found.syncs[0].unreachable[0]
    assert found.is_well is False


def test_only_check_turns_an_unreachable_source_into_an_exit_code(make_place: Any) -> None:
    place = make_place(ORDERS, databases=2)
    text = (place.folder / "tidegate.toml").read_text()
    broken = json.dumps(make_conninfo(place.source.conninfo, port=1))
    head, middle, tail = text.partition("[connections]")
    tail = tail.replace(json.dumps(place.source.conninfo), broken, 1)
    (place.folder / "tidegate.toml").write_text(head + middle + tail)
    plain, checked = command(place), command(place, "--check")
    assert (plain.returncode, checked.returncode) == (0, 1)
    assert 'orders: unreachable: cannot connect to connection "shop"' in plain.stdout


def test_an_unreachable_control_database_leaves_the_rest_visible(make_project: Any) -> None:
    project, place = make_project(ORDERS, databases=3)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    address = make_conninfo(place.control.conninfo, port=1)
    found = status_all(Project.open(place.folder, **{"project.control": address}))
    assert found.control_unreachable is not None
    assert found.syncs[0].state is State.UNKNOWN
    assert found.syncs[0].watermark == "2026-01-01 00:10:00+00"
    assert found.syncs[0].lag is not None


def test_a_failed_run_shows_its_error_and_fails_the_check(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    place.target.execute("CREATE SCHEMA raw", "CREATE TABLE raw.orders (id text PRIMARY KEY)")
    with pytest.raises(TidegateError):
        project.run("orders")
    found = status_one(place.open())
    assert found.state is State.FAILED
    assert "raw.orders cannot take these rows" in str(found.error)
    shown = command(place, "--check")
    assert shown.returncode == 1
    assert "orders: last error: raw.orders cannot take these rows" in shown.stdout


def test_a_running_job_is_told_apart_from_one_whose_process_is_gone(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    with Sessions(project.context) as sessions:
        resource = read_lock(sessions, project.sync("orders")).resource
    plane = project.context.plane
    jobs, worker = Jobs(plane), Worker.of_this_process()
    with plane.connect() as control, plane.connect() as session:
        Workers(plane).register(session, worker, "test")
        job_id = jobs.submit(control, JobRequest("shop", "sync", "orders", resource), "test").job_id
        pending = status_one(place.open())
        jobs.claim(control, worker.worker_id, job_id, lease_seconds=60)
        running = status_one(place.open())
        session.execute("SELECT pg_advisory_unlock_all()")
        gone = status_one(place.open())
    assert pending.state is State.PENDING
    assert running.state is State.RUNNING
    assert running.lock is not None
    assert str(job_id) in str(running.lock.holder)
    assert gone.state is State.INTERRUPTED


def test_a_wrong_declaration_is_shown_beside_the_others(make_place: Any) -> None:
    place = make_place(
        ORDERS, {**ORDERS, "name": "other", "cursor": "nope", "target": "warehouse:raw.other"}
    )
    place.source.execute(*CREATE, FILL)
    found = {one.sync: one for one in status_all(place.open()).syncs}
    assert found["orders"].is_well
    assert "cursor nope does not exist" in str(found["other"].problem)


def test_the_table_on_standard_output_names_every_sync(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    shown = command(place)
    assert shown.returncode == 0
    assert "orders" in shown.stdout
    assert "done" in shown.stdout
    assert "2026-01-01 00:10:00+00" in shown.stdout
    assert "0 rows" in shown.stdout
