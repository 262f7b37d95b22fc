"""Sessions on the control database that one job after the other may use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg.pq import TransactionStatus

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection
from tidegate.runtime.lease import now

_TRUSTED_SECONDS = 1.0


@dataclass(slots=True)
class KeptSessions:
    """Opening a session, and planning its first statements, costs more than a small job does."""

    plane: ControlPlane
    _idle: list[tuple[Connection, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """A session for one job; it is kept for the next one, unless the job failed."""
        connection = self._take() or self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    def close(self) -> None:
        """End those that nobody uses; the others end when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _open(self) -> Connection:
        connection = self.plane.connect()
        # A worker's sessions are its own, so what it asks again and again is planned once.
        connection.prepare_threshold = 1
        return connection

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            # The server may have gone, and come back, since it was last used.
            if now() - since < _TRUSTED_SECONDS or _answers(connection):
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        if not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
            with self._lock:
                if not self._closed:
                    self._idle.append((connection, now()))
                    return
        connection.close()


def _answers(connection: Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True
