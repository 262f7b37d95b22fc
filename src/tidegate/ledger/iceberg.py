"""Intents, staged folders and maintenance commits of Iceberg tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from tidegate.ledger.ledger import Ledger
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import statement


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


@dataclass(frozen=True, slots=True)
class StagedFolder:
    """The files of one load; once `adopted` they may be part of the table."""

    folder: str
    attempt_id: str
    location: str
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class StagedFolders:
    """Keeps the folders of one lake's ledger."""

    ledger: Ledger

    def note(self, connection: Connection, table: str, folder: StagedFolder) -> None:
        connection.execute(
            self._statement("note_folder"),
            {
                "folder": folder.folder,
                "attempt_id": folder.attempt_id,
                "table": table,
                "location": folder.location,
            },
        )

    def adopt(self, connection: Connection, folders: Collection[str]) -> None:
        """Say that their files become the table's own, before they do."""
        connection.execute(self._statement("adopt_folder"), {"folders": list(folders)})

    def of_attempt(self, connection: Connection, attempt_id: str) -> list[StagedFolder]:
        try:
            rows = connection.execute(self._statement("list_folders"), {"attempt_id": attempt_id})
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [StagedFolder(*row) for row in rows]

    def of_table(self, connection: Connection, table: str | None) -> list[StagedFolder]:
        """What is left behind for a table, or for any."""
        try:
            rows = connection.execute(self._statement("folders_of_table"), {"table": table})
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [StagedFolder(*row) for row in rows]

    def unadopted(self, connection: Connection) -> list[tuple[str, str]]:
        """(table, attempt) of every folder whose files are no table's own."""
        try:
            rows = connection.execute(self._statement("unadopted_folders"))
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [(table, attempt_id) for table, attempt_id in rows]

    def attempts(self, connection: Connection, table: str) -> list[str]:
        """Attempts that may have left something behind for a table."""
        try:
            rows = connection.execute(self._statement("list_attempts"), {"table": table})
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [attempt_id for (attempt_id,) in rows]

    def forget(self, connection: Connection, attempt_id: str, *, ended: bool) -> None:
        """Those of an attempt whose work has ended at once, as nothing more is written there."""
        connection.execute(
            self._statement("delete_folders"), {"attempt_id": attempt_id, "ended": ended}
        )

    def _statement(self, name: str) -> sql.Composed:
        return statement("ledger/staged_folders", name, schema=self.ledger.schema_identifier)


@dataclass(frozen=True, slots=True)
class CatalogMoves:
    """Keeps what was noted from growing."""

    ledger: Ledger

    def forget(self, connection: Connection) -> None:
        """Those of attempts that were replaced since."""
        connection.execute(
            statement(
                "ledger/catalog_moves", "forget_replaced", schema=self.ledger.schema_identifier
            )
        )
