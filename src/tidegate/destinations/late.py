"""Counting late rows while they are put in: the statement that changes rows also tells how far
behind the watermark they were."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from tidegate.model.cursor import CursorType
from tidegate.model.lateness import Late
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class LateRows:
    """What rows at or below a watermark are measured by."""

    cursor: str
    type: CursorType
    watermark: str

    def execute(self, connection: Connection, statement: sql.Composed) -> tuple[int, Late | None]:
        """Run a statement that inserts or updates rows; how many, and how late they were."""
        row = connection.execute(
            sql.SQL(
                "WITH changed AS ({statement} RETURNING {cursor} AS c),"
                " late AS (SELECT ({distance})::float8 AS d FROM changed)"
                " SELECT count(*), pg_catalog.count(d),"
                " pg_catalog.percentile_disc(0.5::float8) WITHIN GROUP (ORDER BY d),"
                " pg_catalog.max(d)"
                " FROM late"
            ).format(
                statement=statement, cursor=sql.Identifier(self.cursor), distance=self._distance
            )
        ).fetchone()
        assert row is not None
        changed, late, half_within, farthest = row
        return changed, Late(late, half_within, farthest) if late else None

    @property
    def _distance(self) -> sql.Composed:
        typed = sql.SQL(self.type.value)
        if self.type.is_number:
            return sql.SQL("{}::numeric - c::text::numeric").format(sql.Literal(self.watermark))
        if self.type is CursorType.DATE:
            return sql.SQL("({}::date - c::date) * 86400").format(sql.Literal(self.watermark))
        return sql.SQL("extract(epoch FROM {}::{t} - c::{t})").format(
            sql.Literal(self.watermark), t=typed
        )
