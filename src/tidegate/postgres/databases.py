"""The databases of a project by the names its user gave them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from tidegate.config import Settings
from tidegate.postgres.connection import OWN_PATH, Connection, check, connect, own_timeouts
from tidegate.postgres.embedded import ROLE, EmbeddedServer

CONTROL = "control"
_limits: ContextVar[str] = ContextVar("limits", default="")
# What only makes sense on the machine where it was written.
_LOCAL_PARAMETERS = frozenset({"service", "servicefile", "passfile", "application_name"})


class Databases:
    """Opens sessions by connection name, and starts the embedded server when one needs it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.embedded = EmbeddedServer(settings.state_directory / "postgres", role=ROLE)
        self._conninfo: dict[str, str] = {}
        self._portable: dict[str, str] = {}
        self._idle: dict[tuple[str, str], list[Connection]] = {}
        self._lock = threading.Lock()

    def conninfo(self, name: str) -> str:
        """The address of a connection, as libpq takes it."""
        with self._lock:
            if name not in self._conninfo:
                self._conninfo[name] = self._resolve(name)
            return self._conninfo[name]

    def connect(
        self, name: str, application: str = "tidegate", *, own_path: bool = False
    ) -> Connection:
        """A session; with `own_path`, for the user's own work, by the role's search_path."""
        # Here, since a process may open sessions for weeks after it started the server.
        self.embedded.log.trim()
        connection = connect(self.conninfo(name), name=label(name), application=application)
        if _limits.get():
            connection.execute(_limits.get())
        if own_path:
            connection.execute(f"SET {OWN_PATH}")
        return connection

    def connect_source(self, name: str, application: str = "tidegate source") -> Connection:
        """A session that reads what others own: it waits for no lock of theirs for long."""
        connection = self.connect(name, application)
        own_timeouts(connection, self.settings.safety.lock_timeout_seconds)
        return connection

    @contextmanager
    def lease(self, name: str) -> Iterator[Connection]:
        """An autocommit session for short work; opening one costs more than most statements."""
        place = name, _limits.get()
        connection = self._take_idle(place) or self.connect(name)
        try:
            yield connection
        finally:
            if connection.info.transaction_status is TransactionStatus.IDLE:
                self._idle.setdefault(place, []).append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the sessions that were kept for further short work."""
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def _take_idle(self, place: tuple[str, str]) -> Connection | None:
        connections = self._idle.get(place, [])
        while True:
            try:
                connection = connections.pop()
            except IndexError:
                # None is left, or another thread was quicker.
                return None
            try:
                connection.execute("")
            except psycopg.Error:
                connection.close()
                continue
            return connection

    def portable_conninfo(self, name: str) -> str:
        """The address with everything spelled out, for processes on other machines."""
        if name not in self._portable:
            self._portable[name] = self._spell_out(name)
        return self._portable[name]

    def _spell_out(self, name: str) -> str:
        with self.lease(name) as connection:
            info = connection.info
            parameters = {
                key: value
                for key, value in info.get_parameters().items()
                if key not in _LOCAL_PARAMETERS
            }
            parameters.update(host=info.host, port=str(info.port), user=info.user)
            parameters.update(dbname=info.dbname, password=info.password)
        return make_conninfo("", **{key: value for key, value in parameters.items() if value})

    def _resolve(self, name: str) -> str:
        connection = self.settings.connection(name)
        if connection.type == "iceberg":
            # The ledger of a lake lies there.
            connection = self.settings.connection(CONTROL)
        if connection.embedded_database is not None:
            self.embedded.start()
            self.embedded.ensure_database(connection.embedded_database)
            return self.embedded.conninfo(connection.embedded_database)
        assert connection.url is not None
        check(connection.url.get_secret_value(), label(name))
        return connection.url.get_secret_value()


@contextmanager
def limited_sessions(lock_seconds: float, statement_seconds: float) -> Iterator[None]:
    """What is opened or leased within waits so long for a lock, and for a statement, at most."""
    before = _limits.set(
        f"SET lock_timeout = {round(lock_seconds * 1000)};"
        f" SET statement_timeout = {round(statement_seconds * 1000)}"
    )
    try:
        yield
    finally:
        _limits.reset(before)


def label(name: str) -> str:
    """How messages call a connection."""
    return "the control database" if name == CONTROL else f'connection "{name}"'
