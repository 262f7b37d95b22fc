"""Maintenance by a HiveServer2: Kyuubi, or Spark's own Thrift server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegate.errors import SettingsError
from tidegate.lake.catalog import Catalog
from tidegate.lake.engine import EngineSession
from tidegate.lake.thrift_address import ThriftAddress, parse_thrift_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.lake.thrift_session import ThriftSession

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
            from tidegate.lake.thrift_session import ThriftSession
        except ImportError as error:
            raise SettingsError(
                f"maintenance.engine is a Thrift server, and {error.name} is not installed",
                'pip install "tidegate[thrift]"',
            ) from error
        if seconds is None:
            return ThriftSession(self.address, conf)
        return ThriftSession(self.address, conf, seconds)
