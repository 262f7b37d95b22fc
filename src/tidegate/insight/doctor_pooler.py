"""Is there a pooler between us and the server, and does it hand out sessions or transactions?

A server process belongs to one session, unless a pooler lends it out for a transaction at a time.
Two sessions of ours ask for their server process, several times. If they are ever answered
by the same one, or one of them by two different ones, transactions are being pooled; whatever
rests on a session (advisory locks, settings, snapshots, temporary tables) then does not hold. A
pooler in session mode gives itself away by the process number announced at login, which is its own
invention.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum

import psycopg

from tidegate.errors import TidegateError
from tidegate.postgres.connect import Connection

_ROUNDS = 2
_PATIENCE_SECONDS = 15.0


class Pooling(StrEnum):
    """What lies between us and the server."""

    NONE = "none"
    SESSION = "session"
    TRANSACTION = "transaction"
    EXHAUSTED = "exhausted"


def detect_pooling(
    connect: Callable[[], Connection], patience_seconds: float = _PATIENCE_SECONDS
) -> Pooling:
    """Find out with two sessions; a pool that has no second one for us never answers."""
    found: list[Pooling | Exception] = []

    def look() -> None:
        try:
            found.append(_look(connect))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=look, name="tidegate-pooler-check", daemon=True)
    thread.start()
    thread.join(patience_seconds)
    if not found:
        return Pooling.EXHAUSTED
    if isinstance(found[0], TidegateError | psycopg.Error):
        return Pooling.EXHAUSTED
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _look(connect: Callable[[], Connection]) -> Pooling:
    with connect() as one, connect() as two:
        # Out of step on purpose: two servers handed out in turn would look like two sessions.
        order = (one, one, two, two, two, one) * _ROUNDS
        answers = [(session, _process(session)) for session in order]
        first = {process for session, process in answers if session is one}
        second = {process for session, process in answers if session is two}
        if len(first) > 1 or len(second) > 1 or first & second:
            return Pooling.TRANSACTION
        announced = {one.info.backend_pid, two.info.backend_pid}
        return Pooling.NONE if announced == first | second else Pooling.SESSION


def _process(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
