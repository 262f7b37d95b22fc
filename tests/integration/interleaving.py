"""Attempts in threads of their own, which halt at a named point until they are let go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.load.targets.iceberg import publish

_WAIT_SECONDS = 240.0
_running: dict[int, Steps] = {}


class Crash(BaseException):
    """The process is gone: nothing that it would have done afterwards is done."""


class Steps:
    """One attempt, step by step."""

    def __init__(self, work: Callable[[], Any], halt_at: str | None) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._halt_at = halt_at
        self._arrived = threading.Event()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Steps:
        """Run until the point where it halts, or to the end if it never gets there."""
        self._thread.start()
        assert self._arrived.wait(_WAIT_SECONDS)
        return self

    def finish_soon(self) -> None:
        """Let go a moment from now, when others may be waiting for it."""
        threading.Timer(0.5, self._go.set).start()

    def finish(self) -> Steps:
        self._go.set()
        self._thread.join(_WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self

    def reach(self, name: str) -> None:
        if name == self._halt_at and not self._go.is_set():
            self._arrived.set()
            assert self._go.wait(_WAIT_SECONDS)

    def _run(self) -> None:
        _running[threading.get_ident()] = self
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        finally:
            del _running[threading.get_ident()]
            self._arrived.set()


def reach(name: str) -> None:
    """A point that an attempt under test passes."""
    steps = _running.get(threading.get_ident())
    if steps is not None:
        steps.reach(name)


@pytest.fixture
def stepwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts in `Steps` halt at the points of publishing."""
    monkeypatch.setattr(publish, "reach", reach)


def crash_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Whoever publishes next is gone at this point."""

    def crash(name: str) -> None:
        if name == point:
            monkeypatch.setattr(publish, "reach", lambda _: None)
            raise Crash(name)

    monkeypatch.setattr(publish, "reach", crash)
