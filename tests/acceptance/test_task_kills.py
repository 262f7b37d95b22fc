"""A graph of tasks that is killed at every named point and run again: each is done once."""

from __future__ import annotations

import signal

import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene

# Rows without a key: one that is published twice would show.
PIPELINES = """
from datetime import date
import tidegate as tg

@tg.task(target="warehouse:marts.tokens", mode="append")
def tokens(ctx, day: date):
    return ctx.spark.range(0, 60, 1, 2).selectExpr(f"DATE '{day}' AS day", "id", "uuid() AS token")

@tg.task(target="warehouse:marts.days", mode="delete_insert", requires=[tokens])
def days(ctx, day: date):
    found = ctx.read("warehouse:marts.tokens").where(f"day = DATE '{day}'")
    return found.groupBy("day").count()

@tg.task(requires=[days])
def told(ctx, day: date):
    with ctx.connect("warehouse") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS marts.told (day date)")
        connection.execute("INSERT INTO marts.told VALUES (%s)", (day,))
"""
# Of the first task, of the second, and of the side effect, in the order in which they come.
POINTS = (
    *("job.submitted", "job.claimed", "fence.raised", "stage.done", "check.done"),
    *("publish.fenced", "publish.marked", "publish.applied", "publish.moved"),
    *("publish.committed", "job.finishing", "job.finished"),
    *("job.claimed@2", "stage.done@2", "publish.applied@2", "publish.committed@2"),
    *("job.finishing@2", "job.submitted@3", "job.finishing@3", "publish.marked@3"),
    "job.finished@3",
)
SOME = ("publish.applied", "publish.committed", "publish.applied", "publish.marked@2")


def assert_once(scene: Scene) -> None:
    def found(query: str) -> list[tuple[object, ...]]:
        return oracle.rows(scene.destination, query)

    tokens = found("SELECT id, count(*) FROM marts.tokens GROUP BY 1 ORDER BY 1")
    assert tokens == [(number, 1) for number in range(60)]
    assert found("SELECT day::text, count FROM marts.days") == [("2026-11-01", 60)]
    markers = found("SELECT target_table FROM tidegate.table_updates ORDER BY 1")
    assert markers == [("marts.days",), ("marts.tokens",)]
    # A side effect happens at least once; that it is done is known once.
    assert found("SELECT day FROM marts.told") != []
    marked = "SELECT count(*) FROM tidegate_control.task_markers"
    assert oracle.scalar(scene.control, marked) == 1
    oracle.assert_idle(scene.control)


@pytest.mark.parametrize(
    "points",
    [SOME, *(pytest.param(POINTS[start::3], marks=pytest.mark.chaos) for start in range(3))],
    ids=["some", "0", "1", "2"],
)
def test_killed_at_every_point_and_run_again_each_task_is_done_once(
    make_scene: MakeScene, points: tuple[str, ...]
) -> None:
    lease = {"lease": "5s", "heartbeat": "1s"}
    scene = make_scene(2, tables=(), pipelines=PIPELINES, worker=lease)
    command = ("run", "told", "-p", "day=2026-11-01")
    killed = 0
    for point in points:
        ended = scene.start_command(*command, failpoint=f"{point}=kill").wait()
        # A point of what an earlier run has done already is not passed again.
        assert ended.code in (0, -signal.SIGKILL), ended
        killed += ended.code != 0
    assert killed >= 3
    ended = scene.command(*command)
    assert ended.code == 0, ended
    assert_once(scene)
