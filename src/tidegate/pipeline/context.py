"""What every use case works with: the project's settings, databases and Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.destinations.postgres import PostgresDestination
from tidegate.ledger.ledger import Ledger
from tidegate.model.relation import Endpoint
from tidegate.postgres.connect import Connection
from tidegate.postgres.databases import CONTROL, Databases
from tidegate.settings import Settings
from tidegate.spark.grouping import Stager
from tidegate.spark.session import SparkSessions


@dataclass(slots=True)
class Context:
    """One opened project, as the use cases see it."""

    settings: Settings
    databases: Databases = field(init=False)
    spark: SparkSessions = field(init=False)
    plane: ControlPlane = field(init=False)
    stager: Stager = field(init=False)
    _control_id: UUID | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.databases = Databases(self.settings)
        self.spark = SparkSessions(self.settings.spark, self.settings.state_directory)
        self.stager = Stager(lambda: self.spark)
        self.plane = ControlPlane(
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

    def ledger(self, connection_name: str) -> Ledger:
        ledger = self.settings.ledger
        return Ledger(
            connect=partial(self.databases.lease, connection_name),
            schema=ledger.schema_name,
            marker_table=ledger.marker_table,
            client_timestamps=ledger.timestamps == "client",
        )

    def destination(self, target: Endpoint) -> PostgresDestination:
        connect: Callable[[str], Connection] = partial(self.databases.connect, target.connection)
        return PostgresDestination(
            connect=connect,
            lease=partial(self.databases.lease, target.connection),
            relation=target.relation,
            ledger=self.ledger(target.connection),
            control_id=self.control_id(),
            lock_timeout_seconds=self.settings.worker.lock_timeout_seconds,
            publish_timeout_seconds=self.settings.worker.publish_timeout_seconds,
            project=self.settings.project.name,
        )
