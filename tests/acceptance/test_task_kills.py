"""A graph of tasks that is killed at every named point and run again: each is done once."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from acceptance import oracle
from acceptance.processes import Ended, Process, WarmProcess
from acceptance.spark_server import SparkServer
from conftest import MakeDatabase

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
SCRIPT = """
import os, sys
from tidegate.project import Project
report = Project.open(sys.argv[1]).run_task("told", day="2026-11-01")
for end in report.ends:
    print(end.step.name, end.state.value, end.error or "", flush=True)
os._exit(report.exit_code)
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


@dataclass(slots=True)
class Scene:
    """A project of tasks on two databases."""

    folder: Path
    warehouse: str
    control: str
    remote: str
    _started: list[Process] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        lines = ["[project]", 'name = "shop"', f"control = {json.dumps(self.control)}"]
        lines += ["[connections]", f"warehouse = {json.dumps(self.warehouse)}"]
        lines += ["[worker]", 'lease = "5s"', 'heartbeat = "1s"']
        lines += ["[spark]", f"remote = {json.dumps(self.remote)}"]
        self.folder.mkdir()
        (self.folder / "tidegate.toml").write_text("\n".join(lines), encoding="utf-8")
        (self.folder / "pipelines.py").write_text(PIPELINES, encoding="utf-8")
        (self.folder.parent / "job.py").write_text(SCRIPT, encoding="utf-8")

    def run(self, failpoint: str | None = None) -> Ended:
        environment = {"PYSPARK_PYTHON": sys.executable}
        environment |= {"TIDEGATE_FAILPOINT": failpoint} if failpoint else {}
        command = [str(self.folder.parent / "job.py"), str(self.folder)]
        log = self.folder / f"job-{next(self._numbers)}"
        process = WarmProcess(command, log, environment)
        self._started.append(process)
        return process.wait()

    def assert_once(self) -> None:
        with psycopg.connect(self.warehouse, autocommit=True) as connection:
            tokens = connection.execute(
                "SELECT id, count(*) FROM marts.tokens GROUP BY 1 ORDER BY 1"
            ).fetchall()
            days = connection.execute("SELECT day::text, count FROM marts.days").fetchall()
            told = connection.execute("SELECT count(*) FROM marts.told").fetchone()
            markers = connection.execute(
                "SELECT target_table FROM tidegate.table_updates ORDER BY 1"
            ).fetchall()
        assert tokens == [(number, 1) for number in range(60)]
        assert days == [("2026-11-01", 60)]
        assert markers == [("marts.days",), ("marts.tokens",)]
        # A side effect happens at least once; that it is done is known once.
        assert told is not None
        assert told[0] >= 1
        marked = "SELECT count(*) FROM tidegate_control.task_markers"
        assert oracle.scalar(self.control, marked) == 1
        oracle.assert_idle(self.control)

    def close(self) -> None:
        for process in self._started:
            process.kill_all()


@pytest.fixture
def scene(
    tmp_path: Path, make_database: MakeDatabase, spark_server: SparkServer
) -> Iterator[Scene]:
    made = Scene(
        tmp_path / "project", make_database("warehouse"), make_database("control"), spark_server.url
    )
    yield made
    made.close()


@pytest.mark.parametrize("points", [POINTS[0::3], POINTS[1::3], POINTS[2::3]], ids=["0", "1", "2"])
def test_killed_at_every_point_and_run_again_each_task_is_done_once(
    scene: Scene, points: tuple[str, ...]
) -> None:
    killed = 0
    for point in points:
        ended = scene.run(f"{point}=kill")
        # A point of what an earlier run has done already is not passed again.
        assert ended.code in (0, -signal.SIGKILL), ended
        killed += ended.code != 0
    assert killed >= 3
    ended = scene.run()
    assert ended.code == 0, ended
    scene.assert_once()
