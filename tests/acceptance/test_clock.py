"""A worker whose wall clock is wrong: only the database's clock and the machine's uptime count.

The clock is shifted in the worker's process alone, by a sitecustomize.py that replaces time.time,
time.time_ns and datetime.now. It uses its clock for what its log says, and to put new job ids into
an order (model/identity.new_job_id); both may be an hour off without harm.
"""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.oracle import assert_idle, scalar
from acceptance.processes import until
from acceptance.queueing import Queue
from acceptance.slow_stage import SlowStage
from tidegate.control.jobs import Jobs
from tidegate.control.workers import Worker, Workers
from tidegate.model.job import NOTHING, JobRequest, LockAt
from tidegate.postgres.connect import Connection

LEASE_SECONDS = 6.0
WORKER = {
    "lease": "6s",
    "heartbeat": "1s",
    "poll": "1s",
    "sweep": "1s",
    "retry_after": "2s",
    "retry_at_most": "2s",
}

_SHIFT = """
import ctypes, datetime, gc, time
_offset = {seconds}
_time, _time_ns, _now = time.time, time.time_ns, datetime.datetime.now
time.time = lambda: _time() + _offset
time.time_ns = lambda: _time_ns() + _offset * 10**9

def now(cls, tz=None):
    return _now(tz) + datetime.timedelta(seconds=_offset)

# A class of C, which extensions know by its address, so it cannot be replaced by another.
gc.get_referents(datetime.datetime.__dict__)[0]["now"] = classmethod(now)
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
"""


def shifted(folder: Path, seconds: int) -> dict[str, str]:
    """The environment of a process that is wrong about the time."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SHIFT.format(seconds=seconds), encoding="utf-8")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.parametrize("seconds", [3600, -3600], ids=["ahead", "behind"])
def test_a_worker_an_hour_off_claims_beats_sweeps_and_finishes_as_any_other(
    make_scene: MakeScene, tmp_path: Path, seconds: int
) -> None:
    slow = SlowStage(tmp_path)
    scene = make_scene(2, pipelines=slow.pipelines, worker=WORKER)
    queue = Queue(scene)
    environment = shifted(tmp_path / "clock", seconds)
    worker = queue.start_ready(environment=environment)
    queue.wait_until_ended(*queue.submit_nothing())

    # It keeps its lease beyond the first, whoever sweeps meanwhile.
    slow.close_gate()
    job_id = queue.submit_sync()
    worker.wait_for(lambda: slow.is_busy, "the transformation to run")
    assert hours_off(worker.err) == pytest.approx(seconds / 3600, abs=0.1)
    with ThreadPoolExecutor(1) as pool:
        leave = threading.Event()
        holding = pool.submit(hold_until, queue, leave)
        began = time.monotonic()
        try:
            while time.monotonic() - began < LEASE_SECONDS + 1:
                assert sweep(queue) == 0
                assert 0 < lease_left(scene, job_id) <= LEASE_SECONDS
                time.sleep(0.5)
        finally:
            leave.set()
    slow.let_go()
    queue.wait_until_ended(job_id)
    assert (queue.job(job_id).status, attempts(scene, job_id)) == ("done", 1)

    # It takes back from others when they are gone, not before.
    taken = holding.result()
    queue.wait_until_ended(taken)
    assert (queue.job(taken).status, attempts(scene, taken)) == ("done", 2)
    scene.assert_exact()

    # What failed waits as long as it should: half to all of retry_after.
    scene.change()
    (tmp_path / "fail").touch()
    failing = queue.submit_sync()
    until(lambda: waits(scene, failing) is not None, "the first error")
    (tmp_path / "fail").unlink()
    waiting = waits(scene, failing)
    assert waiting is not None
    assert 0.9 < waiting < 2.1
    queue.wait_until_ended(failing)
    assert (queue.job(failing).status, attempts(scene, failing)) == ("done", 2)
    scene.assert_exact()
    assert_idle(scene.control)
    queue.assert_each_ended_once()
    assert "attempt_lost" not in worker.err, worker.err


def hold_until(queue: Queue, leave: threading.Event) -> UUID:
    """A job of ours, by the right clock: kept past its first lease, then left behind."""
    with queue.opened() as project:
        plane = project.context.plane
        with plane.connect() as control, plane.connect() as own:
            me = Worker.of_this_process("shop", "test")
            Workers(plane).register(own, me, "0")
            jobs = Jobs(plane)
            with control.transaction():
                job_id = submit_within(jobs, control)
                claim = jobs.claim(control, me.worker_id, job_id, lease_seconds=LEASE_SECONDS)
            assert claim is not None
            while not leave.wait(0.5):
                assert jobs.beat(control, me.worker_id, [claim], LEASE_SECONDS)
    return job_id


def submit_within(jobs: Jobs, control: Connection) -> UUID:
    """A job that no worker sees before we have claimed it."""
    request = JobRequest("shop", NOTHING, "held", None, lock_at=LockAt.NEVER)
    submitted = jobs.submit(control, request, "test", announce=False)
    assert submitted.job_id is not None
    return submitted.job_id


def hours_off(log: str) -> float:
    """What the worker's log says of the time, against ours."""
    told = re.findall(r"timestamp='([^']+)'", log)[-1]
    difference = datetime.fromisoformat(told) - datetime.now(UTC)
    return difference.total_seconds() / 3600


def sweep(queue: Queue) -> int:
    with queue.opened() as project, project.context.plane.connect() as control:
        return project.sweeper("test").run_once(control).reclaimed


def lease_left(scene: Scene, job_id: UUID) -> float:
    query = (
        "SELECT extract(epoch FROM lease_until - now())::float8 FROM tidegate_control.job_queue"
        " WHERE job_id = %s"
    )
    found = scalar(scene.control, query, job_id)
    assert isinstance(found, float)
    return found


def attempts(scene: Scene, job_id: UUID) -> object:
    query = "SELECT attempt_count FROM tidegate_control.jobs WHERE job_id = %s"
    return scalar(scene.control, query, job_id)


def waits(scene: Scene, job_id: UUID) -> float | None:
    """How long a job that failed was told to wait; None when it has not."""
    query = (
        "SELECT extract(epoch FROM q.visible_at - a.at)::float8"
        " FROM tidegate_control.job_queue q JOIN tidegate_control.job_audit a USING (job_id)"
        " WHERE job_id = %s AND a.event = 'to be retried' AND q.claimed_at IS NULL"
    )
    found = scalar(scene.control, query, job_id)
    assert found is None or isinstance(found, float)
    return found
