"""Loops beside the work: whatever a pass runs into, the next one is made."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from integration.conftest import MakePlace
from tidegate.jobs.loop import Loop
from tidegate.jobs.notifier import Notifier
from tidegate.jobs.reclaim import LostAttempts
from tidegate.jobs.scheduler import Scheduler
from tidegate.jobs.sweeper import Sweeper
from tidegate.maintenance.policy import PolicyRunner
from tidegate.maintenance.table_cache import Refresher
from tidegate.postgres.connection import Connection
from tidegate.project import Project

MAKE: dict[type[Any], Callable[[Project], Any]] = {
    Sweeper: lambda project: project.sweeper("test"),
    Scheduler: lambda project: project.scheduler("test"),
    Refresher: lambda project: Refresher(project.context),
    PolicyRunner: lambda project: PolicyRunner(project.context),
    Notifier: lambda project: Notifier(project.context),
}


@pytest.fixture(scope="module")
def project(places: MakePlace) -> Iterator[Project]:
    with places().open() as opened:
        opened.context.control_id()
        yield opened


@pytest.mark.parametrize(
    "error", [OSError("no route"), psycopg.OperationalError("gone"), ValueError("odd")], ids=repr
)
def test_an_error_ends_no_loop_and_is_logged_once(
    project: Project, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    passed, sessions = threading.Event(), list[Connection]()

    def step(connection: Connection) -> dict[str, int]:
        sessions.append(connection)
        if len(sessions) < 3:
            raise error
        connection.execute("SELECT")
        passed.set()
        return {}

    with caplog.at_level(logging.INFO, "tidegate"):
        loop = Loop("test", step, project.context.plane.connect, interval_seconds=0.01)
        loop.start()
        assert passed.wait(30)
        loop.stop()
    assert [one.closed for one in sessions] == [True] * len(sessions)
    lines = [one.getMessage().split()[0] for one in caplog.records]
    assert lines == ["event='loop_failed'", "event='loop_works_again'"]


def test_one_that_is_woken_does_not_wait(project: Project) -> None:
    passes = threading.Semaphore(0)

    def step(_: Connection) -> dict[str, int]:
        passes.release()
        return {}

    loop = Loop("test", step, project.context.plane.connect, interval_seconds=3600.0)
    loop.start()
    assert passes.acquire(timeout=30)
    loop.wake()
    assert passes.acquire(timeout=30)
    loop.stop()


@pytest.mark.parametrize("kind", MAKE, ids=lambda one: one.__name__)
def test_each_looks_again_after_an_error(
    project: Project, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, raised = kind.run_once, list[object]()

    def once(self: object, *given: Any, **options: Any) -> Any:
        if not raised:
            raised.append(self)
            raise OSError("no route")
        return real(self, *given, **options)

    monkeypatch.setattr(kind, "run_once", once)
    loop: Loop = MAKE[kind](project).loop()
    assert loop.run_once() is None
    assert loop.run_once() is not None
    loop.stop()


def test_a_job_that_cannot_be_swept_does_not_stop_the_sweep(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would look after the others, for as long as that one is there."""

    def refuse(*_: Any, **__: Any) -> bool:
        raise OSError("no route")

    with project.context.plane.connect() as control:
        monkeypatch.setattr(
            LostAttempts, "list", lambda *_, **__: [type("Dead", (), {"job_id": "a"})()]
        )
        monkeypatch.setattr(Sweeper, "_reclaim", refuse)
        assert project.sweeper("test").run_once(control).reclaimed == 0
