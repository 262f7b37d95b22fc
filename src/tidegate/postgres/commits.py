"""Commits whose answer may be lost: the server is asked what became of them, nobody guesses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
from psycopg import errors as pg

from tidegate.errors import CommitUnknown, ConnectionFailed
from tidegate.postgres.connect import Connection, session_lost

Connect = Callable[[], AbstractContextManager[Connection]]

_RESOLVE_SECONDS = 60.0
_PAUSE_SECONDS = 0.1


@contextmanager
def known_transaction(connection: Connection, connect: Connect, doing: str) -> Iterator[None]:
    """A transaction that has ended as its caller hears: well, or with nothing written.

    A lost answer to its COMMIT is looked up over another session; the given one is closed then.
    CommitUnknown says that the server did not come back, or that nobody waited for the answer.
    """
    xid: str | None = None
    try:
        with connection.transaction():
            yield
            xid = current_xid(connection)
    except BaseException as error:
        if xid is None or (isinstance(error, psycopg.Error) and not session_lost(error)):
            raise
        connection.close()
        if not isinstance(error, psycopg.Error):
            raise _unknown(doing, "it was interrupted") from error
        if not has_committed(connect, xid, doing):
            raise


def current_xid(connection: Connection) -> str:
    """The id of the transaction that is open, by which its end can be asked for."""
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])


def has_committed(connect: Connect, xid: str, doing: str) -> bool:
    """Whether a transaction committed whose answer was lost; CommitUnknown when nobody says."""
    deadline = time.monotonic() + _RESOLVE_SECONDS
    while True:
        cause: Exception | None = None
        try:
            with connect() as connection:
                row = connection.execute("SELECT pg_xact_status(%s::text::xid8)", (xid,)).fetchone()
            if row is not None and row[0] in ("committed", "aborted"):
                return bool(row[0] == "committed")
        except pg.InvalidParameterValue:
            # The server crashed before it had heard of that transaction.
            return False
        except (psycopg.Error, ConnectionFailed) as error:
            cause = error
        if time.monotonic() > deadline:
            raise _unknown(doing, "the database did not come back") from cause
        time.sleep(_PAUSE_SECONDS)


def _unknown(doing: str, why: str) -> CommitUnknown:
    return CommitUnknown(
        f"{doing}: the answer to its COMMIT was lost, and {why}",
        "it is in as a whole or not at all; the same command again finds out",
    )
