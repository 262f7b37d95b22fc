"""Automatic maintenance: what is recommended is queued once, and only where it is wanted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql

from databases import Databases
from integration.cached_lakes import (
    ITEMS,
    ORDERS,
    TARGET,
    add_files,
    cared_place,
    forget_all,
    opened,
    refresh,
    small_files,
)
from integration.commands import DONE, tidegate
from integration.conftest import MakePlace, Place
from integration.shared_places import shared_places
from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import Action, ActionList, RewriteDataFiles
from tidegate.jobs.job import MAINTENANCE, Claim, JobStatus, LockAt, Submitted
from tidegate.jobs.queue import Jobs
from tidegate.jobs.queued_job import wait_for_end
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.maintenance.policy import ACTOR, PolicyRunner, QueuedActions
from tidegate.maintenance.recommendation import LastRun
from tidegate.maintenance.submit import record_dry_run, submit_maintenance, table_holder
from tidegate.maintenance.tables import MaintenanceJobs, find_table
from tidegate.postgres.connection import Connection
from tidegate.project import Project

AUTOMATIC = """
[maintenance]
automatic = true
thresholds = { small_files = 5 }
remove_orphan_files = { enabled = false }
"""
OPTED_OUT = '\n[maintenance.for."lake:raw.items"]\nautomatic = false\n'
REWRITE = ActionList(((Action.REWRITE_DATA_FILES, RewriteDataFiles()),))


@pytest.fixture(scope="module")
def shared(kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two tables that need care, one of which is left to people."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("policy")) as make:
        place = cared_place(make, AUTOMATIC + OPTED_OUT, databases=1)
        small_files(place, ORDERS)
        small_files(place, ITEMS)
        yield place


@pytest.fixture
def place(shared: Place) -> Place:
    """The tables are cached, and nothing was done yet."""
    forget_all(shared)
    refresh(shared)
    return shared


def keep(place: Place) -> QueuedActions:
    with opened(place) as (project, control):
        return PolicyRunner(project.context).run_once(control)


def jobs(place: Place) -> list[tuple[Any, ...]]:
    return place.control.execute(
        "SELECT name, status, submitted_by, lock_at, unique_key, priority, payload"
        " FROM tidegate_control.jobs ORDER BY submitted_at"
    )


@contextmanager
def claimed(place: Place) -> Iterator[tuple[Project, Connection, Claim]]:
    """The job that was queued, as a worker has it."""
    with opened(place) as (project, control):
        worker = WorkerIdentity.of_this_process(project.name)
        Workers(project.context.plane).register(control, worker, "test")
        (claim,) = Jobs(project.context.plane).claim_ready(
            control,
            worker.worker_id,
            project=project.name,
            kinds=[MAINTENANCE],
            lease_seconds=60,
        )
        yield project, control, claim


def end(place: Place, status: JobStatus, *actions: tuple[str, str]) -> UUID:
    """Work the queued job: these actions, each with how it went, then this end."""
    with claimed(place) as (project, control, claim):
        store = Jobs(project.context.plane)
        for action, went in actions:
            store.record_action(control, claim, action, {"status": went, "error": None})
        error = None if status is JobStatus.DONE else "it broke"
        assert store.finish(control, claim, status, actor="test", error=error)
        return claim.job_id


def pass_time(place: Place, interval: str) -> None:
    """As if all that was done had been done so long ago."""
    place.control.execute(
        f"UPDATE tidegate_control.jobs SET submitted_at = submitted_at - interval '{interval}',"
        f" finished_at = finished_at - interval '{interval}'",
        "UPDATE tidegate_control.job_actions"
        f" SET finished_at = finished_at - interval '{interval}'",
    )


def test_a_table_that_needs_care_is_queued_once_and_one_that_opted_out_never(
    place: Place,
) -> None:
    with opened(place) as (project, control):
        project.context.plane.start_draining(control, "test")
        assert keep(place) == QueuedActions(), "nothing is queued while the control plane drains"
        project.context.plane.stop_draining(control)
    assert keep(place) == QueuedActions(queued=1, looked_at=1)
    assert keep(place) == QueuedActions(queued=0, looked_at=1)
    ((name, status, actor, lock_at, unique_key, priority, payload),) = jobs(place)
    assert (name, status, actor, lock_at) == ("lake:raw.orders", "pending", "policy", "claim")
    assert unique_key == "maintenance:lake:raw.orders"
    assert priority < 0
    assert payload["target"] == "lake:raw.orders"
    assert ActionList.read(payload["order"]) == REWRITE


def test_of_many_loops_at_once_one_queues(place: Place) -> None:
    together = threading.Barrier(8)

    def loop(_: int) -> int:
        with opened(place) as (project, control):
            keeper = PolicyRunner(project.context)
            together.wait()
            return keeper.run_once(control).queued

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(loop, range(8))) == 1
    assert len(jobs(place)) == 1


def test_a_loop_whose_turn_comes_late_looks_anew_and_does_not_queue_what_was_done(
    place: Place,
) -> None:
    about_to, go_on = threading.Event(), threading.Event()

    class Late(PolicyRunner):
        def _decide(self, *given: Any) -> bool:
            about_to.set()
            assert go_on.wait(60)
            return super()._decide(*given)

    def keep_late() -> QueuedActions:
        with opened(place) as (project, control):
            return Late(project.context).run_once(control)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(keep_late)
        assert about_to.wait(60)
        assert keep(place).queued == 1
        end(place, JobStatus.DONE, ("rewrite_data_files", "done"))
        go_on.set()
        assert late.result() == QueuedActions(queued=0, looked_at=1)


def test_what_has_run_waits_for_its_cadence_and_for_something_new(place: Place) -> None:
    keep(place)
    end(place, JobStatus.DONE, ("rewrite_data_files", "done"))
    add_files(place)
    refresh(place)
    assert keep(place).queued == 0
    pass_time(place, "2 hours")
    assert keep(place).queued == 1


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_after_a_failure_the_wait_grows(place: Place, status: JobStatus) -> None:
    keep(place)
    end(place, status)
    assert keep(place).queued == 0
    with opened(place) as (project, control):
        last = MaintenanceJobs(project.context.plane, project.name).last_runs(control, TARGET)
    assert list(last) == [Action.REWRITE_DATA_FILES]
    assert last[Action.REWRITE_DATA_FILES].status == "failed"
    assert last[Action.REWRITE_DATA_FILES].failures == 1
    pass_time(place, "130 minutes")
    assert keep(place).queued == 1
    end(place, status)
    pass_time(place, "130 minutes")
    assert keep(place).queued == 0
    pass_time(place, "130 minutes")
    assert keep(place).queued == 1


def test_a_table_that_somebody_holds_or_that_cannot_be_read_is_left_alone(place: Place) -> None:
    with opened(place) as (project, control):
        held = submit_maintenance(project.context, control, TARGET, REWRITE, actor="a person")
        assert held.outcome is Submitted.QUEUED
        assert keep(place).queued == 0
        again = submit_maintenance(project.context, control, TARGET, REWRITE, actor="another")
        assert again.outcome is Submitted.LOCKED
        holder = table_holder(project.context, control, TARGET)
        assert holder is not None
        assert holder.job_id == held.job_id
    end(place, JobStatus.CANCELLED)
    pass_time(place, "1 day")
    place.control.execute("UPDATE tidegate_control.lake_tables SET error = 'gone'")
    assert keep(place).queued == 0
    place.control.execute("UPDATE tidegate_control.lake_tables SET error = NULL")
    assert keep(place).queued == 1


def test_the_last_run_of_each_action_is_told_from_jobs_that_did_something(place: Place) -> None:
    def last(target: Endpoint = TARGET) -> dict[Action, LastRun]:
        with opened(place) as (project, control):
            found = MaintenanceJobs(project.context.plane, project.name)
            return found.last_runs(control, target)

    with opened(place) as (project, control):
        context = project.context
        first, again = (
            record_dry_run(
                context, control, TARGET, REWRITE, {}, actor="a person", idempotency_key="k"
            )
            for _ in range(2)
        )
        assert first == again, "a dry run is repeated by its key"
        assert table_holder(project.context, control, TARGET) is None
        ((_, status, actor, lock_at, *_),) = jobs(place)
        assert (status, actor, lock_at) == ("done", "a person", LockAt.NEVER)
        assert Jobs(project.context.plane).depth(control) == 0
    assert last() == {}
    keep(place)
    end(
        place,
        JobStatus.FAILED,
        ("expire_snapshots", "done"),
        ("remove_orphan_files", "skipped"),
        ("rewrite_data_files", "failed"),
    )
    runs = last()
    assert {action: (run.status, run.failures) for action, run in runs.items()} == {
        Action.EXPIRE_SNAPSHOTS: ("done", 0),
        Action.REWRITE_DATA_FILES: ("failed", 1),
    }
    pass_time(place, "1 day")
    keep(place)
    end(place, JobStatus.DONE, ("rewrite_data_files", "done"))
    run = last()[Action.REWRITE_DATA_FILES]
    assert (run.status, run.failures) == ("done", 0)
    assert run.at > runs[Action.REWRITE_DATA_FILES].at - timedelta(days=1)
    assert last(Endpoint("lake", ITEMS)) == {}


def test_a_sweeper_refreshes_and_queues_by_itself(place: Place) -> None:
    forget_all(place)
    done = tidegate(place.folder, "sweeper", "--once", "--json")
    assert done.code == DONE, done
    assert done.document["tables"]["read"] == 2
    ((name, status, *_),) = jobs(place)
    assert (name, status) == ("lake:raw.orders", "pending")


@pytest.mark.chaos
def test_up_looks_after_a_lake_by_itself(make_place: MakePlace) -> None:
    """Nobody does anything: a sweeper sees the table, a worker maintains it."""
    place = cared_place(make_place, AUTOMATIC + '\n[spark]\nmaster = "local[1]"\n')
    small_files(place, ORDERS)
    with opened(place) as (project, control):
        channel = project.context.plane.channel("jobs")
        control.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        up = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "up", "--project", str(place.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert next(control.notifies(timeout=120), None) is not None
            job_id = place.control.value("SELECT job_id FROM tidegate_control.jobs")
            record = wait_for_end(project.context, job_id, 240)
            assert record.status is JobStatus.DONE, record.error
            assert record.submitted_by == ACTOR
        finally:
            up.terminate()
            up.wait(30)
        refresh(place)
        table = find_table(project.context, control, "raw", "orders")
        assert table.facts is not None
        assert table.facts.data.files == 1
