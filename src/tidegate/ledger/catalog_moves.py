"""Commits of maintenance, as the embedded catalog's trigger has noted them."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ledger.ledger import Ledger
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import statement


@dataclass(frozen=True, slots=True)
class CatalogMoves:
    """Keeps what was noted from growing."""

    ledger: Ledger

    def forget(self, connection: Connection, attempt_id: str) -> None:
        """Those of an attempt that ends now, and of all that have ended."""
        connection.execute(
            statement("ledger/catalog_moves", "forget_ended", schema=self.ledger.schema_identifier),
            {"attempt_id": attempt_id},
        )
