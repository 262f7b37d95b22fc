"""Leaving when told to: within two seconds, even while the main thread sits in Spark."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from tidegate.log import log

PATIENCE_SECONDS = 2.0
# Of a parent that died the kernel tells once for each of its threads.
_ECHO_SECONDS = 0.3
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """A thread that waits for a signal to end, has the work given back, and ends the process.

    The signal's number reaches it through a socket that the C handler writes to, so no Python
    code of the main thread has to run for it. A second signal ends the process at once.
    """

    def __init__(
        self,
        leave: Callable[[str], int],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        signals: Sequence[signal.Signals] = SIGNALS,
    ) -> None:
        self._leave = leave
        self._patience = patience_seconds
        self._signals = tuple(signals)
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        self._before: dict[int, object] = {}
        self._thread = threading.Thread(target=self._watch, name="tidegate-shutdown", daemon=True)

    def __enter__(self) -> Shutdown:
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for number in self._signals:
            self._before[number] = signal.signal(number, lambda *_: None)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._told.send(b"\0")
        self._thread.join()
        self._heard.close()
        self._told.close()

    def _watch(self) -> None:
        number = self._next()
        if number is None:
            return
        name = signal.Signals(number).name
        log.warning("told_to_stop", signal=name)
        going = threading.Thread(target=self._go, args=(name,), daemon=True)
        going.start()
        deadline = time.monotonic() + self._patience
        again_from = time.monotonic() + _ECHO_SECONDS
        try:
            if self._next(deadline, again_from) is None:
                # The work has ended by itself; leaving it, which has begun, says how.
                going.join(self._patience)
            else:
                log.warning("told_twice")
        except TimeoutError:
            log.warning("leaves_work_behind", after_seconds=self._patience)
        _end(1)

    def _next(self, deadline: float | None = None, from_: float = 0.0) -> int | None:
        """The next signal that counts; None when the work has ended."""
        while True:
            if deadline is not None:
                self._heard.settimeout(max(0.001, deadline - time.monotonic()))
            number = self._heard.recv(1)[0]
            if number == 0:
                return None
            if number in self._signals and time.monotonic() >= from_:
                return number

    def _go(self, name: str) -> None:
        code = 1
        try:
            code = self._leave(f"Worker received {name}")
        except Exception as error:
            log.warning("left_untidily", error=f"{type(error).__name__}: {error}")
        _end(code)


def _end(code: int) -> None:
    """End without waiting for any thread; Spark's JVM goes when its pipe to us closes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody may read it any more
            stream.flush()
    os._exit(code)
