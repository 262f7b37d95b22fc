"""Markers: the rows saying that a load is in its table (`table_updates`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import DestinationError
from tidegate.core.relation import Relation
from tidegate.ledger.ledger import Ledger
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import qualified, statement


@dataclass(frozen=True, slots=True)
class MarkerRow:
    """One recorded load."""

    update_id: str
    target_table: str | None
    """None counts for every table, as in Luigi"""
    inserted: str | None


@dataclass(frozen=True, slots=True)
class Markers:
    """Reads and writes the marker table of one ledger."""

    ledger: Ledger

    def exists(self, connection: Connection, update_id: str, target: Relation) -> bool:
        """Whether this load is in; a ledger that is not there yet holds nothing."""
        markers = self.ledger.find_markers(connection)
        if markers is None:
            return False
        try:
            row = connection.execute(
                self._statement("marker_exists", markers),
                {"update_id": update_id, "targets": _spellings(target)},
            ).fetchone()
        except pg.UndefinedTable:
            return False
        return bool(row and row[0])

    def touch(self, connection: Connection, update_id: str, target: Relation) -> bool:
        """Record the load inside the caller's transaction; False when it was recorded before."""
        markers = self.ledger.find_markers(connection)
        if markers is None:
            # The caller's snapshot may be older than the new table, so it is not asked again.
            markers = self.ledger.ensure()
        parameters: dict[str, Any] = {"update_id": update_id, "target": str(target)}
        name = "insert_marker"
        if self.ledger.client_timestamps:
            name = "insert_marker_stamped"
            parameters["inserted"] = datetime.now(UTC)
        if connection.execute(self._statement(name, markers), parameters).rowcount == 1:
            return True
        if not self.exists(connection, update_id, target):
            raise DestinationError(
                f"update_id {update_id!r} is already recorded for another table in {markers}",
                "choose an update_id that names the table as well",
            )
        return False

    def newest(
        self, connection: Connection, target: Relation | None = None, limit: int = 50
    ) -> list[MarkerRow]:
        """The newest markers; for a table, all those that `exists` goes by."""
        markers = self.ledger.find_markers(connection)
        if markers is None:
            return []
        rows = connection.execute(
            self._statement("list_markers", markers),
            {"targets": _spellings(target) if target else None, "limit": limit},
        )
        return [MarkerRow(*row) for row in rows]

    def forget(
        self, connection: Connection, update_id: str, target: Relation | None = None
    ) -> list[str]:
        """Remove a marker; the tables it was recorded for are returned."""
        markers = self.ledger.find_markers(connection)
        if markers is None:
            return []
        rows = connection.execute(
            self._statement("delete_marker", markers),
            {"update_id": update_id, "target": str(target) if target else None},
        )
        return [row[0] for row in rows]

    def forget_pipeline(self, connection: Connection, pipeline: str, target: Relation) -> int:
        markers = self.ledger.find_markers(connection)
        if markers is None:
            return 0
        return connection.execute(
            self._statement("delete_markers_of_pipeline", markers),
            {"pipeline": pipeline, "table": str(target)},
        ).rowcount

    def _statement(self, name: str, markers: Relation) -> sql.Composed:
        return statement(
            "ledger/table_updates",
            name,
            markers=qualified(markers),
            schema=self.ledger.schema_identifier,
        )


def _spellings(target: Relation) -> list[str]:
    """How a marker may name this table; Luigi's users often leave the schema out."""
    loose = [f"{target.schema}.{target.name}", target.name]
    if "." in target.schema + target.name:
        loose = []  # would read as another table
    return [str(target), *loose]
