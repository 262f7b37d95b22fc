"""The destination's server crashes; crash recovery empties what was staged, and only that."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from tidegate.postgres.embedded import EmbeddedServer


def crash(server: EmbeddedServer) -> None:
    assert server.stop("immediate")
    server.start()


def staged_rows(scene: Scene) -> list[int]:
    with psycopg.connect(scene.destination, autocommit=True) as connection:
        counts = []
        for table in oracle.staging_tables(scene.destination):
            row = connection.execute(
                sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("tidegate", table))
            ).fetchone()
            assert row is not None
            counts.append(row[0])
        return counts


def test_the_same_run_stages_again_after_the_server_lost_its_staging(
    make_scene: MakeScene, doomed: EmbeddedServer
) -> None:
    scene = make_scene(2, destination=doomed.conninfo())
    scene.run()
    scene.change()
    process, flag = scene.start_and_hold("check.done")
    assert sum(staged_rows(scene)) > 0
    crash(doomed)
    assert sum(staged_rows(scene)) == 0
    flag.unlink()
    ended = process.wait()
    assert ended.code == 0, ended
    scene.assert_exact()
    scene.assert_swept()


def test_publishing_waits_for_a_server_that_is_down(
    make_scene: MakeScene, doomed: EmbeddedServer
) -> None:
    scene = make_scene(2, destination=doomed.conninfo())
    process, flag = scene.start_and_hold("publish.applied")
    assert doomed.stop("immediate")
    flag.unlink()
    doomed.start()
    ended = process.wait()
    assert ended.code == 0, ended
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.parametrize(
    "point",
    [
        "publish.committed",
        *(
            pytest.param(point, marks=pytest.mark.chaos)
            for point in ("stage.done", "check.done", "publish.marked", "publish.moved")
        ),
    ],
)
def test_everything_on_the_crashed_server(
    make_scene: MakeScene, doomed: EmbeddedServer, point: str
) -> None:
    """The run may fail, for its snapshot is gone too; the next one finishes."""
    everything = doomed.conninfo()
    scene = make_scene(1, source=everything, destination=everything, control=everything)
    process, flag = scene.start_and_hold(point)
    crash(doomed)
    flag.unlink()
    ended = process.wait()
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err, ended
    scene.run()
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["stage.done", "publish.fenced", "publish.moved"])
@pytest.mark.parametrize("when", ["first load", "later load"])
def test_the_server_crashes_at_other_points(
    make_scene: MakeScene, doomed: EmbeddedServer, point: str, when: str
) -> None:
    scene = make_scene(2, destination=doomed.conninfo())
    if when == "later load":
        scene.run()
        scene.change()
    process, flag = scene.start_and_hold(point)
    crash(doomed)
    flag.unlink()
    ended = process.wait()
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err, ended
    scene.run()
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.chaos
def test_the_control_database_crashes_during_a_run(
    make_scene: MakeScene, doomed: EmbeddedServer
) -> None:
    scene = make_scene(2, control=doomed.conninfo())
    process, flag = scene.start_and_hold("publish.applied")
    crash(doomed)
    flag.unlink()
    ended = process.wait()
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err, ended
    scene.run()
    scene.assert_exact()
    scene.assert_swept()
