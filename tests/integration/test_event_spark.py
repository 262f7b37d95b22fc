"""The second phase with Spark: its tasks read and stage the events, the rest is the same."""

from __future__ import annotations

import random
from typing import Any

from integration.conftest import MakePlace, MakeProject
from integration.event_queues import NOVEMBER, Queue, visit

BODIES: list[dict[str, Any] | str] = [
    *(visit(number) for number in range(2_400)),
    *(visit(number) for number in range(0, 2_400, 7)),
    *("no json" for _ in range(20)),
    *(visit(number, at=NOVEMBER.replace(month=12)) for number in range(50)),
    "x" * (256 * 1024 + 1),
    *(visit(number, note="y" * 250_000) for number in range(3_000, 3_040)),
]


def test_spark_and_this_process_make_the_same_of_events(
    make_project: MakeProject, make_place: MakePlace
) -> None:
    random.Random(5).shuffle(BODIES)
    project, place = make_project()
    with_spark = Queue.make(project, place, spark_from=0)
    with_spark.put(BODIES)
    done = with_spark.process()
    assert project.context.spark.started
    assert (done.done, done.failed, done.left_pending) == (len(BODIES) - 21, 21, 0)
    assert with_spark.staging() == 0
    # Each batch was read by several tasks, and came back whole.
    assert with_spark.database.execute(
        "SELECT claimed, left_pending FROM tidegate.event_batches ORDER BY id"
    ) == [(len(BODIES), 50), (50, 0)]

    other = make_place()
    without = Queue.make(other.open(), other, spark_from=1_000_000)
    without.put(BODIES)
    assert without.process().facts == done.facts
    assert not without.project.context.spark.started
    assert without.contents() == with_spark.contents()
    assert without.reasons() == with_spark.reasons()


def test_a_batch_that_is_large_enough_starts_spark(make_project: MakeProject) -> None:
    project, place = make_project()
    queue = Queue.make(project, place, spark_from=10, batch_size=1_000)
    queue.put(visit(number) for number in range(30))
    assert queue.process().facts == 30
    assert project.context.spark.started
