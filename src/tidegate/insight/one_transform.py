"""What a transformation makes of one row: run with Spark, staged aside, read, and dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.destinations import merge
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.column import RelationKind
from tidegate.model.identity import new_attempt_id
from tidegate.model.staging import staging_table
from tidegate.model.sync import Sync
from tidegate.pipeline.sessions import Sessions
from tidegate.pipeline.stage import Reading, stage_batch
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource, snapshot


@dataclass(frozen=True, slots=True)
class Made:
    """The rows that came out, as text in the types of the target."""

    rows: list[dict[str, str | None]]


def transform_row(
    sessions: Sessions, sync: Sync, source: PostgresSource, same: sql.Composable
) -> Made:
    """Apply the transformation to the rows of the source that meet `same`."""
    connection = sessions.source(sync.source.connection)
    target = sessions.target(sync.target.connection)
    destination = sessions.context.postgres_destination(sync.target)
    attempt_id = new_attempt_id()
    try:
        with snapshot(connection) as name:
            staged = stage_batch(
                Reading(
                    sessions.context,
                    sync,
                    _only(connection, source, same),
                    connection,
                    name,
                    Batch(BatchKind.FULL, rows=1),
                ),
                destination,
                attempt_id=attempt_id,
                prepare=lambda _: None,
            )
        if not staged.writes:
            return Made([])
        tables = [
            sql.Identifier(
                destination.ledger.schema,
                staging_table(destination.control_id, attempt_id, write.write_id),
            )
            for write in staged.writes
        ]
        names = staged.shape.names
        rows = target.execute(
            sql.SQL("SELECT ARRAY[{}] FROM ({}) s LIMIT 10").format(
                sql.SQL(", ").join(
                    sql.SQL("{}::text").format(sql.Identifier(name)) for name in names
                ),
                merge.staged_rows(tables, staged.shape, cast=True),
            )
        ).fetchall()
        return Made([dict(zip(names, row[0], strict=True)) for row in rows])
    finally:
        destination.discard(attempt_id)


def _only(connection: Connection, source: PostgresSource, same: sql.Composable) -> PostgresSource:
    """The source with nothing in it but these rows."""
    query = sql.SQL("SELECT * FROM {} WHERE {}").format(source.relation, same)
    text = query.as_string(connection)
    table = replace(source.table, kind=RelationKind.QUERY, query=text)
    return replace(source, table=table, where=None)
