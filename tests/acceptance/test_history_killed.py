"""Workers are SIGKILLed: what they were at is in the history all the same, as lost."""

from __future__ import annotations

import signal
from uuid import UUID

import psycopg
import pytest

from acceptance.conftest import MakeQueue
from acceptance.processes import until
from acceptance.queueing import QUICK, SHORT_LEASE, Queue
from tidegate.jobs.history.record import TaskRecord


def remembered(queue: Queue, job_id: UUID) -> list[tuple[TaskRecord, list[str]]]:
    """The attempts at a job, the oldest first, and what happened to each."""
    with queue.opened() as project:
        found = [one for one in project.history.find_all_runs() if one.job_id == job_id]
        return [
            (one, [event.event.value for event in project.history.find_all_events(one.id)])
            for one in reversed(found)
        ]


@pytest.mark.parametrize("point", ["fence.raised", "job.finishing"])
def test_a_killed_attempt_is_lost_and_the_next_one_is_done(
    make_queue: MakeQueue, point: str
) -> None:
    queue = make_queue(1)
    job_id = queue.submit_vacuum()
    process, _ = queue.start_and_hold(point)
    ((running, _),) = remembered(queue, job_id)
    assert running.status == "running"
    assert process.kill().code == -signal.SIGKILL
    queue.burst()
    (lost, told_of_lost), (done, told_of_done) = remembered(queue, job_id)
    assert (lost.id, lost.status, done.status) == (running.id, "lost", "done")
    assert (lost.attempt, done.attempt) == (1, 2)
    assert lost.worker_id != done.worker_id
    assert told_of_lost[:2] == ["pending", "started"]
    assert told_of_lost[-2:] == ["lost", "retried"]
    assert told_of_done[-1] == "done"


def test_who_is_killed_after_its_job_is_done_has_its_end_told_by_another(
    make_queue: MakeQueue,
) -> None:
    # Its own sweeper must not come first, however slow the machine is.
    queue = make_queue(1, worker={**QUICK, "sweep": "1h"})
    job_id = queue.submit_vacuum()
    process, _ = queue.start_and_hold("job.finished")
    assert queue.job(job_id).status == "done"
    assert process.kill().code == -signal.SIGKILL
    ((left, _),) = remembered(queue, job_id)
    assert left.status == "running"
    queue.sweep()
    ((task, told),) = remembered(queue, job_id)
    assert (task.id, task.status) == (left.id, "done")
    assert told[-1] == "done"


def test_a_beat_that_finds_a_job_ended_by_its_own_attempt_calls_nothing_lost(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue(1, worker=SHORT_LEASE)
    job_id = queue.submit_vacuum()
    process, flag = queue.start_and_hold("job.finished", "--burst")
    began = beats(queue)
    until(lambda: beats(queue) > began, "a beat after the end of the job")
    flag.unlink()
    ended = process.wait()
    assert (ended.code, queue.job(job_id).status) == (0, "done")
    assert "job_done" in ended.err
    assert "attempt_lost" not in ended.err, ended.err


def beats(queue: Queue) -> float:
    """When the one worker has beaten last."""
    with psycopg.connect(queue.scene.control) as connection:
        row = connection.execute(
            "SELECT max(extract(epoch FROM beat_at))::float8 FROM tidegate_control.workers"
        ).fetchone()
    assert row is not None
    return float(row[0])
