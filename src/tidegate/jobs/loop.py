"""A loop: one step at an interval, in a thread and over a session of its own, whatever happens."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import psycopg

from tidegate.core.errors import TidegateError
from tidegate.core.log import log
from tidegate.postgres.connection import Connection, first_line

Step = Callable[[Connection], Mapping[str, int]]
"""one pass over a session; returns how much of what it did"""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class Loop:
    """Makes a step again and again; no Exception ends it.

    After a failed step it connects anew and tries again soon, then ever later: up to a minute, or
    its interval where that is shorter. A failure is logged when it begins or changes, and once more
    when a step went well again. `leave_seconds` bounds how long stop() waits for a step.
    """

    def __init__(
        self,
        name: str,
        step: Step,
        connect: Callable[[], Connection],
        *,
        interval_seconds: float,
        leave_seconds: float | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._connect = connect
        self._interval = interval_seconds
        self._leave_seconds = leave_seconds
        self._connection: Connection | None = None
        self._failures = 0
        self._error = ""
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tidegate-{name}", daemon=True)

    @property
    def is_stopping(self) -> bool:
        """Whether a step that takes long should come to its end."""
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the step that goes on."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(self._leave_seconds)
        else:
            self._disconnect()

    def wake(self) -> None:
        """Make the next step now."""
        self._woken.set()

    def run_once(self) -> Mapping[str, int] | None:
        """One step; None when it failed, which is logged."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            done = self._step(self._connection)
        except Exception as error:
            self._note_failed(error)
            self._disconnect()
            return None
        if self._failures:
            log.info("loop_works_again", loop=self.name, failures=self._failures)
        self._failures, self._error = 0, ""
        counts = {name: count for name, count in done.items() if count}
        if counts:
            log.info("loop_passed", loop=self.name, **counts)
        return done

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.run_once()
            # Not all processes at once.
            self._woken.wait(self._pause_seconds() * random.uniform(0.75, 1.25))
            self._woken.clear()
        self._disconnect()

    def _pause_seconds(self) -> float:
        if not self._failures:
            return self._interval
        doubled = _FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10)
        return min(doubled, _LONGEST_PAUSE_SECONDS, self._interval)

    def _note_failed(self, error: Exception) -> None:
        self._failures += 1
        words = reason(error)
        if words != self._error:
            unknown = not isinstance(error, TidegateError | psycopg.Error)
            log.warning("loop_failed", loop=self.name, error=words, exc_info=unknown)
        self._error = words

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None


def reason(error: Exception) -> str:
    """One line; the words of a library may hold what nobody should read, so only its kind."""
    if isinstance(error, TidegateError):
        return error.message.partition("\n")[0]
    if isinstance(error, psycopg.Error):
        return first_line(error)
    return f"an unexpected {type(error).__name__}"
