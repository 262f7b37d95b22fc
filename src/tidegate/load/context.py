"""What every use case works with: the project's settings, databases and Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from tidegate.config import Settings
from tidegate.config.sync import Layout
from tidegate.core.relation import Endpoint
from tidegate.iceberg.catalog import Catalog, catalog_digest
from tidegate.iceberg.engines import Engine
from tidegate.iceberg.jars import lake_conf
from tidegate.iceberg.table import EMBEDDED, ledger_schema
from tidegate.jobs.control_database import ControlDatabase
from tidegate.ledger.fences import FencedTable
from tidegate.ledger.ledger import Ledger
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import reading
from tidegate.load.target import Target
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.load.targets.postgres.target import PostgresTarget
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.postgres.databases import CONTROL, Databases
from tidegate.spark.session import SparkSessions
from tidegate.spark.stager import Stager


def _nothing_declared() -> Mapping[str, object]:
    raise RuntimeError("this context was made without the project's declarations")


@dataclass(slots=True)
class Context:
    """One opened project, as the use cases see it."""

    settings: Settings
    databases: Databases = field(init=False)
    spark: SparkSessions = field(init=False)
    plane: ControlDatabase = field(init=False)
    stager: Stager = field(init=False)
    engine: Engine | None = None
    """what maintains the lakes, where it is another Spark; see engine_of"""
    declared: Callable[[], Mapping[str, object]] = _nothing_declared
    """what the project declares, by name"""
    on_written: Callable[[Context, Connection, FencedTable, bool], None] | None = None
    """is called after a job has written into a table"""
    _control_id: UUID | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.databases = Databases(self.settings)
        self.spark = SparkSessions(
            self.settings.spark, self.settings.state_directory, self.lake_conf
        )
        self.stager = Stager(lambda: self.spark)
        self.plane = ControlDatabase(
            partial(self.databases.connect, CONTROL), self.settings.project.control_schema
        )

    def control_id(self) -> UUID:
        """The identity of the control plane, which is made on first use."""
        with self._lock:
            if self._control_id is None:
                with self.plane.connect() as connection:
                    self.plane.migrate(connection)
                    self._control_id = self.plane.identity(connection)
            return self._control_id

    def reading(
        self, connection: Connection, source: PostgresSource
    ) -> AbstractContextManager[Snapshot]:
        """One snapshot of a source, in the session that it was opened with."""
        return reading(connection, source, self.settings.safety.lock_timeout_seconds)

    def is_lake(self, connection_name: str) -> bool:
        """Whether a connection leads to an Iceberg catalog, as opposed to a database."""
        return self.settings.is_lake(connection_name)

    def ledger(self, connection_name: str) -> Ledger:
        """The ledger of a connection; that of a lake lies in the control database."""
        ledger = self.settings.ledger
        lake = self.catalog(connection_name) if self.is_lake(connection_name) else None
        return Ledger(
            connect=partial(self.databases.lease, connection_name),
            schema=ledger.schema_name if lake is None else lake.schema,
            marker_table=ledger.marker_table if lake is None else "table_updates",
            client_timestamps=ledger.timestamps == "client",
            lake=lake is not None,
            catalog=lake is not None and lake.is_embedded,
        )

    def catalog(self, connection_name: str) -> Catalog:
        """The catalog behind a lake connection."""
        connection = self.settings.connection(connection_name)
        options = dict(connection.options)
        kind = options.pop("catalog", EMBEDDED)
        digest = kind if kind == EMBEDDED else catalog_digest(kind, options)
        return Catalog(
            name=connection_name,
            kind=kind,
            options=options,
            warehouse=self.settings.state_directory / "lake" / connection_name,
            schema=ledger_schema(self.settings.project.name, connection_name, digest),
            control=partial(self.databases.portable_conninfo, CONTROL),
            lease=partial(self.databases.lease, CONTROL),
        )

    def destination(self, target: Endpoint, layout: Layout | None = None) -> Target:
        """Where rows go, whatever it is."""
        if not self.is_lake(target.connection):
            return self.postgres_destination(target)
        return IcebergTarget(
            catalog=self.catalog(target.connection),
            relation=target.relation,
            ledger=self.ledger(target.connection),
            control_id=self.control_id(),
            sessions=self.spark,
            lease=partial(self.databases.lease, CONTROL),
            lock_timeout_seconds=self.settings.worker.lock_timeout_seconds,
            project=self.settings.project.name,
            layout=layout or Layout(),
        )

    def postgres_destination(self, target: Endpoint) -> PostgresTarget:
        connect: Callable[[str], Connection] = partial(self.databases.connect, target.connection)
        return PostgresTarget(
            connect=connect,
            lease=partial(self.databases.lease, target.connection),
            relation=target.relation,
            ledger=self.ledger(target.connection),
            control_id=self.control_id(),
            lock_timeout_seconds=self.settings.worker.lock_timeout_seconds,
            publish_timeout_seconds=self.settings.worker.publish_timeout_seconds,
            project=self.settings.project.name,
        )

    def table_written(self, control: Connection, table: FencedTable, *, anew: bool) -> None:
        """A job has written into a table; `anew`: maintenance may have changed it all over."""
        if self.on_written is not None:
            self.on_written(self, control, table, anew)

    def lake_conf(self) -> dict[str, str]:
        """What Spark must start with, where the project has a lake."""
        lakes = [one for one in self.settings.connections if self.is_lake(one)]
        if not lakes:
            return {}
        postgres = any(self.catalog(one).needs_postgres for one in lakes)
        return lake_conf(self.settings.spark.conf, postgres=postgres)
