"""Waiting for several things at once, and being woken by another thread."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from tidegate.postgres.connect import Connection


class Waker:
    """A wait that ends when a session has news, when it is woken, or when its time is up."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        with suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._in, b"x")

    def wait(self, connection: Connection | None, seconds: float) -> bool:
        """Whether the session has something to say; a closed one never has."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        listening = -1
        if connection is not None and not connection.closed:
            listening = connection.fileno()
            poll.register(listening, select.POLLIN)
        ready = {number for number, _ in poll.poll(max(0.0, seconds) * 1000)}
        if self._out in ready:
            os.read(self._out, 4096)
        return listening in ready

    def close(self) -> None:
        os.close(self._in)
        os.close(self._out)
