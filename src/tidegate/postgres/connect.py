"""Connections to Postgres, with sessions set up alike and driver errors translated once."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidegate.errors import ConnectionFailed, DestinationError, LoadError, TidegateError
from tidegate.postgres.conninfo import describe

Connection = psycopg.Connection[Any]

MINIMUM_VERSION = 140000
# What a session of ours is called while it is in a READ ONLY transaction, and only then.
READER = "tidegate read"

# Every session prints values alike, so that text from two servers can be compared.
SESSION = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; "
    "SET extra_float_digits = 1; SET bytea_output = 'hex'; SET xmloption = 'content'; "
    "SET lc_monetary = 'C'"
)
_ALIVE = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


def connect(
    conninfo: str, *, name: str, application: str = "tidegate", autocommit: bool = True
) -> Connection:
    """Open a session; `name` is what the user calls this database."""
    with translate_connect(conninfo, name):
        given = conninfo_to_dict(conninfo)
        parameters = {key: value for key, value in _ALIVE.items() if key not in given}
        connection = psycopg.connect(
            make_conninfo(
                conninfo, application_name=application, client_encoding="UTF8", **parameters
            ),
            autocommit=True,
            prepare_threshold=None,
        )
    if connection.info.server_version < MINIMUM_VERSION:
        version = connection.info.server_version // 10000
        connection.close()
        raise ConnectionFailed(
            f"{name}: PostgreSQL {version} is too old", "Tidegate needs PostgreSQL 14 or later"
        )
    connection.execute(SESSION)
    connection.autocommit = autocommit
    return connection


def begin_read_only(connection: Connection) -> None:
    """Open a snapshot that can write nothing; its name says so to whoever looks for writers."""
    connection.execute(
        f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL application_name = '{READER}'"
    )


def cut(connection: Connection) -> None:
    """End a session from another thread, even one whose answer will never come."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


@contextmanager
def translate_connect(conninfo: str, name: str) -> Iterator[None]:
    """Turn a failed connect into an error that names the connection and the remedy."""
    try:
        yield
    except psycopg.OperationalError as error:
        text = _first_line(str(error))
        raise ConnectionFailed(
            f"cannot connect to {name} ({describe(conninfo)}): {text}", _connect_hint(text, name)
        ) from None
    except psycopg.ProgrammingError as error:
        raise ConnectionFailed(
            f"{name} is not a valid Postgres address",
            f"{_first_line(str(error)).split(chr(34))[0].strip()}: "
            "write postgresql://user@host:5432/database",
        ) from None


def _connect_hint(text: str, name: str) -> str:
    if "password authentication failed" in text or "no password supplied" in text:
        return f"check the user and password of {name}, in its URL, .env or ~/.pgpass"
    if "does not exist" in text and "database" in text:
        return f"create that database, or correct the URL of {name}"
    if "does not exist" in text and "role" in text:
        return f"create that role, or correct the user in the URL of {name}"
    if "translate host name" in text or "resolve" in text:
        return f"check the host name in the URL of {name}"
    if "pg_hba.conf" in text:
        return "the server's pg_hba.conf does not admit this user from here"
    if "too many" in text:
        return "the server has no free connection; try again later"
    return f"is the server running, and is the URL of {name} right? try: tidegate doctor"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = next((line for line in lines if "FATAL" in line or "failed:" in line), None)
    line = chosen or (lines[0] if lines else "no reason given")
    return re.sub(r"^connection failed: *", "", line)


def first_line(error: BaseException) -> str:
    """The database's own words, without its context lines."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    return _first_line(str(error))


_ENDED = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
)


def session_lost(error: BaseException) -> bool:
    """Whether an error means that the session is gone, so nobody told us how it ended."""
    return isinstance(error, _ENDED) or (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        and getattr(error, "sqlstate", None) is None
    )


def translate(error: psycopg.Error, doing: str) -> TidegateError:
    """A driver error as one of ours: what was being done, what Postgres said, what to do."""
    said = first_line(error)
    if isinstance(error, pg.InsufficientPrivilege):
        return DestinationError(f"{doing}: {said}", "grant the right, or connect as another role")
    if isinstance(error, pg.DiskFull):
        return DestinationError(
            f"{doing}: the database server's disk is full ({said})",
            "free space there and run again; nothing was published",
        )
    if isinstance(error, pg.LockNotAvailable):
        return DestinationError(
            f"{doing}: another session holds a lock ({said})",
            "see pg_stat_activity for who; run again when it is done",
        )
    if isinstance(error, pg.QueryCanceled):
        return DestinationError(
            f"{doing}: {said}", "raise worker.publish_timeout or lower batch_rows"
        )
    if session_lost(error):
        return ConnectionFailed(
            f"{doing}: the database connection was lost ({said})",
            "run again; what was published stays published, the rest is repeated",
        )
    return LoadError(f"{doing}: {said}", error.diag.message_hint or error.diag.message_detail)
