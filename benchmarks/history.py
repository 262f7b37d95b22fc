"""Questions to a long history, each beside the look-up of one run by its primary key."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.long_history import fill_history
from benchmarks.report import Report
from benchmarks.shop import checkpoint
from tidegate.jobs.history.query import TREND_RUNS, TREND_WEEKS, History, HistoryFilter
from tidegate.jobs.history.record import RunStatus, TaskRecord
from tidegate.postgres.connection import Connection
from tidegate.project import Project

SETTINGS = """
[project]
name = "shop"
"""
PAGE = 20
_ROUNDS = 200


def run(report: Report, *, events: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        (Path(name) / "tidegate.toml").write_text(SETTINGS)
        with Project.open(name) as project:
            project.context.control_id()
            with project.context.plane.connect() as control:
                _run(report, project, control, events)


def _run(report: Report, project: Project, control: Connection, events: int) -> None:
    now, history = datetime.now(UTC), History(project.context.plane)
    started = time.perf_counter()
    runs = fill_history(control, project.context.plane, events=events, now=now)
    report.note(f"{runs:,} runs written in {time.perf_counter() - started:.0f} s")
    checkpoint(control)
    row = control.execute(
        "SELECT recorded_at, id FROM tidegate_control.tasks ORDER BY random() LIMIT 1"
    ).fetchone()
    assert row is not None
    recorded_at, task_id = row

    def look_up() -> object:
        return control.execute(
            "SELECT * FROM tidegate_control.tasks WHERE recorded_at = %s AND id = %s",
            (recorded_at, task_id),
        ).fetchone()

    def ask(**asked: object) -> Callable[[], object]:
        wanted = HistoryFilter(**asked)  # type: ignore[arg-type]
        return lambda: history.newest(control, "shop", wanted, limit=PAGE)

    found = history.get(control, "shop", task_id)
    assert isinstance(found, TaskRecord)
    day = {"day": str(found.parameters["day"])}
    questions: dict[str, Callable[[], object]] = {
        "by id": lambda: history.get(control, "shop", task_id),
        "events of one": lambda: history.events(control, task_id),
        "by name": ask(names=("name_7",)),
        "by parameters": ask(names=("name_7",), parameters={"full_refresh": "false"} | day),
        "by parameters without a name": ask(parameters={"full_refresh": "false"} | day),
        "by parameter alone": ask(parameters=day),
        "failed ones by parameter": ask(parameters=day, statuses=(RunStatus.FAILED,)),
        "of the last 24 hours": ask(since=now - timedelta(hours=24)),
        "failed in the last 24 hours": ask(
            statuses=(RunStatus.FAILED,), since=now - timedelta(hours=24)
        ),
        "failed ones of a name": ask(names=("name_7",), statuses=(RunStatus.FAILED,)),
        "of a name nobody has": ask(names=("nobody",)),
        "of a kind": ask(kinds=("sync",)),
        "of a kind nobody has": ask(kinds=("vacuum",)),
        "of a job": ask(job_id=found.job_id),
        "all, the newest": ask(),
        "trend of one name": lambda: history.trends(
            control,
            "shop",
            names=("name_7",),
            now=now,
            since=now - timedelta(weeks=TREND_WEEKS),
            runs=TREND_RUNS,
            weeks=TREND_WEEKS,
        ),
    }
    for name, question in questions.items():
        key, took = _milliseconds(look_up, question)
        report.note(f"{name}: {took:.3f} ms, by primary key {key:.3f} ms")
        report.ratio(f"history {name} / look-up by primary key", took / key, at_most=20)


def _milliseconds(*asked: Callable[[], object]) -> list[float]:
    """What the fastest tenth of many took at most, in turn, so that all have the same machine.

    What else the machine does would make the slow ones alike. The first few are not counted, since
    they read from disk.
    """
    times: list[list[float]] = [[] for _ in asked]
    for number in range(_ROUNDS):
        for ask, found in zip(asked, times, strict=True):
            started = time.perf_counter()
            ask()
            if number >= _ROUNDS // 10:
                found.append(time.perf_counter() - started)
    return [sorted(found)[len(found) // 10] * 1000 for found in times]
