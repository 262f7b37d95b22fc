"""Rows that a target's checks have set aside, as a verification has to see them."""

from __future__ import annotations

from psycopg import sql

from tidegate.destinations.quarantine import rejected_table
from tidegate.errors import DestinationError
from tidegate.model.column import Table
from tidegate.model.rules import Mode
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.compare import LEFT_OUT, Hashing
from tidegate.pipeline.sides import target_columns
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import qualified

_MOST_KEYS = 1_000_000


def leave_out_rejected(
    connection: Connection, sync: Sync, table: Table, shape: Shape
) -> tuple[str, ...]:
    """Note the keys that are set aside now among those that are not compared; returns them."""
    if not (_has_rejected(connection, sync) and shape.key):
        return ()
    key = sql.SQL(", ").join(target_columns(table, shape.key, shape, "p"))
    rows = connection.execute(
        sql.SQL("SELECT DISTINCT ROW({})::text FROM {} LIMIT {}").format(
            key, _typed(sync, table), sql.Literal(_MOST_KEYS + 1)
        )
    )
    keys = tuple(row[0] for row in rows)
    if len(keys) > _MOST_KEYS:
        raise DestinationError(
            f"more than {_MOST_KEYS:,} keys are in {rejected_table(sync.target.relation)}",
            "mend those rows at the source and load them again, or delete what is settled there",
        )
    connection.execute(
        sql.SQL("INSERT INTO {} SELECT unnest({}::text[])").format(
            LEFT_OUT, sql.Literal(list(keys))
        )
    )
    return keys


def without_keys(
    rows: sql.Composable, key: sql.Composable, rejected: tuple[str, ...]
) -> sql.Composable:
    """The rows of a query whose key, given as columns of it, is none of these."""
    if not rejected:
        return rows
    return sql.SQL(
        "SELECT * FROM ({}) o WHERE NOT EXISTS"
        " (SELECT FROM pg_catalog.unnest({}::text[]) AS r(k) WHERE r.k = ROW({})::text)"
    ).format(rows, sql.Literal(list(rejected)), key)


def rejected_side(
    connection: Connection,
    sync: Sync,
    table: Table,
    shape: Shape,
    watermark: Watermark,
    hashing: Hashing,
) -> sql.Composed | None:
    """Rows without a key that were set aside, as a side of a comparison.

    A replace sets rows aside with every load, so that only those of the last one count.
    """
    if not _has_rejected(connection, sync):
        return None
    columns = target_columns(table, shape.names, shape, "p")
    rows = sql.SQL("SELECT {} FROM {}").format(hashing.row(columns, columns), _typed(sync, table))
    if sync.mode is not Mode.REPLACE:
        return rows
    return sql.SQL("{} WHERE r.update_id = {}").format(rows, sql.Literal(watermark.update_id))


def _has_rejected(connection: Connection, sync: Sync) -> bool:
    if not sync.checks:
        return False
    return describe_table(connection, rejected_table(sync.target.relation)) is not None


def _typed(sync: Sync, table: Table) -> sql.Composed:
    """Rejected rows, with their columns in the types of the target again."""
    return sql.SQL("{} r CROSS JOIN LATERAL jsonb_populate_record(NULL::{}, r.row) p").format(
        qualified(rejected_table(sync.target.relation)), qualified(table.relation)
    )
