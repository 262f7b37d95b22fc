"""Schedulers and workers are SIGKILLed all the time: each task of a graph is done exactly once."""

from __future__ import annotations

import random

import pytest

from acceptance.conftest import MakeQueue
from acceptance.queueing import QUICK
from acceptance.spark_server import SparkServer
from acceptance.task_storm import Storm, assert_weathered, weather
from chaos_seeds import chosen

SECTIONS = {"scheduler": {"poll": "100ms"}, "resources": {"pool": 4}}
WORKER = {**QUICK, "lease": "5s", "heartbeat": "1s"}


def new_seed() -> int:
    """Another one every time."""
    return chosen(random.randrange(1, 10**6))


def run(make_queue: MakeQueue, storm: Storm, spark: dict[str, str]) -> None:
    queue = make_queue(
        2,
        tables=(),
        pipelines=storm.pipelines(),
        worker=WORKER,
        sections=SECTIONS,
        spark=spark,
    )
    weather(queue, storm)
    assert_weathered(queue, storm)


def test_fifty_tasks_are_done_once_though_all_who_do_them_are_killed(
    make_queue: MakeQueue,
) -> None:
    storm = Storm(tasks=50, waves=5, days=2, workers=2, kills=12, seed=new_seed())
    run(make_queue, storm, {"master": "local[1]"})


@pytest.mark.chaos
def test_five_hundred_tasks_are_done_once_though_all_who_do_them_are_killed(
    make_queue: MakeQueue, spark_server: SparkServer
) -> None:
    storm = Storm(
        tasks=500,
        waves=10,
        days=5,
        workers=3,
        schedulers=2,
        kills=80,
        frames=10,
        seed=new_seed(),
    )
    run(make_queue, storm, {"remote": spark_server.url})
