"""The two sides of a verification: the target's rows, and the keys that are left out of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql

from tidegate.model.batch import Batch, BatchKind
from tidegate.model.column import Table
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark
from tidegate.pipeline.compare import LEFT_OUT, SCRATCH, Hashing
from tidegate.pipeline.landing_table import DELETED_AT
from tidegate.pipeline.loaded import pending_condition
from tidegate.pipeline.stage import passed_columns
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import qualified
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.reading import read_only
from tidegate.spark.copying import copy_rows

CHANGED = sql.Identifier("pg_temp", "tidegate_verify_changed")
"""keys as they came from a log, to be printed as keys are compared"""
_NOT_MARKED = sql.SQL("t.{} IS NULL").format(sql.Identifier(DELETED_AT))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Source rows that were not compared."""

    not_yet_loaded: int
    without_cursor: int
    rejected: int = 0

    @property
    def any(self) -> bool:
        return self.not_yet_loaded + self.without_cursor + self.rejected > 0


def target_columns(
    table: Table, names: Iterable[str], shape: Shape, alias: str = "t"
) -> list[sql.Composable]:
    """Columns of the target in the types of the load, so that both sides print alike."""

    def expression(name: str) -> sql.Composable:
        column, existing = shape.column(name), table.column(name)
        assert column is not None
        assert existing is not None
        found = sql.Identifier(alias, name)
        if existing.type == column.target_type:
            return found
        return sql.SQL("{}::{}").format(found, sql.SQL(column.target_type))

    return [expression(name) for name in names]


def target_rows(
    table: Table, shape: Shape, hashing: Hashing, *, left_out: LeftOut, soft: bool = False
) -> sql.Composed:
    """The target's side; without a key the whole row stands for it.

    With `soft`, rows that are marked as deleted are not there.
    """
    key = target_columns(table, shape.key or shape.names, shape)
    query = sql.SQL("SELECT {} FROM {} t").format(
        hashing.row(key, target_columns(table, shape.names, shape)), qualified(table.relation)
    )
    conditions: list[sql.Composable] = [_NOT_MARKED] if soft else []
    if left_out.any and shape.key:
        conditions.append(not_left_out(key))
    if not conditions:
        return query
    return sql.SQL("{} WHERE {}").format(query, sql.SQL(" AND ").join(conditions))


def target_fingerprint(connection: Connection, table: Table, shape: Shape) -> str:
    """The target's rows summed up as PostgresSource.fingerprint does with the source's."""
    row = connection.execute(
        sql.SQL(
            "SELECT count(*)::text || ':' || coalesce(pg_catalog.sum("
            "pg_catalog.hashtextextended(ROW({})::text, 0::bigint)), 0)::text FROM {} t"
        ).format(
            sql.SQL(", ").join(target_columns(table, shape.names, shape)),
            qualified(table.relation),
        )
    ).fetchone()
    assert row is not None
    return str(row[0])


def not_left_out(key: Sequence[sql.Composable]) -> sql.Composed:
    """Whether a row's key is none of those that are not compared."""
    return sql.SQL("NOT EXISTS (SELECT FROM {} l WHERE l.k = ROW({})::text)").format(
        LEFT_OUT, sql.SQL(", ").join(key)
    )


def send_left_out(
    connection: Connection,
    target: Connection,
    source: PostgresSource,
    watermark: Watermark,
    *,
    nulls: bool,
    select: Mapping[str, sql.Composable] | None = None,
) -> LeftOut:
    """Stream the keys of source rows that are not loaded into the target's session.

    `select` gives the columns as the target holds them, where that is not as they travel. Rows
    without a key have nothing by which they could be left out there, and are only counted.
    """
    select = select or dict(
        zip((column.name for column in source.columns), passed_columns(source), strict=True)
    )
    key = sql.SQL(", ").join(select[name] for name in source.key)

    def send(where: sql.Composable) -> int:
        if not source.key:
            row = connection.execute(
                sql.SQL("SELECT count(*) FROM {} WHERE {}").format(source.relation, where)
            ).fetchone()
            return int(row[0]) if row else 0
        statement = sql.SQL("SELECT ROW({})::text FROM {} WHERE {}").format(
            key, source.relation, where
        )
        return copy_rows(connection, statement, target, LEFT_OUT, ("k",))

    waiting = send(pending_condition(source, watermark, nulls=True))
    without = 0
    if source.null_policy is not None and not nulls:
        without = send(source.condition(Batch(BatchKind.NULLS)))
    return LeftOut(waiting, without)


@contextmanager
def target_snapshot(connection: Connection) -> Iterator[None]:
    """One snapshot of the target, which writes to temporary tables only, so nobody waits for it."""
    scratch = ((CHANGED, "v text[]"), *SCRATCH)
    # A READ ONLY transaction may fill a temporary table, but not make one.
    for table, columns in scratch:
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ({})").format(table, sql.SQL(columns))
        )
    try:
        with read_only(connection):
            yield
    finally:
        if not connection.closed:
            connection.execute(
                sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(table for table, _ in scratch))
            )
