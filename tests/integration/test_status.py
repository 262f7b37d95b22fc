"""`status` tells how every sync, job and worker stands, and leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from psycopg.conninfo import make_conninfo

from integration.commands import BUSY, DONE, FAILED
from integration.conftest import Make, MakePlace, Place
from integration.here import tidegate
from integration.orders import CREATE, FILL, ORDERS, contents, open_transaction
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.admin import status as status_module
from tidegate.admin.status import Lag, ProjectStatus, SyncState, SyncStatus, read_status
from tidegate.core.errors import TidegateError
from tidegate.jobs.job import JobRequest, JobStatus
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.load.inspection import ReadSessions, read_lock
from tidegate.project import Project


def status_all(project: Project) -> ProjectStatus:
    found = read_status(project.context, project.syncs.values())
    assert project.context.spark.started is False
    return found


def status_of(place: Place, name: str = "orders") -> SyncStatus:
    return next(one for one in status_all(place.open()).syncs if one.sync == name)


def lag_of(place: Place, name: str) -> Lag:
    found = status_of(place, name).lag
    assert found is not None
    return found


def behind(*moment: int) -> object:
    seconds = (datetime.now(UTC) - datetime(*moment, tzinfo=UTC)).total_seconds()  # type: ignore[arg-type, misc]
    return pytest.approx(seconds, abs=60)


def test_a_sync_is_told_before_and_after_its_runs_and_nothing_is_written(make: Make) -> None:
    by_id = {**ORDERS, "name": "by_id", "cursor": "id", "target": "warehouse:raw.by_id"}
    wrong = {**ORDERS, "name": "wrong", "cursor": "nope", "target": "warehouse:raw.wrong"}
    project, place = make(ORDERS, by_id, wrong, databases=3)
    place.source.execute(*CREATE)

    def look() -> SyncStatus:
        before = contents(place.source, place.target, place.control)
        found = status_of(place)
        assert contents(place.source, place.target, place.control) == before
        return found

    never = look()
    assert (never.state, never.last_run_at, never.watermark) == (SyncState.NEVER_RAN, None, None)
    assert never.is_well
    assert "cursor nope does not exist" in str(status_of(place, "wrong").problem)
    project.run("orders")
    nothing = look()
    assert (nothing.state, nothing.rows, nothing.watermark) == (SyncState.FOUND_NOTHING, 0, None)
    assert nothing.last_run_at is not None
    place.source.execute(FILL)
    for name in ("orders", "by_id"):
        project.run(name)
    for name in ("orders", "by_id"):
        found = status_of(place, name)
        assert (found.state, found.rows, found.rows_synced) == (SyncState.DONE, 10, 10), name
    look()

    shown = tidegate(place.folder, "status")
    assert shown.code == DONE
    for word in ("orders", "done", "2026-01-01 00:10:00+00", "0 rows"):
        assert word in shown.out
    # Without the control database the rest is visible.
    address = make_conninfo(place.control.conninfo, port=1)
    found_all = status_all(Project.open(place.folder, **{"project.control": address}))
    assert found_all.control_unreachable is not None
    assert found_all.syncs[0].state is SyncState.UNKNOWN
    assert found_all.syncs[0].watermark == "2026-01-01 00:10:00+00"
    assert found_all.syncs[0].lag is not None


def test_the_lag_is_a_number_of_rows_or_a_distance_in_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {**ORDERS, "name": "slow", "source": "shop:slow", "target": "warehouse:raw.slow"}
    tokyo = {**slow, "name": "tokyo", "source": "shop:tokyo", "target": "warehouse:raw.tokyo"}
    project, place = make(ORDERS, slow, {**tokyo, "cursor_timezone": "Asia/Tokyo"})
    place.source.execute(
        *CREATE,
        FILL,
        "CREATE TABLE slow (LIKE orders INCLUDING DEFAULTS, PRIMARY KEY (id))",
        "CREATE TABLE tokyo (LIKE slow INCLUDING ALL)",
        "INSERT INTO slow TABLE orders",
        "INSERT INTO tokyo TABLE orders",
        "ALTER TABLE tokyo ALTER updated_at TYPE timestamp",
    )
    for name in project.syncs:
        project.run(name)
    place.source.execute("INSERT INTO orders SELECT n, n, now() FROM generate_series(11, 15) n")
    # Where an index makes it cheap, rows are counted.
    lag = lag_of(place, "orders")
    assert (lag.rows, lag.rows_are_capped) == (5, False)
    monkeypatch.setattr(status_module, "LAG_ROWS_LIMIT", 3)
    lag = lag_of(place, "orders")
    assert (lag.rows, lag.rows_are_capped) == (3, True)
    lag = lag_of(place, "slow")
    assert lag.rows is None
    assert lag.seconds == behind(2026, 1, 1, 0, 10)
    # A timestamp without zone follows its declared zone.
    assert lag_of(place, "tokyo").seconds == behind(2025, 12, 31, 15, 10)


def test_a_sync_held_back_says_when_where_and_by_whom(make: Make) -> None:
    project, place = make(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    with open_transaction(place.source, "INSERT INTO orders VALUES (11, 1)"):
        quiet = status_of(place)
        place.source.execute("INSERT INTO orders VALUES (12, 2)")
        held = status_of(place).held_back
    assert quiet.held_back is None
    assert held is not None
    assert "late writer" in held.by
    assert held.since is not None
    assert held.at is not None
    assert datetime.fromisoformat(held.at) < held.since
    assert status_of(place).held_back is None


def test_an_unreachable_source_is_said_and_only_check_makes_it_an_exit_code(make: Make) -> None:
    project, place = make(ORDERS, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    file = place.folder / "tidegate.toml"
    head, middle, tail = file.read_text().partition("[connections]")
    broken = json.dumps(make_conninfo(place.source.conninfo, port=1))
    file.write_text(head + middle + tail.replace(json.dumps(place.source.conninfo), broken, 1))
    control = {"TIDEGATE_PROJECT__CONTROL": place.control.conninfo}
    plain = tidegate(place.folder, "status", environment=control)
    checked = tidegate(place.folder, "status", "--check", environment=control)
    assert (plain.code, checked.code) == (DONE, FAILED)
    assert 'orders: unreachable: cannot connect to connection "shop"' in plain.out


def test_a_failed_run_shows_its_error_and_fails_the_check(make: Make) -> None:
    project, place = make(ORDERS)
    place.source.execute(*CREATE, FILL)
    place.target.execute("CREATE SCHEMA raw", "CREATE TABLE raw.orders (id text PRIMARY KEY)")
    with pytest.raises(TidegateError):
        project.run("orders")
    found = status_of(place)
    assert found.state is SyncState.FAILED
    assert "raw.orders cannot take these rows" in str(found.error)
    shown = tidegate(place.folder, "status", "--check")
    assert shown.code == FAILED
    assert "orders: last error: raw.orders cannot take these rows" in shown.out


def test_a_running_job_is_told_apart_from_one_whose_process_is_gone(make: Make) -> None:
    project, place = make(ORDERS)
    place.source.execute(*CREATE, FILL)
    with ReadSessions(project.context) as sessions:
        resource = read_lock(sessions, project.sync("orders")).resource
    plane = project.context.plane
    jobs, worker = Jobs(plane), WorkerIdentity.of_this_process()
    with plane.connect() as control, plane.connect() as session:
        Workers(plane).register(session, worker, "test")
        job_id = jobs.submit(control, JobRequest("shop", "sync", "orders", resource), "test").job_id
        pending = status_of(place)
        jobs.claim(control, worker.worker_id, job_id, lease_seconds=60)
        running = status_of(place)
        session.execute("SELECT pg_advisory_unlock_all()")
        gone = status_of(place)
    assert pending.state is SyncState.PENDING
    assert running.state is SyncState.RUNNING
    assert running.lock is not None
    assert str(job_id) in str(running.lock.holder)
    assert gone.state is SyncState.INTERRUPTED


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS)) as opened:
        yield opened


def test_status_has_a_line_when_jobs_wait_or_failed_or_when_it_drains(desk: Desk) -> None:
    desk.end(JobStatus.DONE)
    assert "jobs:" not in desk.run("status").out
    queue = desk.run("status", "--json").document["queue"]
    assert queue["ready"] == 0
    assert [one["pid"] for one in queue["workers"]] == [desk.worker.pid]
    desk.submit()
    desk.submit("customers", delay_seconds=500)
    desk.end(JobStatus.FAILED, "x", name="customers")
    out = desk.run("status").out
    assert "jobs: 1 waiting; 1 waiting for a later time, the next at 20" in out
    assert "1 failed in the last day" in out
    desk.plane.start_draining(desk.control, "ana")
    assert "by ana: no new jobs are taken in" in desk.run("status").out


def test_status_lists_workers_with_what_they_take_and_hold(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    before = contents(desk.place.control)
    live = desk.run("status").out
    for looking in (["job", "list"], ["job", "show", str(job_id)], ["drain", "status"]):
        assert desk.run(*looking).code == DONE
    assert contents(desk.place.control) == before, "looking writes nothing"
    process = f"worker: tidegate worker, process {desk.worker.pid} on {desk.worker.host}"
    assert f"{process}, takes sync, 1 of 4 jobs, last beat " in live
    assert "silent" not in live
    assert desk.jobs.finish(desk.control, claim, JobStatus.DONE, actor="tester")
    desk.lose_worker()
    assert "silent: its session is gone" in desk.run("status").out
    # One that holds nothing is forgotten on the screen after an hour.
    desk.control.execute("UPDATE tidegate_control.workers SET beat_at = now() - interval '2 hours'")
    assert "worker:" not in desk.run("status").out
    assert len(desk.run("status", "--json").document["queue"]["workers"]) == 1


def test_uninstall_refuses_while_a_worker_of_the_project_is_there_and_names_it(desk: Desk) -> None:
    before = contents(desk.place.control)
    done = desk.run("db", "uninstall", "--yes")
    assert done.code == BUSY
    assert f"tidegate worker, process {desk.worker.pid} on {desk.worker.host}" in done.err
    assert f"kill {desk.worker.pid}" in done.err
    assert contents(desk.place.control) == before
    desk.lose_worker()
    # One of another project does not keep this one from leaving.
    theirs = WorkerIdentity.of_this_process("other", "tidegate worker", ("sync",))
    with desk.plane.connect() as session:
        Workers(desk.plane).register(session, theirs, "0")
        desk.submit(project="other")
        gone = desk.run("db", "uninstall", "--yes")
        assert gone.code == DONE, gone.err
        assert desk.place.control.value("SELECT count(*) FROM tidegate_control.jobs") == 1
        assert desk.run("db", "uninstall", "--yes", "--shared").code == BUSY
