"""Staging tables: rows written aside, one unlogged table per call of the writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tidegate.ledger.ledger import Ledger
from tidegate.model.staging import staging_prefix
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import statement


@dataclass(frozen=True, slots=True)
class Staging:
    """Finds and drops the staging tables of one ledger."""

    ledger: Ledger

    def tables(
        self, connection: Connection, control_id: UUID, attempt_id: str | None = None
    ) -> list[str]:
        rows = connection.execute(
            statement("ledger/staging", "list_staging"),
            {"schema": self.ledger.schema, "prefix": staging_prefix(control_id, attempt_id)},
        )
        return [row[0] for row in rows]

    def discard(self, connection: Connection, control_id: UUID, attempt_id: str) -> int:
        """Drop what an attempt staged."""
        return self._drop(connection, self.tables(connection, control_id, attempt_id))

    def sweep(self, connection: Connection, control_id: UUID, live: Callable[[], set[str]]) -> int:
        """Drop what attempts of this control plane left behind that are not live any more.

        The tables are listed before the live attempts are: a table is made after its claim, so
        one that was seen and whose attempt is not live then belongs to nobody.
        """
        tables = self.tables(connection, control_id)
        prefixes = {staging_prefix(control_id, attempt_id) for attempt_id in live()}
        length = len(staging_prefix(control_id, "0" * 16))
        orphans = [table for table in tables if table[:length] not in prefixes]
        return self._drop(connection, orphans)

    def _drop(self, connection: Connection, tables: list[str]) -> int:
        dropped = 0
        for table in tables:
            try:
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = '2s'")
                    connection.execute(
                        sql.SQL("DROP TABLE IF EXISTS {}").format(
                            sql.Identifier(self.ledger.schema, table)
                        )
                    )
                dropped += 1
            except pg.LockNotAvailable:
                # Somebody still writes it: a lost attempt that will notice. The next sweep has it.
                continue
        return dropped
