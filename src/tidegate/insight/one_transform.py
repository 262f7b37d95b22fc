"""What a transformation makes of one row: run with Spark, staged aside, read, and dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.destinations import merge
from tidegate.destinations.lake import LakeDestination
from tidegate.lake.reading import staged_batches
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.column import RelationKind
from tidegate.model.identity import new_attempt_id
from tidegate.model.staging import staging_table
from tidegate.model.sync import Sync
from tidegate.pipeline.lake_mirror import mirror
from tidegate.pipeline.sessions import Sessions
from tidegate.pipeline.stage import Reading, Staged, stage_batch
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

_MOST = 10


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
    destination = sessions.context.destination(sync.target)
    attempt_id = new_attempt_id()
    try:
        narrowed = _only(connection, source, same)
        with sessions.context.reading(connection, narrowed) as snapshot:
            staged = stage_batch(
                Reading(
                    sessions.context,
                    sync,
                    narrowed,
                    connection,
                    snapshot,
                    Batch(BatchKind.FULL, rows=1),
                ),
                destination,
                attempt_id=attempt_id,
                prepare=lambda _: None,
            )
        if not staged.writes:
            return Made([])
        if isinstance(destination, LakeDestination):
            return _read_files(target, destination, staged)
        tables = [
            sql.Identifier(
                destination.ledger.schema,
                staging_table(destination.control_id, attempt_id, write.write_id),
            )
            for write in staged.writes
        ]
        rows = merge.staged_rows(tables, staged.shape, cast=True)
        return _read(target, rows, staged.shape.names)
    finally:
        destination.discard(attempt_id)


def _read(target: Connection, rows: sql.Composable, names: Sequence[str]) -> Made:
    found = target.execute(
        sql.SQL("SELECT ARRAY[{}] FROM ({}) s LIMIT {}").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names),
            rows,
            sql.Literal(_MOST),
        )
    ).fetchall()
    return Made([dict(zip(names, row[0], strict=True)) for row in found])


def _read_files(target: Connection, destination: LakeDestination, staged: Staged) -> Made:
    table = destination.read()
    if table is None:
        return Made([])
    kinds = [
        (column.name, known.type if (known := table.field(column.name)) else column.staged_type)
        for column in staged.shape.columns
    ]
    with mirror(target, "tidegate_why_made", kinds) as made:
        made.fill(staged_batches(destination.catalog, table, staged.writes))
        return _read(target, made.rows, staged.shape.names)


def _only(connection: Connection, source: PostgresSource, same: sql.Composable) -> PostgresSource:
    """The source with nothing in it but these rows."""
    query = sql.SQL("SELECT * FROM {} WHERE {}").format(source.relation, same)
    text = query.as_string(connection)
    table = replace(source.table, kind=RelationKind.QUERY, query=text)
    return replace(source, table=table, where=None)
