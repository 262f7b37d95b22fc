"""Reading that stays bounded: one snapshot, and counts that give way to estimates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import errors as pg
from psycopg import sql

from tidegate.postgres.connect import Connection, begin_read_only
from tidegate.sources.postgres import PostgresSource

_COUNT_MILLISECONDS = 1_000


def count_rows(
    connection: Connection, source: PostgresSource, condition: sql.Composable
) -> tuple[int, bool]:
    """How many rows, counted if that is quick, else as the source's planner estimates."""
    statement = sql.SQL("SELECT {} FROM {} WHERE {}")
    try:
        with bounded(connection, _COUNT_MILLISECONDS):
            row = connection.execute(
                statement.format(sql.SQL("count(*)"), source.relation, condition)
            ).fetchone()
        assert row is not None
        return int(row[0]), True
    except pg.QueryCanceled:
        explain = sql.SQL("EXPLAIN (FORMAT JSON) ") + statement.format(
            sql.SQL("1"), source.relation, condition
        )
        row = connection.execute(explain).fetchone()
        assert row is not None
        return int(row[0][0]["Plan"]["Plan Rows"]), False


@contextmanager
def read_only(connection: Connection) -> Iterator[None]:
    """One snapshot of a database for everything that is read in here."""
    begin_read_only(connection)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


@contextmanager
def bounded(connection: Connection, milliseconds: int) -> Iterator[None]:
    """Statements in here end with QueryCanceled after a while; the snapshot outlives that."""
    with connection.transaction():
        connection.execute("SELECT set_config('statement_timeout', %s, true)", (str(milliseconds),))
        yield
        connection.execute("SET LOCAL statement_timeout TO DEFAULT")
