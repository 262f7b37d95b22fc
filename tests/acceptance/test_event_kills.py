"""Events, processes and SIGKILL: whatever dies, every event ends once and every sum is right."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from acceptance.event_scene import UNTIL, EventScene
from acceptance.processes import until
from acceptance.spark_server import SparkServer
from chaos_seeds import chosen
from conftest import MakeDatabase
from tidegate.core.failpoints import POINTS

COUNT = 1_200
INSTANCES = 4
OF_EVENTS = tuple(point for point in POINTS if point.startswith("event."))
OF_ANY_JOB = ("job.submitted", "job.claimed", "fence.raised", "job.finishing", "job.finished")

MakeEvents = Callable[..., EventScene]


@pytest.fixture
def make_events(tmp_path: Path, make_database: MakeDatabase) -> Iterator[MakeEvents]:
    """A maker of scenes; every process they started is gone before their databases are."""
    made: list[EventScene] = []

    def make(databases: int = 2, **options: object) -> EventScene:
        warehouse = make_database("warehouse")
        control = make_database("control") if databases > 1 else warehouse
        folder = tmp_path / f"events-{len(made)}"
        made.append(EventScene(folder, warehouse, control, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for scene in made:
        scene.close()


# The tables of a run that nobody disturbed, made by the first test that needs them.
_undisturbed: dict[str, list[str]] = {}


def undisturbed(make_events: MakeEvents) -> dict[str, list[str]]:
    if not _undisturbed:
        scene = make_events(1)
        scene.generate(COUNT)
        scene.run()
        scene.assert_exact()
        _undisturbed.update(scene.tables())
    return _undisturbed


def test_killed_at_one_point_after_the_other_it_is_the_same_table_by_table(
    make_events: MakeEvents,
) -> None:
    scene = make_events(1, batch_size=150)
    scene.generate(COUNT)
    scene.watch()
    for point in OF_EVENTS:
        kill_at(scene, f"{point}=kill")
    scene.run()
    scene.assert_swept()
    assert scene.tables() == undisturbed(make_events)


@pytest.mark.chaos
@pytest.mark.parametrize("point", [*OF_EVENTS, *OF_ANY_JOB])
def test_killed_at_a_point_and_run_again_it_is_the_same_table_by_table(
    make_events: MakeEvents, point: str
) -> None:
    scene = make_events(1)
    scene.generate(COUNT)
    scene.watch()
    # Of batches and views there are several: the second of them.
    kill_at(scene, f"{point}@{1 if point == 'event.provisioned' else 2}=kill")
    scene.run()
    scene.assert_swept()
    assert scene.tables() == undisturbed(make_events)


def kill_at(scene: EventScene, failpoint: str) -> None:
    ended = scene.start(failpoint=failpoint).wait()
    assert ended.code == -signal.SIGKILL, ended


def test_a_month_that_arrives_between_the_first_two_phases_gets_its_partition(
    make_events: MakeEvents, tmp_path: Path
) -> None:
    scene = make_events()
    scene.run()
    flag = tmp_path / "provisioned"
    run = scene.start(failpoint=f"event.provisioned=wait:{flag}")
    run.wait_for(flag.exists, "the first phase")
    at = UNTIL - timedelta(days=700)
    body = {"occurred_at": at.isoformat(), "type": "signup", "account": {"id": "a"}}
    with psycopg.connect(scene.warehouse, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO raw_events (id, body) VALUES (%s, %s)", (uuid4(), json.dumps(body))
        )
    assert scene.value(f"SELECT to_regclass('warehouse.fact_events_{at:%Y_%m}') IS NULL")
    flag.unlink()
    ended = run.wait()
    assert ended.code == 0, ended
    assert scene.execute("SELECT status, error FROM raw_events") == [("done", None)]
    assert scene.value(f"SELECT count(*) FROM warehouse.fact_events_{at:%Y_%m}") == 1


def test_readers_that_never_stop_are_never_kept_waiting(make_events: MakeEvents) -> None:
    scene = make_events()
    scene.generate(300, seed=1)
    scene.run()
    views = [row[0] for row in scene.execute("SELECT mv_name FROM analytics.mv_refresh_log")]
    assert len(views) == 4
    stopping, reads, trouble = threading.Event(), [0], list[psycopg.Error]()

    def read() -> None:
        with psycopg.connect(scene.warehouse, autocommit=True) as reader:
            # A lock that readers wait for at all would be held for the whole of a refresh.
            reader.execute("SET lock_timeout = '250ms'")
            while not stopping.wait(0.01):
                try:
                    for relation in (*views, "warehouse.fact_events"):
                        reader.execute(f"SELECT count(*) FROM {relation}")  # type: ignore[arg-type]
                        reads[0] += 1
                except psycopg.Error as error:
                    trouble.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for one in threads:
        one.start()
    try:
        for seed in (2, 3):
            scene.generate(400, seed=seed)
            runs = [scene.start() for _ in range(2)]
            for run in runs:
                ended = run.wait()
                assert ended.code == 0, ended
    finally:
        stopping.set()
        for one in threads:
            one.join()
    assert trouble == []
    assert reads[0] > 100
    log = "SELECT count(*) FROM analytics.mv_refresh_log WHERE changes = (SELECT changes"
    assert scene.value(f"{log} FROM tidegate.event_changes)") == 4


def storm(scene: EventScene, count: int, kills: int, seconds: tuple[float, float]) -> None:
    """Instances that are killed at random moments while events come in."""
    chance = random.Random(chosen(count))
    parts = 4
    scene.generate(count // parts, seed=0)
    scene.watch()
    adding = threading.Thread(
        target=lambda: [scene.generate(count // parts, seed=seed) for seed in range(1, parts)]
    )
    adding.start()
    running = [scene.start() for _ in range(INSTANCES)]
    killed = 0
    while killed < kills or adding.is_alive():
        time.sleep(chance.uniform(*seconds))
        place = chance.randrange(INSTANCES)
        if running[place].alive and killed < kills:
            running[place].kill_all()
            killed += 1
        for number, one in enumerate(running):
            if not one.alive:
                ended = one.wait()
                assert ended.code in (0, -signal.SIGKILL), ended
                running[number] = scene.start()
    adding.join()
    for one in running:
        ended = one.wait(600)
        assert ended.code == 0, ended
    scene.run()


@pytest.mark.parametrize(
    ("count", "kills"), [(2_000, 4), pytest.param(20_000, 16, marks=pytest.mark.chaos)]
)
def test_four_instances_under_random_kills_lose_and_repeat_nothing(
    make_events: MakeEvents, count: int, kills: int
) -> None:
    scene = make_events(batch_size=300)
    storm(scene, count, kills, seconds=(0.2, 0.9))
    scene.assert_swept()
    assert scene.value("SELECT count(*) FROM ended") == count
    # Some of many died while they held events; where each does, test_killed_at_one_point says.
    if kills > 10:
        assert scene.lost_attempts("events.process") > 2
    calm = make_events(1)
    for seed in range(4):
        calm.generate(count // 4, seed=seed)
    calm.run()
    assert scene.tables() == calm.tables()


@pytest.mark.chaos
def test_four_instances_on_spark_under_many_kills(
    make_events: MakeEvents, spark_server: SparkServer
) -> None:
    scene = make_events(batch_size=4_000, spark={"remote": spark_server.url})
    storm(scene, 200_000, kills=60, seconds=(0.5, 4.0))
    scene.assert_swept()
    assert scene.value("SELECT count(*) FROM ended") == 200_000


def test_an_instance_that_stops_holds_up_nobody_and_ends_nothing_twice(
    make_events: MakeEvents, tmp_path: Path
) -> None:
    scene = make_events()
    scene.generate(COUNT)
    scene.watch()
    flag = tmp_path / "claimed"
    stopped = scene.start(failpoint=f"event.staged=wait:{flag}")
    stopped.wait_for(flag.exists, "the first batch")
    stopped.stop()
    other = scene.run("--json")
    document = json.loads(other.out)
    assert document["processed"]["claimed"] == COUNT - 500
    assert document["processed"]["left_pending"] == 500
    flag.unlink()
    stopped.resume()
    ended = stopped.wait()
    assert ended.code == 0, ended
    until(lambda: scene.value("SELECT count(*) FROM ended") == COUNT, "the last events")
    scene.assert_swept()


@pytest.mark.parametrize(
    "told", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.chaos)]
)
def test_told_to_go_it_leaves_its_job_and_the_next_run_does_what_is_left(
    make_events: MakeEvents, tmp_path: Path, told: signal.Signals
) -> None:
    scene = make_events(batch_size=300)
    scene.generate(COUNT)
    scene.watch()
    points = ("event.provisioned", "event.staged", "event.refreshed")
    for point in points:
        flag = tmp_path / point
        run = scene.start(failpoint=f"{point}=wait:{flag}")
        run.wait_for(flag.exists, point)
        run.send(told)
        ended = run.wait()
        assert ended.code == (130 if told is signal.SIGINT else 1), ended
        assert f"1 job {'cancelled' if told is signal.SIGINT else 'given back'}" in ended.err
    scene.run()
    scene.assert_swept()
    assert scene.jobs("pending") == 0
    assert scene.jobs("cancelled") == (len(points) if told is signal.SIGINT else 0)
    assert scene.tables() == undisturbed(make_events)
