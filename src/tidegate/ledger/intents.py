"""Intents: loads that are about to be in, and whose rows in the ledger are still to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from tidegate.ledger.ledger import Ledger
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import statement


@dataclass(frozen=True, slots=True)
class Intent:
    """One attempt's word that it is about to publish a load."""

    update_id: str
    attempt_id: str
    fence: int
    base: int | None
    """where main stood when the rows were staged upon it"""
    snapshot: int | None
    """what main shall be; None where that is known only afterwards"""
    move: Mapping[str, Any] | None
    """how the watermark moves, where one does"""
    repeatable: bool = False
    """whether nothing is doubled if the load is done again"""
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Intents:
    """Keeps the intents of one lake's ledger."""

    ledger: Ledger

    def note(self, connection: Connection, table: str, intent: Intent) -> None:
        """In the caller's transaction, which holds the fence."""
        connection.execute(
            self._statement("note_intent"),
            {
                "table": table,
                "update_id": intent.update_id,
                "attempt_id": intent.attempt_id,
                "fence": intent.fence,
                "base": intent.base,
                "snapshot": intent.snapshot,
                "move": None if intent.move is None else Jsonb(dict(intent.move)),
                "repeatable": intent.repeatable,
            },
        )

    def of_table(self, connection: Connection, table: str) -> list[Intent]:
        """What is not settled, oldest first."""
        try:
            rows = connection.execute(self._statement("list_intents"), {"table": table})
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [Intent(*row) for row in rows]

    def forget(self, connection: Connection, table: str, pipeline: str) -> None:
        """Nobody asks for these loads any more."""
        connection.execute(
            self._statement("forget_intents"), {"table": table, "pipeline": pipeline}
        )

    def settle(self, connection: Connection, table: str, update_id: str) -> None:
        """The load is in and recorded, or shall never be."""
        connection.execute(
            self._statement("settle_intents"), {"table": table, "update_id": update_id}
        )

    def abandon(self, connection: Connection, table: str, intent: Intent) -> None:
        """It is not in. Its attempt cannot put it in any more, as far as can be seen."""
        connection.execute(
            self._statement("abandon_intent"),
            {"table": table, "update_id": intent.update_id, "attempt_id": intent.attempt_id},
        )

    def _statement(self, name: str) -> sql.Composed:
        return statement("ledger/intents", name, schema=self.ledger.schema_identifier)
