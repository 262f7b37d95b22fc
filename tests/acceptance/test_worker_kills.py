"""Workers are SIGKILLed at random moments: nothing is lost, nothing ends twice, nothing is held."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass

import pytest

from acceptance import oracle
from acceptance.conftest import MakeQueue
from acceptance.processes import Process, until
from acceptance.queueing import Queue
from chaos_seeds import chosen

TABLES = ("orders", "returns", "visits")


@dataclass(frozen=True, slots=True)
class Storm:
    """So many jobs, of which one a kill is a sync, on so many workers."""

    kills: int
    jobs: int
    workers: int
    seed: int


def is_ready(process: Process) -> bool:
    assert process.alive, process.wait()
    return " takes " in process.out


def weather(queue: Queue, storm: Storm) -> None:
    """Work comes in while workers are killed and replaced, until all of it has been given."""
    rng = random.Random(storm.seed)
    living = [queue.start("--concurrency", "2") for _ in range(storm.workers)]
    for number in range(storm.kills):
        table = TABLES[number % len(TABLES)]
        queue.scene.change(1, table=table)
        queue.submit_sync(table, max_attempts=100)
        queue.submit_nothing(storm.jobs // storm.kills - 1, max_attempts=100)
        victim = rng.choice([one for one in living if is_ready(one)] or living)
        until(lambda victim=victim: is_ready(victim), "a worker to be ready")  # type: ignore[misc]
        if number % 4 == 3:
            # In the middle of the quick ones, which are over in no time.
            queue.submit_nothing(storm.jobs % storm.kills + 1, max_attempts=100)
        else:
            time.sleep(rng.uniform(0.0, 1.5))
        assert victim.kill().code == -signal.SIGKILL
        living[living.index(victim)] = queue.start("--concurrency", "2")
    until(lambda: queue.unfinished() == 0, "all jobs to end", seconds=300)
    for process in living:
        process.send(signal.SIGTERM)
        ended = process.wait()
        # One that was told while it still started has no say in it.
        assert ended.code in (0, -signal.SIGTERM) or "retried" in ended.err, ended


def assert_weathered(queue: Queue) -> None:
    scene = queue.scene
    queue.assert_all_done()
    lost = oracle.scalar(
        scene.control, "SELECT count(*) FROM tidegate_control.job_attempts WHERE outcome = 'lost'"
    )
    assert lost, "no kill hit any work"
    # Spark's workers may outlive a killed driver, and stage after its job was taken over.
    oracle.wait_until_left(scene.source, scene.destination, scene.control)
    queue.sweep()
    assert oracle.staging_tables(scene.destination) == []


def test_workers_are_killed_at_random_moments(make_queue: MakeQueue) -> None:
    queue = make_queue(2, tables=TABLES)
    weather(queue, Storm(kills=8, jobs=100, workers=2, seed=chosen(5)))
    assert_weathered(queue)


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
def test_four_workers_are_killed_fifty_times(make_queue: MakeQueue, databases: int) -> None:
    queue = make_queue(databases, tables=TABLES, batch_rows=15)
    weather(queue, Storm(kills=50, jobs=500, workers=4, seed=chosen(50 + databases)))
    assert_weathered(queue)
