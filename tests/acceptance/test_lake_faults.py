"""A lake whose catalog is lost at a commit, and one that others write to as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from acceptance import lake_writer, oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.lake_oracle import SCHEMA
from acceptance.processes import Process
from acceptance.proxy import Cut, Proxy
from acceptance.spark_server import SparkServer
from acceptance.test_server_crash import crash
from conftest import MakeDatabase
from tidegate.postgres.embedded import EmbeddedServer

MakeCut = Callable[[Cut, str], tuple[Proxy, str]]
# What a publish commits to the catalog, in this order.
COMMITS = ("the branch", "the rows", "main", "the branch's end")
WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name LIKE 'tidegate publish%%' AND wait_event_type = 'Lock'"
)


def is_catalog_commit(message: bytes) -> bool:
    """A statement by which Iceberg moves a table to its next state."""
    return message[:1] == b"P" and b"UPDATE iceberg_tables SET metadata_location" in message


def finish(scene: Scene, process: Process) -> None:
    """The run has come through, or the next one does."""
    ended = process.wait()
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err, ended
    oracle.wait_until_left(scene.source)
    scene.run()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["intent.noted", "branch.forwarded"])
def test_the_catalog_s_server_crashes_about_the_commit(
    make_scene: MakeScene, doomed: EmbeddedServer, point: str
) -> None:
    scene = make_scene(2, lake=True, control=doomed.conninfo())
    process, flag = scene.start_and_hold(point)
    crash(doomed)
    flag.unlink()
    finish(scene, process)


def test_the_catalog_s_server_crashes_in_the_commit(
    make_scene: MakeScene, doomed: EmbeddedServer
) -> None:
    scene = make_scene(2, lake=True, control=doomed.conninfo())
    process, flag = scene.start_and_hold("intent.noted")
    blocking = psycopg.connect(scene.control)
    blocking.execute(f"SELECT FROM {SCHEMA}.fences FOR UPDATE")  # type: ignore[arg-type]
    flag.unlink()
    process.wait_for(lambda: oracle.scalar(scene.control, WAITS) == 1, "main to be moved")
    crash(doomed)
    blocking.close()
    finish(scene, process)


@pytest.fixture
def make_cut(server: EmbeddedServer, make_database: MakeDatabase) -> Iterator[MakeCut]:
    made: list[Proxy] = []

    def make(cut: Cut, commit: str) -> tuple[Proxy, str]:
        proxy = Proxy(
            server.port,
            cut,
            "tidegate.attempt=",
            commits=is_catalog_commit,
            skip=COMMITS.index(commit),
        )
        made.append(proxy)
        return proxy, make_conninfo(make_database("control"), port=proxy.port)

    yield make
    for proxy in made:
        proxy.close()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["merge", "append"])
@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.BEFORE_ANSWER])
def test_the_catalog_s_answer_to_a_commit_is_lost(
    make_scene: MakeScene, make_cut: MakeCut, cut: Cut, mode: str
) -> None:
    """The run may fail; then the next one finds out what has become of it.

    Without processes of their own these commits are lost in test_lake_commit_lost.
    """
    for commit in COMMITS:
        proxy, control = make_cut(cut, commit)
        scene = make_scene(2, lake=True, control=control, sync={"mode": mode})
        ended = scene.start().wait()
        assert proxy.cuts == 1, commit
        assert ended.code in (0, 1), ended
        assert "Traceback" not in ended.err, ended
        scene.run()
        scene.assert_exact()
        scene.assert_swept()


@pytest.fixture
def elsewhere(tmp_path: Path, spark_server: SparkServer) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path / "stop", spark_server)
    yield made
    made.close()


class Elsewhere:
    """Starts and stops another writer."""

    def __init__(self, stop: Path, spark_server: SparkServer) -> None:
        self._stop = stop
        self._server = spark_server
        self._process: Process | None = None

    def write_to(self, scene: Scene) -> None:
        command = [sys.executable, str(Path(lake_writer.__file__)), str(scene.folder)]
        process = Process([*command, self._server.url, str(self._stop)], scene.folder / "writer")
        self._process = process
        process.wait_for(lambda: process.out != "", "the other writer's first row")

    @property
    def rows(self) -> int:
        """How many rows the other writer says that it has put in."""
        assert self._process is not None
        return len(self._process.out.split())

    def end(self) -> int:
        """Stop; returns how many rows it has put in."""
        assert self._process is not None
        self._stop.touch()
        ended = self._process.wait()
        assert ended.code == 0, ended
        return self.rows

    def close(self) -> None:
        if self._process is not None:
            self._process.kill_all()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["merge", "append"])
def test_others_commit_every_second_while_a_load_goes_on(
    make_scene: MakeScene, elsewhere: Elsewhere, mode: str
) -> None:
    scene = make_scene(2, lake=True, sync={"mode": mode}, batch_rows=30)
    scene.run()
    elsewhere.write_to(scene)
    begun = elsewhere.rows
    with psycopg.connect(scene.source, autocommit=True) as connection:
        for _ in range(2):
            with connection.transaction():
                scene.change_in(connection, "orders", 25)
    ended = scene.start().wait(240)
    meanwhile = elsewhere.rows - begun
    total = elsewhere.end()
    assert ended.code == 0, ended
    assert meanwhile > 2, "the other writer hardly got to write"
    found = scene.read_target("orders")
    foreign = [row for row in found if row[0] == lake_writer.REGION]
    assert sorted(int(str(row[1])) for row in foreign) == list(range(total))
    own = [row for row in found if row[0] != lake_writer.REGION]
    source = oracle.read_rows(scene.source, ("public", "orders"), scene.columns, scene.key)
    if mode == "append":
        # Rows that were changed between two runs are there in both versions.
        assert len({row[:2] for row in own}) == len(source)
        assert set(source) <= set(own)
        assert len(own) == len(set(own))
    else:
        oracle.assert_same_rows(source, own)
    scene.assert_ledger()
    scene.assert_nothing_staged()
