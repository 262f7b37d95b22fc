"""Jobs and workers that cannot be right: a clear error, once, and the worker lives on."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from integration.commands import USAGE, tidegate
from integration.conftest import MakePlace, Place
from tidegate.control.jobs import Jobs
from tidegate.errors import SettingsError, UsageError
from tidegate.project import Project

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "updated_at"}
GOOD = {"target": "warehouse:raw.orders", "full_refresh": False}


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    made = make_place(ORDERS)
    made.source.execute("CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz)")
    with made.open() as project:
        project.context.control_id()
    return made


def write_job(place: Place, kind: str, name: str, payload: Any) -> UUID:
    """A job that nobody checked, as somebody's own SQL may have left it."""
    job_id = uuid4()
    with place.control.connect() as connection, connection.transaction():
        connection.execute(
            "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, resource, payload,"
            " max_attempts, submitted_by, lock_at)"
            " VALUES (%s, 'shop', %s, %s, %s, %s, 5, 'by hand', 'claim')",
            (job_id, kind, name, f"table {job_id}", json.dumps(payload)),
        )
        connection.execute(
            "INSERT INTO tidegate_control.job_queue (job_id, project, kind, visible_at,"
            " lock_resource) VALUES (%s, 'shop', %s, now(), %s)",
            (job_id, kind, f"table {job_id}"),
        )
    return job_id


def state(place: Place, job_id: UUID) -> tuple[str, int, str]:
    with place.control.connect() as connection:
        row = connection.execute(
            "SELECT status, attempt_count, coalesce(error, '') FROM tidegate_control.jobs"
            " WHERE job_id = %s",
            (job_id,),
        ).fetchone()
    assert row is not None
    return row


MALFORMED: dict[str, tuple[str, str, Any, str]] = {
    "no target": ("sync", "orders", {}, "the job orders is malformed: its payload holds no target"),
    "a target that is a number": ("sync", "orders", {"target": 7}, "holds no target"),
    "no object": ("sync", "orders", ["warehouse:raw.orders"], "holds no target"),
    "nothing": ("vacuum", "orders", None, "holds no target"),
    "a target that is no table": ("sync", "orders", {"target": "raw"}, "was submitted for raw"),
    "a flag that is a text": (
        "sync",
        "orders",
        {**GOOD, "full_refresh": "yes"},
        "full_refresh in its payload is 'yes', not true or false",
    ),
    "batches that are none": (
        "sync",
        "orders",
        {**GOOD, "max_batches": 0},
        "max_batches in its payload is 0",
    ),
    "an unknown connection": (
        "sync",
        "orders",
        {"target": "moon:raw.orders"},
        "sync orders loads into warehouse:raw.orders now; the job was submitted for moon:raw",
    ),
    "a sync that is not declared": ("sync", "ordres", GOOD, "there is no sync ordres"),
    "a vacuum of no sync": ("vacuum", "gone", GOOD, "there is no sync gone"),
}


def test_a_malformed_job_fails_once_with_its_reason_and_the_worker_lives_on(place: Place) -> None:
    jobs = {what: write_job(place, *one[:3]) for what, one in MALFORMED.items()}
    after = write_job(place, "noop", "after", {})
    with place.open() as project:
        tally = project.worker(burst=True, concurrency=2).run()
    assert (tally.done, tally.failed, tally.retried) == (1, len(MALFORMED), 0)
    for what, (_, _, _, reason) in MALFORMED.items():
        status, attempts, error = state(place, jobs[what])
        assert (status, attempts) == ("failed", 1), what
        assert reason in error, what
    assert state(place, after)[0] == "done"
    assert place.control.value("SELECT count(*) FROM tidegate_control.table_locks") == 0
    assert place.control.value("SELECT count(*) FROM tidegate_control.job_queue") == 0
    assert place.target.value("SELECT to_regclass('raw.orders')") is None


@pytest.mark.parametrize("payload", [{}, {"target": 7}, ["list"], {"target": "raw"}])
def test_a_malformed_job_whose_worker_died_is_swept_and_can_be_cancelled(
    place: Place, payload: Any
) -> None:
    """Nobody can have published for it, so there is no fence to wait for."""
    from tidegate.runtime.cancel import cancel_job

    swept, cancelled = (write_job(place, "sync", "orders", payload) for _ in range(2))
    place.control.execute(
        "UPDATE tidegate_control.job_queue SET claimed_at = now(), claimed_by = 'gone',"
        " attempt_id = job_id::text, fence = 1, lease_until = now() + interval '1 minute'",
        "UPDATE tidegate_control.jobs SET status = 'running', attempt_id = job_id::text",
    )
    with place.open() as project, project.context.plane.connect() as control:
        answer = cancel_job(project.context, control, cancelled, actor="test")
        assert answer.status == "cancelled"
        assert project.sweeper("test").run_once(control).reclaimed == 1
    assert state(place, cancelled)[0] == "cancelled"
    assert state(place, swept)[0] == "pending"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--kinds", "nonsense"], ["'nonsense' does not exist", "noop, sync, task, vacuum"]),
        (["--kinds", "sync,nonsense"], ["'nonsense' does not exist"]),
        (["--kinds", "publish"], ["'publish' cannot be queued", "noop, sync, task, vacuum"]),
        (["--concurrency", "0"], ["--concurrency", "greater than or equal"]),
        (["--concurrency", "many"], ["--concurrency"]),
        (["--once", "--burst"], ["--once and --burst were both given", "give one of them"]),
    ],
)
def test_a_worker_that_cannot_be_is_refused_with_2(
    place: Place, options: list[str], parts: list[str]
) -> None:
    done = tidegate(place.folder, "worker", *options)
    assert done.code == USAGE, done
    for part in parts:
        assert part in " ".join(done.err.split()), done
    assert place.control.value("SELECT count(*) FROM tidegate_control.workers") == 0


def test_the_same_from_python(place: Place) -> None:
    with place.open() as project:
        with pytest.raises(UsageError, match="'nonsense' does not exist"):
            project.worker(kinds=["nonsense"])
        with pytest.raises(UsageError, match="concurrency of 0"):
            project.worker(concurrency=0)
        with pytest.raises(UsageError, match="both given"):
            project.worker(once=True, burst=True)


@pytest.mark.parametrize("lease", ["-5s", "0s", "soon"])
def test_a_lease_that_holds_nothing_is_refused_by_the_settings(
    make_place: MakePlace, lease: str
) -> None:
    place = make_place(ORDERS, worker={"lease": lease, "heartbeat": "1s"})
    with pytest.raises(SettingsError, match=r"worker\.lease"):
        Project.open(place.folder)


@pytest.mark.parametrize("lease", [-5.0, 0.0])
def test_a_lease_that_holds_nothing_is_refused_by_the_store(place: Place, lease: float) -> None:
    job_id = write_job(place, "noop", "nothing", {})
    with place.open() as project, project.context.plane.connect() as control:
        jobs = Jobs(project.context.plane)
        with pytest.raises(UsageError, match="holds nothing"):
            jobs.claim(control, "worker", job_id, lease_seconds=lease)
        with pytest.raises(UsageError, match="holds nothing"):
            jobs.claim_ready(control, "worker", project="shop", kinds=["noop"], lease_seconds=lease)
        with pytest.raises(UsageError, match="holds nothing"):
            jobs.beat(control, "worker", [], lease)
    assert state(place, job_id) == ("pending", 0, "")
