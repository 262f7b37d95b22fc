"""Markers as users see them."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import UsageError
from tidegate.ledger.markers import MarkerRow, Markers
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Marker:
    """The mark of one load in one table.

    >>> marker = project.marker("warehouse:marts.x", update_id="x-1")      # doctest: +SKIP
    >>> if not marker.exists():                                            # doctest: +SKIP
    ...     with project.connect("warehouse") as connection, connection.transaction():
    ...         connection.execute("…")
    ...         marker.touch(connection)
    """

    context: Context
    target: Endpoint
    update_id: str

    def exists(self) -> bool:
        """Whether the load is in; False as well where no ledger exists yet."""
        with self.context.databases.connect(self.target.connection) as connection:
            return self._markers().exists(connection, self.update_id, self.target.relation)

    def touch(self, connection: Connection) -> bool:
        """Record the load inside the transaction of `connection`; False if it was there before."""
        return self._markers().touch(connection, self.update_id, self.target.relation)

    def _markers(self) -> Markers:
        return Markers(self.context.ledger(self.target.connection))


def list_markers(
    context: Context, connection_name: str, target: Endpoint | None, limit: int
) -> list[MarkerRow]:
    """The newest markers in one destination database."""
    with context.databases.connect(connection_name) as connection:
        relation = None if target is None else target.relation
        return Markers(context.ledger(connection_name)).newest(connection, relation, limit)


def forget_marker(context: Context, target: Endpoint, update_id: str) -> list[str]:
    """Remove a marker, so that its load counts as not done."""
    with context.databases.connect(target.connection) as connection:
        forgotten = Markers(context.ledger(target.connection)).forget(
            connection, update_id, target.relation
        )
    if not forgotten:
        raise UsageError(
            f"there is no marker {update_id!r} for {target}",
            f"see: tidegate marker list {target.connection}",
        )
    return forgotten
