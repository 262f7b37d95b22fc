"""The databases of a project by the names its user gave them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from tidegate.postgres.connect import Connection, connect
from tidegate.postgres.conninfo import check
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.settings import Settings

CONTROL = "control"
# What only makes sense on the machine where it was written.
_LOCAL_PARAMETERS = frozenset({"service", "servicefile", "passfile", "application_name"})


class Databases:
    """Opens sessions by connection name, and starts the embedded server when one needs it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.embedded = EmbeddedServer(settings.state_directory / "postgres")
        self._conninfo: dict[str, str] = {}
        self._portable: dict[str, str] = {}
        self._idle: dict[str, list[Connection]] = {}
        self._lock = threading.Lock()

    def conninfo(self, name: str) -> str:
        """The address of a connection, as libpq takes it."""
        with self._lock:
            if name not in self._conninfo:
                self._conninfo[name] = self._resolve(name)
            return self._conninfo[name]

    def connect(self, name: str, application: str = "tidegate") -> Connection:
        # Here, since a process may open sessions for weeks after it started the server.
        self.embedded.log.trim()
        return connect(self.conninfo(name), name=label(name), application=application)

    @contextmanager
    def lease(self, name: str) -> Iterator[Connection]:
        """An autocommit session for short work; opening one costs more than most statements."""
        connection = self._take_idle(name) or self.connect(name)
        try:
            yield connection
        finally:
            if connection.info.transaction_status is TransactionStatus.IDLE:
                self._idle.setdefault(name, []).append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the sessions that were kept for further short work."""
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def _take_idle(self, name: str) -> Connection | None:
        connections = self._idle.get(name, [])
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


def label(name: str) -> str:
    """How messages call a connection."""
    return "the control database" if name == CONTROL else f'connection "{name}"'
