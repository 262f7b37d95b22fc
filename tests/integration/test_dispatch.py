"""Graphs of jobs worked by real workers, within limits and in the order of what they need."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from uuid import UUID

import pytest

from integration.conftest import MakePlace
from integration.scheduling import Clockwork, open_clockwork
from tidegate.control.jobs import Jobs
from tidegate.model.job import NOTHING, JobRequest, LockAt
from tidegate.runtime.worker import Worker


@pytest.fixture
def clockwork(make_place: MakePlace) -> Iterator[Clockwork]:
    with open_clockwork(make_place(resources={"one": 1, "two": 2})) as opened:
        yield opened


def submit(clockwork: Clockwork, name: str, needs: list[UUID], limits: tuple[str, ...]) -> UUID:
    request = JobRequest(
        project=clockwork.project.name,
        kind=NOTHING,
        name=name,
        resource=None,
        lock_at=LockAt.NEVER,
        needs=tuple(needs),
        limits=limits,
    )
    found = Jobs(clockwork.project.context.plane).submit(clockwork.control, request, "test")
    assert found.job_id is not None
    return found.job_id


def test_workers_end_a_graph_to_the_last_job_each_after_what_it_needs(
    clockwork: Clockwork,
) -> None:
    chance, ids = random.Random(4), list[UUID]()
    needed: dict[UUID, list[UUID]] = {}
    for number in range(200):
        some = chance.sample(ids[-20:], k=min(len(ids), chance.randrange(4)))
        limits = chance.choice([(), (), ("one",), ("two",), ("one", "two")])
        ids.append(submit(clockwork, f"n{number}", some, limits))
        needed[ids[-1]] = some
    workers: list[Worker] = [
        clockwork.project.worker(kinds=[NOTHING], concurrency=4) for _ in range(3)
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    left = "SELECT count(*) FROM tidegate_control.job_queue"
    for _ in range(6000):
        if clockwork.control.execute(left).fetchone() == (0,):
            break
        threading.Event().wait(0.01)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join()
    rows = clockwork.control.execute(
        "SELECT job_id, status, attempt_count, started_at, finished_at FROM tidegate_control.jobs"
    ).fetchall()
    assert {(row[1], row[2]) for row in rows} == {("done", 1)}
    times = {row[0]: (row[3], row[4]) for row in rows}
    for job_id, some in needed.items():
        assert all(times[one][1] <= times[job_id][0] for one in some)


def test_a_worker_that_ends_with_its_queue_leaves_nothing_of_a_graph(
    clockwork: Clockwork,
) -> None:
    first = submit(clockwork, "a", [], ("one",))
    second = submit(clockwork, "b", [first], ("one",))
    submit(clockwork, "c", [first, second], ("two",))
    for name in "def":
        submit(clockwork, name, [], ("one",))
    tally = clockwork.project.worker(kinds=[NOTHING], concurrency=4, burst=True).run()
    assert (tally.done, tally.failed) == (6, 0)
