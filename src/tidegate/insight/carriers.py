"""Which load brought a row: from the row itself where it says so, else from the watermark's log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.control.plane import ControlPlane
from tidegate.ledger.ledger import Ledger
from tidegate.model.cursor import CursorType
from tidegate.model.explanation import Carrier
from tidegate.model.sync import Sync
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import statement


@dataclass(frozen=True, slots=True)
class Carriers:
    """Searches the log of one sync's watermark."""

    ledger: Ledger
    sync: Sync

    def passing(
        self,
        connection: Connection,
        value: str | None,
        cursor_type: CursorType | None,
        *,
        tie: str | None,
        lookback: bool,
    ) -> Carrier | None:
        """The last move that may have brought a row with this value; `tie` is one half loaded."""
        name = sql.SQL(cursor_type.value if cursor_type else "text")
        parameters = {**self._sync, "value": value, "tie": tie, "lookback": lookback}
        try:
            with connection.transaction():
                rows = connection.execute(
                    self._statement("find_carriers", type=name), parameters
                ).fetchall()
        except (psycopg.DataError, pg.UndefinedTable, pg.InvalidSchemaName):
            # Values of a cursor that was declared before cannot be compared with this one's.
            return None
        if not rows:
            return None
        return replace(_carrier(rows[0]), others=len(rows) - 1)

    def of_load(self, connection: Connection, update_id: str) -> Carrier | None:
        """The move that one load made; the row says that it came with it."""
        try:
            with connection.transaction():
                row = connection.execute(
                    self._statement("find_load"), {**self._sync, "update_id": update_id}
                ).fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return None
        return replace(_carrier(row), is_certain=True) if row else None

    @property
    def _sync(self) -> dict[str, Any]:
        return {"pipeline": self.sync.pipeline, "table": str(self.sync.target.relation)}

    def _statement(self, name: str, **parts: sql.Composable) -> sql.Composed:
        schema = self.ledger.schema_identifier
        return statement("ledger/watermark_log", name, schema=schema, **parts)


def with_job(carrier: Carrier, plane: ControlPlane, control: Connection | None) -> Carrier:
    """The carrier with its job, where the history still has it."""
    if control is None or carrier.attempt_id is None:
        return carrier
    row = control.execute(
        plane.statement("jobs", "job_of_attempt"), {"attempt_id": carrier.attempt_id}
    ).fetchone()
    return replace(carrier, job_id=row[0]) if row else carrier


def _carrier(row: tuple[Any, ...]) -> Carrier:
    return Carrier(*row)
