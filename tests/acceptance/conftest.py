"""Scenes for the acceptance tests: real servers, a warm Spark, one, two or three databases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from acceptance.harness import NO_SPARK, Scene
from acceptance.queueing import QUICK, Queue
from acceptance.spark_server import SparkServer
from conftest import FAST, MakeDatabase
from tidegate.postgres.embedded import EmbeddedServer, StopMode
from tried import count

LOCAL = {"master": "local[2]"}
CONNECT = {"remote": "the server of this test process"}


class MakeScene(Protocol):
    """Makes a project over so many databases, with a source that has been changed once."""

    def __call__(self, databases: int = 2, **options: Any) -> Scene: ...


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    """Spark Connect for this test process, started when first asked for."""
    server = SparkServer(tmp_path_factory.mktemp("spark"))
    yield server
    server.stop()


@pytest.fixture
def make_scene(
    tmp_path: Path, make_database: MakeDatabase, spark_server: SparkServer
) -> Iterator[MakeScene]:
    """A maker of scenes; every process they started is gone before their databases are."""
    made: list[Scene] = []

    def make(databases: int = 2, **options: Any) -> Scene:
        source = make_database("source", control=databases == 1)
        destination = (
            make_database("warehouse", control=databases == 2) if databases > 1 else source
        )
        control = make_database("control", control=True) if databases > 2 else destination
        values = {"source": source, "destination": destination, "control": control, **options}
        # Rows that nothing transforms are copied by the command itself, unless Spark is the matter.
        spark = values.get("spark") or (
            CONNECT if values.get("lake") or values.get("pipelines") else NO_SPARK
        )
        values["spark"] = {"remote": spark_server.url} if spark == CONNECT else spark
        values.setdefault("seed", 7)
        scene = Scene(folder=tmp_path / f"project-{len(made)}", **values)
        made.append(scene)
        scene.change()
        return scene

    yield make
    for scene in made:
        scene.close()


class DoomedServer(EmbeddedServer):
    """Counts how often it is stopped or crashed."""

    def stop(self, mode: StopMode = "fast") -> bool:
        stopped = super().stop(mode)
        count(restarts=stopped)
        return stopped


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own, to be crashed."""
    server = DoomedServer(tmp_path / "doomed", FAST)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(server.directory)


class MakeQueue(Protocol):
    """Makes a scene with a queue; workers look often."""

    def __call__(self, databases: int = 2, **options: Any) -> Queue: ...


@pytest.fixture
def make_queue(make_scene: MakeScene) -> Iterator[MakeQueue]:
    """A maker of queues; their workers are gone before the scenes are."""
    made: list[Queue] = []

    def make(databases: int = 2, **options: Any) -> Queue:
        options.setdefault("worker", QUICK)
        queue = Queue(make_scene(databases, **options))
        made.append(queue)
        return queue

    yield make
    for queue in made:
        queue.close()
