"""A worker whose wall clock is wrong: only the database's clock and the machine's uptime count.

The clock is shifted in the worker's process alone: time.time, time.time_ns and datetime.now are
replaced. It uses its clock for what its log says, and to put new job ids into an order
(model/identity.new_job_id); both may be an hour off without harm.
"""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID

import pytest

from acceptance.conftest import MakeQueue
from acceptance.oracle import assert_idle, scalar
from acceptance.processes import until
from acceptance.queueing import Queue
from tidegate.jobs.job import NOTHING, JobRequest, LockAt
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerIdentity, Workers

LEASE_SECONDS = 6.0
WORKER = {
    "lease": "6s",
    "heartbeat": "1s",
    "poll": "1s",
    "sweep": "1s",
    "retry_after": "2s",
    "retry_at_most": "2s",
}
SHIFTED = """
import ctypes, datetime, gc, sys, time
_offset = {seconds}
_time, _time_ns, _now = time.time, time.time_ns, datetime.datetime.now
time.time = lambda: _time() + _offset
time.time_ns = lambda: _time_ns() + _offset * 10**9

def now(cls, tz=None):
    return _now(tz) + datetime.timedelta(seconds=_offset)

# A class of C, which extensions know by its address, so it cannot be replaced by another.
gc.get_referents(datetime.datetime.__dict__)[0]["now"] = classmethod(now)
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))

from tidegate.cli.main import main
sys.argv[0] = "tidegate"
main()
"""


@pytest.mark.parametrize(
    "seconds", [3600, pytest.param(-3600, marks=pytest.mark.chaos)], ids=["ahead", "behind"]
)
def test_a_worker_an_hour_off_claims_beats_sweeps_and_finishes_as_any_other(
    make_queue: MakeQueue, seconds: int
) -> None:
    queue = make_queue(2, worker=WORKER)
    scene = queue.scene
    script = scene.folder / "worker.py"
    script.write_text(SHIFTED.format(seconds=seconds), encoding="utf-8")
    command = [str(script), "worker", "--project", str(scene.folder)]

    # It keeps its lease beyond the first, whoever sweeps meanwhile.
    job_id = queue.submit_sync()
    worker, flag = scene.hold(
        "stage.done", lambda armed: scene.start_process(command, failpoint=armed)
    )
    with ThreadPoolExecutor(1) as pool:
        leave = threading.Event()
        holding = pool.submit(hold_until, queue, leave)
        began = time.monotonic()
        try:
            while time.monotonic() - began < LEASE_SECONDS + 1:
                assert queue.sweep()["reclaimed"] == 0
                assert 0 < lease_left(queue, job_id) <= LEASE_SECONDS
                time.sleep(0.5)
        finally:
            leave.set()
    flag.unlink()
    queue.wait_until_ended(job_id)
    assert ending(queue, job_id) == ("done", 1)
    scene.assert_ledger()

    # It takes back from others when they are gone, not before.
    taken = holding.result()
    queue.wait_until_ended(taken)
    assert ending(queue, taken) == ("done", 2)

    # What failed waits as long as it should: half to all of retry_after.
    scene.at_source("ALTER TABLE orders RENAME TO hidden")
    failing = queue.submit_sync()
    until(lambda: waits(queue, failing) is not None, "the first error")
    scene.at_source("ALTER TABLE hidden RENAME TO orders")
    assert 0.9 < (waits(queue, failing) or 0) < 2.1
    assert hours_off(worker.err) == pytest.approx(seconds / 3600, abs=0.1)
    queue.wait_until_ended(failing)
    assert ending(queue, failing) == ("done", 2)
    scene.assert_exact()
    assert_idle(scene.control)
    queue.assert_each_ended_once()
    assert "attempt_lost" not in worker.err, worker.err


def hold_until(queue: Queue, leave: threading.Event) -> UUID:
    """A job of ours, by the right clock: kept past its first lease, then left behind."""
    with queue.opened() as project:
        plane = project.context.plane
        with plane.connect() as control, plane.connect() as own:
            me = WorkerIdentity.of_this_process("shop", "test")
            Workers(plane).register(own, me, "0")
            jobs = Jobs(plane)
            request = JobRequest("shop", NOTHING, "held", None, lock_at=LockAt.NEVER)
            # No worker sees it before we have claimed it.
            with control.transaction():
                job_id = jobs.submit(control, request, "test", announce=False).job_id
                assert job_id is not None
                claim = jobs.claim(control, me.worker_id, job_id, lease_seconds=LEASE_SECONDS)
            assert claim is not None
            while not leave.wait(0.5):
                assert jobs.beat(control, me.worker_id, [claim], LEASE_SECONDS)
    return job_id


def hours_off(log: str) -> float:
    """What the worker's log says of the time, against ours."""
    told = re.findall(r"timestamp='([^']+)'", log)[-1]
    difference = datetime.fromisoformat(told) - datetime.now(UTC)
    return difference.total_seconds() / 3600


def lease_left(queue: Queue, job_id: UUID) -> float:
    query = (
        "SELECT extract(epoch FROM lease_until - now())::float8 FROM tidegate_control.job_queue"
        " WHERE job_id = %s"
    )
    return float(scalar(queue.scene.control, query, job_id))


def ending(queue: Queue, job_id: UUID) -> tuple[str, int]:
    job = queue.job(job_id)
    return job.status, job.attempt_count


def waits(queue: Queue, job_id: UUID) -> float | None:
    """How long a job that failed was told to wait; None when it has not."""
    query = (
        "SELECT extract(epoch FROM q.visible_at - a.at)::float8"
        " FROM tidegate_control.job_queue q JOIN tidegate_control.job_audit a USING (job_id)"
        " WHERE job_id = %s AND a.event = 'to be retried' AND q.claimed_at IS NULL"
    )
    found = scalar(queue.scene.control, query, job_id)
    assert found is None or isinstance(found, float)
    return found
