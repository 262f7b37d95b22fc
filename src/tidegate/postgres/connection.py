"""Sessions set up alike, driver errors translated, connection strings."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tidegate.core.errors import (
    CommitUnknown,
    ConnectionFailed,
    DestinationError,
    LoadError,
    SettingsError,
    TidegateError,
    without_values,
)
from tidegate.postgres.queries import holds_own_sql

HIDDEN = "***"
MALFORMED = "(malformed connection string)"
EXAMPLE = (
    'write "postgresql://user:password@host:5432/dbname" or "host=... dbname=... user=...", and '
    "in a URL write special characters as %XX (@ is %40, : is %3A, / is %2F, % is %25)"
)

_SECRET = re.compile(r"pass(word|wd)|secret|token|scram_\w+_key")
_PORTS = re.compile(r"[0-9,]*")
# libpq's messages repeat parts of the string, so only their beginnings are looked at.
_REASONS = {
    "invalid percent-encoded token": "it has a % that is not followed by two hex digits",
    "forbidden value %00": "it has a %00",
    "unexpected spaces found": "it has a space; write %20",
    "end of string reached when looking for matching": "a [ has no closing ]",
    "unterminated quoted string": "a quote is not closed",
    'missing "="': 'a keyword has no "="; quote values that hold spaces',
    "invalid connection option": "it has a keyword that Postgres does not know",
    "invalid URI query parameter": "it has a query parameter that Postgres does not know",
    'missing key/value separator "="': 'a query parameter has no "="',
    'extra key/value separator "="': "a query parameter has more than one =; write %3D",
}


def check(conninfo: str, key: str = "the connection") -> dict[str, str]:
    """Return the parameters in `conninfo`; SettingsError names `key` and repeats no secret.

    >>> check("postgresql://ana@db/shop")["host"]
    'db'
    """
    try:
        params = _parse(conninfo)
    except psycopg.Error as error:
        message = str(error)
        reason = next((text for start, text in _REASONS.items() if message.startswith(start)), None)
        raise SettingsError(
            f"{key} is not a connection string that Postgres understands"
            + (f": {reason}" if reason else ""),
            hint=EXAMPLE,
        ) from None
    if _is_url(conninfo) and _misread(conninfo.strip(), params, whole=False):
        raise SettingsError(
            f"{key} has an @, : or / in its user, password or port that must be written as %XX",
            hint=EXAMPLE,
        )
    return params


def merge(conninfo: str, **params: str | int | None) -> str:
    """Return `conninfo` in keyword form with `params` on top; None leaves one as it is.

    >>> merge("postgresql://ana@db/shop", application_name="tidegate")
    'user=ana dbname=shop host=db application_name=tidegate'
    """
    known = check(conninfo)
    given = {name: str(value) for name, value in params.items() if value is not None}
    try:
        return make_conninfo("", **{**known, **given})
    except psycopg.Error:
        names = ", ".join(sorted(given))
        raise SettingsError(f"Postgres does not take these connection options: {names}") from None


def mask(conninfo: str) -> str:
    """Return `conninfo` with every secret replaced by ***; what cannot be read is not shown.

    >>> mask("postgresql://ana:hunter2@db/shop")
    'postgresql://ana:***@db/shop'
    """
    params = _readable(conninfo)
    if params is None:
        return MALFORMED
    hidden = {name: _shown(name, value) for name, value in params.items()}
    return _url(hidden) if _is_url(conninfo) else _keywords(hidden)


def describe(conninfo: str) -> str:
    """Return "user@host:port/dbname", as much of it as `conninfo` says.

    >>> describe("host=db port=5433 user=ana password=hunter2 dbname=shop")
    'ana@db:5433/shop'
    """
    params = _readable(conninfo)
    if params is None:
        return MALFORMED
    user, dbname = params.get("user"), params.get("dbname")
    host = params.get("host") or params.get("hostaddr")
    text = (f"{user}@" if user else "") + _authority(host or "", params.get("port"))
    text += f"/{_shown('dbname', dbname)}" if dbname else ""
    if service := params.get("service"):
        return f"service={service}" + (f" ({text})" if text else "")
    return text or "(the server that libpq finds by default)"


def _parse(conninfo: str) -> dict[str, str]:
    if "\0" in conninfo:  # libpq would stop reading there
        raise psycopg.ProgrammingError("forbidden value %00")
    try:
        params = conninfo_to_dict(conninfo.strip() if _is_url(conninfo) else conninfo)
    except UnicodeError:
        raise psycopg.ProgrammingError("not text") from None
    return {name: str(value) for name, value in params.items() if value is not None}


def _readable(conninfo: str) -> dict[str, str] | None:
    try:
        params = _parse(conninfo)
    except psycopg.Error:
        return None
    if _is_url(conninfo) and _misread(conninfo.strip(), params, whole=True):
        return None
    return params


def _is_url(conninfo: str) -> bool:
    return conninfo.strip().startswith(("postgresql://", "postgres://"))


def _misread(url: str, params: dict[str, str], *, whole: bool) -> bool:
    """Say whether part of an unescaped password may have ended up as host, port or dbname."""
    rest = url.split("://", 1)[1]
    if not whole:
        rest = rest.split("?", 1)[0]
    before, _, after = rest.partition("@")
    return (
        "@" in after
        or (bool(after) and "/" in before)
        or not _PORTS.fullmatch(params.get("port", ""))
    )


def _shown(name: str, value: str) -> str:
    if _SECRET.search(name):
        return HIDDEN
    if name == "dbname" and ("=" in value or "://" in value):
        return mask(value)  # libpq takes such a dbname for a connection string of its own
    return value


def _keywords(params: dict[str, str]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in params.items())


def _quoted(value: str) -> str:
    if value and not re.search(r"[\s'\\]", value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _url(params: dict[str, str]) -> str:
    params = dict(params)
    user, password = params.pop("user", None), params.pop("password", None)
    host, port, dbname = (params.pop(name, None) for name in ("host", "port", "dbname"))
    if host and host.startswith("/"):
        params["host"], host = host, None
    login = quote(user or "", safe="") + (f":{HIDDEN}" if password is not None else "")
    text = "postgresql://" + (f"{login}@" if login else "") + _authority(host or "", port)
    text += f"/{quote(dbname, safe='*()')}" if dbname else ""
    query = "&".join(f"{name}={quote(value, safe='/*')}" for name, value in params.items())
    return f"{text}?{query}" if query else text


def _authority(host: str, port: str | None) -> str:
    hosts, ports = host.split(","), (port or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        return host
    return ",".join(
        (f"[{one}]" if ":" in one else one) + (f":{its}" if its else "")
        for one, its in zip(hosts, ports, strict=True)
    )


Connection = psycopg.Connection[Any]

MINIMUM_VERSION = 140000
# What a session of ours is called while it is in a READ ONLY transaction, and only then.
READER = "tidegate read"

# Where others may create functions and operators, a better match of theirs would run as ours.
PATH = "search_path = pg_catalog, pg_temp"
OWN_PATH = "search_path TO DEFAULT"
"""what the role, the database or the address says, for SQL that users wrote"""
# Every session prints values alike, so that text from two servers can be compared.
SESSION = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; "
    "SET extra_float_digits = 1; SET bytea_output = 'hex'; SET xmloption = 'content'; "
    f"SET lc_monetary = 'C'; SET {PATH}"
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
            cursor_factory=_Cursor,
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


class _Cursor(psycopg.Cursor[Any]):
    """Runs a statement that holds SQL of the user's by the role's own search_path."""

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Self:
        if not holds_own_sql(query):
            return super().execute(query, *arguments, **options)
        with own_path(self.connection):
            return super().execute(query, *arguments, **options)


@contextmanager
def own_path(connection: Connection) -> Iterator[None]:
    """In here names are looked up as the role, the database or the address says."""
    in_transaction = connection.info.transaction_status is not TransactionStatus.IDLE
    with connection.cursor(row_factory=tuple_row) as cursor:
        # A LOCAL one is rolled back with what failed.
        cursor.execute(f"SHOW search_path; SET {'LOCAL' if in_transaction else ''} {OWN_PATH}")
        before = cursor.fetchone()
    try:
        yield
    finally:
        usable = (TransactionStatus.IDLE, TransactionStatus.INTRANS)
        if connection.info.transaction_status in usable:
            connection.execute(
                "SELECT pg_catalog.set_config('search_path', %s, %s)",
                (before[0] if before else "", in_transaction),
            )


def begin_read_only(connection: Connection, application: str = READER) -> None:
    """Open a snapshot that can write nothing; its name says so to all who look for writers."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET LOCAL application_name = {}").format(sql.Literal(application)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a session sees, under a name by which others see the same while it lasts."""

    name: str
    application: str = READER
    """what the sessions that read in it are called, so that they can be ended together"""
    lock_seconds: float = 0
    """how long each of them waits for a lock at most; 0: as long as it takes"""

    def entering(self) -> tuple[str, ...]:
        """The statements with which another session comes to see it."""
        return (
            own_timeouts_statement(self.lock_seconds),
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            f"SET TRANSACTION SNAPSHOT '{self.name}'",
        )


def own_timeouts(connection: Connection, lock_seconds: float) -> None:
    """Let no timeout of the role or database end this session's work; locks it waits for do."""
    connection.execute(own_timeouts_statement(lock_seconds))


def own_timeouts_statement(lock_seconds: float) -> str:
    """What sets them, in whatever version of the server knows which of them."""
    return (
        "SELECT pg_catalog.set_config(name, CASE name WHEN 'lock_timeout'"
        f" THEN '{int(lock_seconds * 1000)}' ELSE '0' END, false) FROM pg_catalog.pg_settings"
        " WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout',"
        " 'idle_session_timeout', 'transaction_timeout', 'lock_timeout')"
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
    """The database's own words, without its context lines, and without values of rows."""
    if not isinstance(error, psycopg.Error):
        return _first_line(str(error))
    said = error.diag.message_primary or _first_line(str(error))
    # Data exceptions quote the value; what others quote are names.
    is_about_value = (error.sqlstate or "").startswith("22") and "encoding" not in said
    return without_values(said) if is_about_value else said


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
    found = _translate(error, doing)
    found.detail = str(error)
    return found


def _translate(error: psycopg.Error, doing: str) -> TidegateError:
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
    if isinstance(error, pg.UndefinedTable | pg.UndefinedFunction) and error.diag.context:
        return LoadError(
            f"{doing}: {said}",
            "a function is at work that names it without its schema, and sessions of Tidegate "
            "search pg_catalog alone: write the schema there, or ALTER FUNCTION … SET search_path",
        )
    return LoadError(f"{doing}: {said}", error.diag.message_hint or dependents(error))


def dependents(error: psycopg.Error) -> str | None:
    """What the database says besides; of rows that it does not take it would show what is in them.

    That is in the log of the machine, and `tidegate why` finds it."""
    is_about_rows = (error.sqlstate or "").startswith(("22", "23"))
    return None if is_about_rows else error.diag.message_detail


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
