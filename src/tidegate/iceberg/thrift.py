"""Sessions of a HiveServer2."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pyhive import hive
from pyhive.exc import Error
from TCLIService import TCLIService, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport
from thrift_sasl import TSaslClientTransport

from tidegate.core.errors import ConnectionFailed, DestinationError, SettingsError, TidegateError

NONE, NOSASL, LDAP = "NONE", "NOSASL", "LDAP"
_AUTH = (NONE, NOSASL, LDAP)
_CATALOGS = ("session", "server")
_EXPECTED = (
    "write thrift://user@host:10009/default; ?auth= is NONE, NOSASL or LDAP (with a password), "
    "?catalog= is session or server"
)


@dataclass(frozen=True, slots=True)
class ThriftAddress:
    """A server, who we are there, and which of the two knows the catalog."""

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str = "default"
    auth: str = NONE
    catalog_on_server: bool = False
    """whether the server has the catalog's address and password, so that none is sent"""

    def __str__(self) -> str:
        return f"thrift://{self.host}:{self.port}"


def parse_thrift_address(text: str) -> ThriftAddress:
    """Read `thrift://[user[:password]@]host:port[/database][?auth=…&catalog=…]`.

    >>> parse_thrift_address("thrift://etl@gateway:10009").port
    10009
    """
    try:
        parts = urlsplit(text)
        port = parts.port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise _refused("it cannot be read") from None
    if parts.scheme != "thrift" or not parts.hostname or not port:
        raise _refused("it lacks a host or a port")
    auth = options.pop("auth", LDAP if parts.password else NONE).upper()
    if auth not in _AUTH:
        raise _refused(f"auth is one of {', '.join(_AUTH)}")
    catalog = options.pop("catalog", _CATALOGS[0])
    if catalog not in _CATALOGS:
        raise _refused(f"catalog is one of {', '.join(_CATALOGS)}")
    if options:
        raise _refused(f"{sorted(options)[0]} is no option of it")
    if bool(parts.password) != (auth == LDAP):
        raise _refused(f"a password goes with auth={LDAP}, and with that alone")
    return ThriftAddress(
        host=parts.hostname,
        port=port,
        user=_decoded(parts.username),
        password=_decoded(parts.password),
        database=_database(parts),
        auth=auth,
        catalog_on_server=catalog == "server",
    )


def _database(parts: SplitResult) -> str:
    return unquote(parts.path.removeprefix("/")) or "default"


def _decoded(text: str | None) -> str | None:
    return unquote(text) if text else None


def _refused(why: str) -> SettingsError:
    # The address may hold a password, so that it is not repeated.
    return SettingsError(f"maintenance.engine is not a Thrift address: {why}", _EXPECTED)


_CONNECT_SECONDS = 10.0
# An answer may wait until a gateway has started the Spark behind it.
_ANSWER_SECONDS = 300.0
_CANCEL_SECONDS = 5.0
_LEAVE_SECONDS = 0.5
_USER = "tidegate"
_POLL_SECONDS = (0.02, 0.05, 0.1, 0.2)
_FETCHED_ROWS = 1000
_RUNNING = (
    ttypes.TOperationState.INITIALIZED_STATE,
    ttypes.TOperationState.PENDING_STATE,
    ttypes.TOperationState.RUNNING_STATE,
)
# How it hands on a setting to its own Spark; Kyuubi takes the same away again.
_SETTING = "set:hiveconf:"
_WRAPPED = ("org.apache.hive.service.cli.HiveSQLException: ", "Error running query: ")
_CAUSE = "Caused by: "
_SECRET = re.compile(r"password|secret|token|credential|key$", re.IGNORECASE)
# [CONDITION] org.apache.spark.SomeException: [CONDITION] and what it means
_TWICE = re.compile(r"^(\[[^\]]+\]) [\w.$]+: \1")


class ServerError(Exception):
    """All that a server has said of an error."""


class ThriftSession:
    """One session; what is set in it is set nowhere else."""

    def __init__(
        self,
        address: ThriftAddress,
        conf: Mapping[str, str],
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._address = address
        secrets = (value for key, value in conf.items() if _SECRET.search(key))
        self._secrets = tuple(filter(None, (address.password, *secrets)))
        self._interrupted = threading.Event()
        self._left = threading.Event()
        self._running: Any = None
        self._socket: socket.socket | None = None
        with self._translated("a session could not be opened"):
            self._socket, transport = _transport(address, answer_seconds)
            self._connection = hive.Connection(
                username=address.user or _USER,
                database=address.database.replace("`", "``"),
                configuration={f"{_SETTING}{key}": value for key, value in conf.items()},
                thrift_transport=transport,
            )

    def run(self, statement: str) -> Iterator[dict[str, object]]:
        """Run a statement at once; its answer is fetched as it is read."""
        cursor = self._connection.cursor(arraysize=_FETCHED_ROWS)
        with self._translated("a statement failed"):
            self._refuse_interrupted()
            cursor.execute(statement, async_=True)
            self._running = cursor._operationHandle
            self._wait(cursor)
            names = [column[0] for column in cursor.description or ()]
        return self._rows(cursor, names)

    def interrupt(self) -> None:
        """Give up what runs and whatever would be run after it; from any thread."""
        self._interrupted.set()
        running = self._running
        if running is None:
            # Its statement may not have begun: with its session the server forgets it.
            self._cut()
            return
        with suppress(OSError, Error, TException):
            _, transport = _transport(self._address, _CANCEL_SECONDS)
            try:
                transport.open()
                client = TCLIService.Client(TBinaryProtocol(transport))
                client.CancelOperation(ttypes.TCancelOperationReq(operationHandle=running))
            finally:
                transport.close()
        # Rows that are made while they are fetched are waited for, whatever was cancelled.
        if not self._left.wait(_LEAVE_SECONDS):
            self._cut()

    def close(self) -> None:
        """End the session, and with it whatever still runs in it."""
        self._left.set()
        if self._socket is not None:
            self._socket.settimeout(_CANCEL_SECONDS)
        with suppress(OSError, Error, TException):
            self._connection.close()
        self._cut()

    def _wait(self, cursor: Any) -> None:
        for pause in _pauses():
            self._refuse_interrupted()
            found = cursor.poll(get_progress_update=False)
            if found.operationState not in _RUNNING:
                break
            self._interrupted.wait(pause)
        if found.operationState == ttypes.TOperationState.FINISHED_STATE:
            return
        self._refuse_interrupted()
        raise failure(self._address, found.errorMessage, self._secrets)

    def _rows(self, cursor: Any, names: Sequence[str]) -> Iterator[dict[str, object]]:
        with self._translated("rows could not be fetched"):
            while names:
                self._refuse_interrupted()
                rows = cursor.fetchmany(_FETCHED_ROWS)
                if not rows:
                    break
                for row in rows:
                    yield dict(zip(names, row, strict=True))
            self._running = None
            cursor.close()

    def _refuse_interrupted(self) -> None:
        if self._interrupted.is_set():
            self._left.set()
            raise DestinationError(f"the work at {self._address} was interrupted")

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except TidegateError:
            raise
        except Error as error:
            self._refuse_interrupted()
            status = getattr(error.args[0] if error.args else None, "status", None)
            message = getattr(status, "errorMessage", None) or str(error)
            raise failure(self._address, message, self._secrets)  # noqa: B904
        except (OSError, EOFError, AssertionError, TException) as error:
            self._refuse_interrupted()
            lines = str(error).splitlines()
            raise ConnectionFailed(
                f"{self._address}: {what}: {lines[0] if lines else type(error).__name__}",
                "is the server there, and does it speak binary Thrift with the auth that "
                "maintenance.engine says? try: tidegate doctor",
            ) from None


def failure(address: ThriftAddress, text: str | None, secrets: Sequence[str]) -> DestinationError:
    """An error in few words; its cause has all of them, by which others know what it was."""
    text = text or ""
    for secret in secrets:
        text = text.replace(secret, "***")
    found = DestinationError(f"{address}: {said(text)}", "the server's log says more")
    found.__cause__ = ServerError(text)
    return found


def said(text: str) -> str:
    """The server's own words: what failed and, where that is another thing, why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it does not say why"
    first = lines[0]
    for words in _WRAPPED:
        first = first.removeprefix(words)
    first = _TWICE.sub(r"\1", first)
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    if not causes or causes[-1] in first or first in causes[-1]:
        return first
    return f"{first} ({causes[-1]})"


def _transport(address: ThriftAddress, answer_seconds: float) -> tuple[socket.socket, Any]:
    """A connection that is there, and what speaks over it; it has yet to be opened."""
    handle = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected = _Connected(handle, answer_seconds)
    if address.auth == NOSASL:
        return handle, TBufferedTransport(connected)
    plain = {
        "host": address.host,
        "sasl_auth": "PLAIN",
        "username": address.user or _USER,
        # One that is not asked for must not be empty either.
        "password": address.password or "x",
    }
    return handle, _Greeted(lambda: hive.get_installed_sasl(**plain), "PLAIN", connected)


class _Connected(TSocket):  # type: ignore[misc]
    """A socket that was connected before; answers may take longer than that and than a greeting."""

    def __init__(self, handle: socket.socket, answer_seconds: float) -> None:
        super().__init__()
        self.setHandle(handle)
        self.setTimeout(_CONNECT_SECONDS * 1000)
        self._answer_seconds = answer_seconds

    def open(self) -> None:
        self.setTimeout(self._answer_seconds * 1000)


class _Greeted(TSaslClientTransport):  # type: ignore[misc]
    """A server that expects no greeting would not answer it either."""

    def open(self) -> None:
        super().open()
        self._trans.open()


def _pauses() -> Iterator[float]:
    yield from _POLL_SECONDS
    while True:
        yield _POLL_SECONDS[-1]
