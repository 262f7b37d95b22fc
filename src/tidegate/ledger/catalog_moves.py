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

    def forget(self, connection: Connection) -> None:
        """Those of attempts that were replaced since."""
        connection.execute(
            statement(
                "ledger/catalog_moves", "forget_replaced", schema=self.ledger.schema_identifier
            )
        )
