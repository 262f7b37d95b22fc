"""What jobs need of an opened project."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.ledger.fences import FencedTable
from tidegate.model.relation import Endpoint
from tidegate.postgres.connect import Connection
from tidegate.postgres.databases import Databases
from tidegate.settings import Settings


class JobContext(Protocol):
    """Settings, databases, the control plane, and the tables that jobs publish into."""

    settings: Settings
    databases: Databases
    plane: ControlPlane

    def control_id(self) -> UUID:
        """The identity of the control plane, which is made on first use."""

    def is_lake(self, connection_name: str) -> bool:
        """Whether a connection leads to an Iceberg catalog, as opposed to a database."""

    def destination(self, target: Endpoint) -> FencedTable:
        """The table that a job is fenced into."""

    def table_written(self, control: Connection, table: FencedTable, *, anew: bool) -> None:
        """A job has written into a table; `anew`: maintenance may have changed it all over."""
