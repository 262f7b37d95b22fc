"""Engines for maintenance: Spark here, or a HiveServer2."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidegate.core.errors import SettingsError
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.session import IcebergSession, iceberg_session
from tidegate.iceberg.thrift import ThriftAddress, parse_thrift_address
from tidegate.spark.session import SparkSessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.iceberg.thrift import ThriftSession

# Orphans are looked for by a shuffle over a few thousand paths: hundreds of tasks do not help.
_SHUFFLES = ("spark.sql.shuffle.partitions", "4")


class EngineSession(Protocol):
    """A session of one attempt; its commits are refused once the attempt was replaced."""

    def run(self, statement: str) -> Iterator[dict[str, object]]:
        """Run a statement at once; its answer comes row by row, by the names of its columns."""


class Engine(Protocol):
    """Where the statements of maintenance are run."""

    @property
    def kind(self) -> str: ...

    def session(
        self, catalog: Catalog, attempt_id: str
    ) -> AbstractContextManager[EngineSession]: ...

    def interrupt(self, attempt_id: str) -> None:
        """Give up the work of an attempt, if there is any; from any thread."""


@dataclass(frozen=True, slots=True)
class SparkEngineSession:
    """A session of Spark as an engine's."""

    lake: IcebergSession

    def run(self, statement: str) -> Iterator[dict[str, object]]:
        # A procedure has run when this returns; what it tells may be long.
        return map(_by_name, self.lake.read(statement).toLocalIterator())


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """The project's own Spark: in this process, on a cluster, or behind Spark Connect."""

    sessions: SparkSessions
    kind: str = "spark"

    @contextmanager
    def session(self, catalog: Catalog, attempt_id: str) -> Iterator[EngineSession]:
        with iceberg_session(self.sessions, catalog, attempt_id, maintains=True) as session:
            session.spark.conf.set(*_SHUFFLES)
            yield SparkEngineSession(session)

    def interrupt(self, attempt_id: str) -> None:
        self.sessions.interrupt(attempt_id)


def _by_name(row: object) -> dict[str, object]:
    found: dict[str, object] = row.asDict()  # type: ignore[attr-defined]
    return found


# The same results as in a Spark of our own.
_DEFAULTS = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"}


class ThriftEngine:
    """Runs each attempt in a session of its own, which has the catalog with that attempt's fence.

    >>> ThriftEngine("thrift://etl:secret@gateway:10009")
    ThriftEngine(thrift://gateway:10009)
    """

    kind = "thrift"

    def __init__(self, address: str) -> None:
        self.address: ThriftAddress = parse_thrift_address(address)
        self._sessions: dict[str, set[ThriftSession]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ThriftEngine({self.address})"

    @contextmanager
    def session(self, catalog: Catalog, attempt_id: str) -> Iterator[EngineSession]:
        session = self._open(self.conf(catalog, attempt_id))
        with self._lock:
            self._sessions.setdefault(attempt_id, set()).add(session)
        try:
            yield session
        finally:
            with self._lock:
                self._sessions[attempt_id].discard(session)
                if not self._sessions[attempt_id]:
                    del self._sessions[attempt_id]
            session.close()

    def interrupt(self, attempt_id: str) -> None:
        with self._lock:
            found = tuple(self._sessions.get(attempt_id, ()))
        for session in found:
            session.interrupt()

    def check(self, seconds: float) -> None:
        """Open a session and close it again."""
        self._open({}, seconds).close()

    def conf(self, catalog: Catalog, attempt_id: str) -> dict[str, str]:
        """What a session is opened with; where the server knows the catalog, no secret is in it."""
        given = catalog.spark_conf(attempt_id, maintains=True)
        if self.address.catalog_on_server:
            # What is left is the attempt itself, by which the catalog's trigger knows it.
            known = catalog.spark_conf()
            given = {key: value for key, value in given.items() if known.get(key) != value}
        for key, value in given.items():
            if "${" in value:
                # The server would put something else there.
                raise SettingsError(
                    f'connection "{catalog.name}": {key.rpartition(".")[2]} has "${{" in it, '
                    "which a Thrift server does not take as it is",
                    "configure the catalog in the server and add ?catalog=server to "
                    "maintenance.engine",
                )
        return {**_DEFAULTS, **given}

    def _open(self, conf: Mapping[str, str], seconds: float | None = None) -> ThriftSession:
        try:
            from tidegate.iceberg.thrift import ThriftSession
        except ImportError as error:
            raise SettingsError(
                f"maintenance.engine is a Thrift server, and {error.name} is not installed",
                'pip install "tidegate[thrift]"',
            ) from error
        if seconds is None:
            return ThriftSession(self.address, conf)
        return ThriftSession(self.address, conf, seconds)
