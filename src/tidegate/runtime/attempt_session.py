"""What an attempt writes into the control database: over another session, if one is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import psycopg

from tidegate.control.plane import ControlPlane
from tidegate.errors import ConnectionFailed
from tidegate.log import log
from tidegate.postgres.connect import Connection, session_lost
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.lease import Lease

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.25


@dataclass(slots=True)
class AttemptSession:
    """A session of one attempt; a lost one is opened again for as long as the lease lasts.

    What the attempt has published must not be called an error because a session was lost after.
    """

    plane: ControlPlane
    connection: Connection
    heartbeat: Heartbeat
    lease: Lease

    def write(self, write: Callable[[Connection], Answer]) -> Answer:
        """Write, perhaps twice: the first answer may have been lost, but not its effect."""
        while True:
            try:
                with self.heartbeat.answered_soon(self.connection):
                    return write(self.connection)
            except psycopg.Error as error:
                if not session_lost(error):
                    raise
                log.warning("control_session_lost", error=str(error).splitlines()[0])
            self._open_again()

    def _open_again(self) -> None:
        self.connection.close()
        while self.connection.closed:
            self.lease.check_alive()
            with suppress(ConnectionFailed):
                self.connection = self.plane.connect()
                return
            time.sleep(_PAUSE_SECONDS)
