"""Folders of staged files in a lake: noted before they are filled, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from psycopg import errors as pg
from psycopg import sql

from tidegate.ledger.ledger import Ledger
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import statement


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
