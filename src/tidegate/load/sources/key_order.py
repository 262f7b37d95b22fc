"""The rows of a source in the order of their key: compared, cut into batches, shared out."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from tidegate.core.errors import SourceError
from tidegate.core.relation import Table
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, holds_own_sql, operator

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """A key of a table, and what stands behind FROM when its rows are read."""

    table: Table
    names: tuple[str, ...]
    relation: sql.Composable

    def compare(self, symbol: str, values: Key) -> sql.Composed:
        """Whether a row's key lies so beside these values, given as text."""
        literals: list[sql.Composable] = []
        schemas: list[str | None] = []
        for name, text in zip(self.names, values, strict=True):
            column = self.table.column(name)
            assert column is not None
            literals.append(sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(column.type)))
            beside = "pg_catalog" if holds_own_sql(self.relation) else None
            schemas.append(column.operators or beside)
        if len(set(schemas)) == 1:
            return sql.SQL("({}) {} ({})").format(
                column_list(self.names), operator(symbol, schemas[0]), sql.SQL(", ").join(literals)
            )
        # Columns of which each has operators of its own: the first that differs decides.
        found: sql.Composable = sql.SQL("false" if symbol in "<>" else "true")
        for name, literal, schema in reversed(
            list(zip(self.names, literals, schemas, strict=True))
        ):
            found = sql.SQL("({n} {beyond} {v} OR ({n} {equal} {v} AND {rest}))").format(
                n=sql.Identifier(name),
                v=literal,
                beyond=operator(symbol[0], schema),
                equal=operator("=", schema),
                rest=found,
            )
        return sql.SQL("{}").format(found)

    def cut(
        self, connection: Connection, where: sql.Composable, after: Key | None, size: int
    ) -> tuple[int, Key | None]:
        """The next `size` rows: how many there are, and the last key if more follow."""
        self._refuse_nulls(connection, where)
        if after is not None:
            where = sql.SQL("{} AND {}").format(where, self.compare(">", after))
        rows = connection.execute(
            sql.SQL(
                "WITH seen AS (SELECT pg_catalog.row_number() OVER (ORDER BY {key}) AS n, {key}"
                " FROM {relation} WHERE {where} ORDER BY {key} LIMIT {limit})"
                " SELECT n, {texts} FROM seen WHERE n >= {size}"
                " OR n = (SELECT pg_catalog.max(n) FROM seen) ORDER BY n"
            ).format(
                key=column_list(self.names),
                relation=self.relation,
                where=where,
                limit=sql.Literal(size + 1),
                size=sql.Literal(size),
                texts=self._texts,
            )
        ).fetchall()
        if len(rows) < 2:
            return (rows[0][0] if rows else 0), None
        return int(rows[0][0]), tuple(str(part) for part in rows[0][1:])

    def slices(
        self, connection: Connection, where: sql.Composable, rows: int, wanted: int
    ) -> list[sql.Composable]:
        """Conditions that share these rows out evenly."""
        places = {rows * step // wanted for step in range(1, wanted)} - {0}
        found = connection.execute(
            sql.SQL(
                "SELECT {texts} FROM"
                " (SELECT pg_catalog.row_number() OVER (ORDER BY {key}) AS n, {key}"
                " FROM {relation} WHERE {where}) s WHERE n = ANY({places}) ORDER BY n"
            ).format(
                texts=self._texts,
                key=column_list(self.names),
                relation=self.relation,
                where=where,
                places=sql.Literal(sorted(places)),
            )
        )
        bounds = [tuple(str(part) for part in row) for row in found]
        slices: list[sql.Composable] = []
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            parts: list[sql.Composable] = [where]
            parts += [] if low is None else [self.compare(">", low)]
            parts += [] if high is None else [self.compare("<=", high)]
            slices.append(sql.SQL(" AND ").join(parts))
        return slices

    @property
    def _texts(self) -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL("{}::text").format(sql.Identifier(name)) for name in self.names
        )

    def _refuse_nulls(self, connection: Connection, where: sql.Composable) -> None:
        """A comparison by key passes over rows without one, so they must not be there."""
        columns = [self.table.column(name) for name in self.names]
        nullable = [column.name for column in columns if column and not column.not_null]
        if not nullable:
            return
        missing = sql.SQL(" OR ").join(
            sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in nullable
        )
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {} AND ({})").format(
                self.relation, where, missing
            )
        ).fetchone()
        if row and row[0]:
            raise SourceError(
                f"{row[0]} rows of {self.table.relation} have no value in their key "
                f"({', '.join(self.names)})",
                "choose a key that every row has",
            )
