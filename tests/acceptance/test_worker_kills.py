"""Workers are SIGKILLed at random moments: nothing is lost, nothing ends twice, nothing is held."""

from __future__ import annotations

import random
import signal
import time

import pytest

from acceptance import oracle
from acceptance.conftest import MakeQueue
from acceptance.processes import Process, until
from chaos_seeds import chosen

TABLES = ("orders", "returns", "visits")


def is_ready(process: Process) -> bool:
    assert process.alive, process.wait()
    return " takes " in process.out


@pytest.mark.parametrize(
    ("databases", "workers", "kills"),
    [(2, 2, 3), *(pytest.param(one, 4, 50, marks=pytest.mark.chaos) for one in (1, 2, 3))],
)
def test_workers_are_killed_at_random_moments(
    make_queue: MakeQueue, databases: int, workers: int, kills: int
) -> None:
    """Work comes in while workers are killed and replaced, until all of it has been given."""
    queue = make_queue(databases, tables=TABLES, batch_rows=15)
    scene = queue.scene
    rng = random.Random(chosen(kills + databases))
    living = [queue.start("--concurrency", "2") for _ in range(workers)]
    for number in range(kills):
        table = TABLES[number % len(TABLES)]
        scene.change(1, table=table)
        queue.submit_sync(table, max_attempts=100)
        queue.submit_nothing(9, max_attempts=100)
        victim = rng.choice([one for one in living if is_ready(one)] or living)
        until(lambda victim=victim: is_ready(victim), "a worker to be ready")  # type: ignore[misc]
        if number % 3 == 2:
            # In the middle of the quick ones, which are over in no time.
            queue.submit_nothing(5, max_attempts=100)
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
    queue.assert_all_done()
    lost = "SELECT count(*) FROM tidegate_control.job_attempts WHERE outcome = 'lost'"
    assert oracle.scalar(scene.control, lost), "no kill hit any work"
    # Spark's workers may outlive a killed driver, and stage after its job was taken over.
    oracle.wait_until_left(scene.source, scene.destination, scene.control)
    queue.sweep()
    assert oracle.staging_tables(scene.destination) == []
