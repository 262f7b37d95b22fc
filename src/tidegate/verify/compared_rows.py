"""Which rows are compared: not pending, rejected or waiting in a slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import BusyError, DestinationError, DriftRefused
from tidegate.core.relation import Table
from tidegate.core.shape import LoadedShape, Shape
from tidegate.core.watermark import Watermark, lsn_value
from tidegate.load.context import Context
from tidegate.load.modes import MODES
from tidegate.load.sources.cdc.fold import DELETED_AT
from tidegate.load.sources.cdc.pgoutput import TableTruncated, changed_keys
from tidegate.load.sources.cdc.slot import SlotPeek, flushed_position
from tidegate.load.sources.cdc.slot_lifecycle import SlotLifecycle
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import read_only
from tidegate.load.sources.watermark_conditions import pending_condition
from tidegate.load.stage import passed_columns
from tidegate.load.targets.postgres.drift import find_evolution
from tidegate.load.targets.postgres.rejected_rows import rejected_table
from tidegate.load.targets.postgres.table import check_existing
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import from_text, qualified
from tidegate.spark.binary_copy import copy_rows
from tidegate.verify.compare import LEFT_OUT, SCRATCH, Hashing

CHANGED = sql.Identifier("pg_temp", "tidegate_verify_changed")
"""keys as they came from a log, to be printed as keys are compared"""
_NOT_MARKED = sql.SQL("t.{} IS NULL").format(sql.Identifier(DELETED_AT))


@dataclass(frozen=True, slots=True)
class UncomparedRows:
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
    table: Table, shape: Shape, hashing: Hashing, *, left_out: UncomparedRows, soft: bool = False
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
) -> UncomparedRows:
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
    return UncomparedRows(waiting, without)


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
    if not MODES[sync.mode].loads_whole:
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


def check_comparable(
    target: Connection, sync: Sync, shape: Shape, loaded: LoadedShape | None
) -> tuple[str, ...]:
    """What `plan` says of the drift; refuses in its words where the target lacks what is compared.

    A column that only left the source, or that may be NULL now, is in nobody's way.
    """
    relation, rules = sync.target.relation, sync.rules
    try:
        check_existing(target, relation, shape, rules)
    except DestinationError:
        evolution = find_evolution(target, relation, shape, rules, loaded)
        if evolution is None or not evolution.is_needed:
            raise
        check_existing(target, relation, shape, rules, evolution.table)
        raise columns_changed(sync, evolution.notes, "verify again") from None
    try:
        evolution = find_evolution(target, relation, shape, rules, loaded)
    except DriftRefused as refusal:
        return (refusal.message,)
    return () if evolution is None else evolution.notes


def columns_changed(sync: Sync, changes: tuple[str, ...], then: str) -> DestinationError:
    """The refusal to compare, or to put right, what no longer has the source's columns."""
    first = f"let the target follow first: tidegate run {sync.name}"
    if sync.transform is not None:
        first = (
            "the target follows when rows come; to load all of them now: "
            f"tidegate run {sync.name} --full-refresh"
        )
    return DestinationError(
        f"the source of {sync.target.relation} changed since the last load: {'; '.join(changes)}",
        f"{first}; then {then}",
    )


class SlotMoved(Exception):
    """The slot went on behind the target's snapshot: what waited then cannot be known any more."""


def send_waiting(
    context: Context,
    sync: Sync,
    source: PostgresSource,
    target: Connection,
    watermark: Watermark,
    kinds: Mapping[str, str],
) -> UncomparedRows:
    """Put the keys that waiting changes touch into the target's session.

    To be called when the source's snapshot has been taken. `kinds` are the types in which keys are
    compared.
    """
    assert watermark.value is not None
    with context.databases.connect_source(sync.source.connection) as session:
        changes = SlotLifecycle.of(context, sync, source, session)
        log = changes.log
        upto = flushed_position(session)
        with log.slot.held(lambda: None):
            state = log.slot.look()
            if (
                state is not None
                and state.confirmed is not None
                and lsn_value(state.confirmed) > lsn_value(watermark.value)
            ):
                raise SlotMoved
            changes.check(watermark)
            peek = SlotPeek(session, log.slot.name, log.publication.name, upto)
            with closing(iter(peek)) as messages:
                keys = changed_keys(messages, log.slot.name, source.table.relation, source.key)
                try:
                    with (
                        target.cursor() as cursor,
                        cursor.copy(sql.SQL("COPY {} (v) FROM STDIN").format(CHANGED)) as copy,
                    ):
                        for key in keys:
                            copy.write_row((list(key),))
                except TableTruncated:
                    raise BusyError(
                        f"sync {sync.name}: its source was emptied by TRUNCATE, and that is not "
                        "loaded yet: there is nothing to compare",
                        f"tidegate run {sync.name}; then verify again",
                    ) from None
    values = [
        from_text(sql.SQL("v[{}]").format(sql.Literal(place)), kinds[name])
        for place, name in enumerate(source.key, 1)
    ]
    sent = target.execute(
        sql.SQL("INSERT INTO {} SELECT DISTINCT ROW({})::text FROM {}").format(
            LEFT_OUT, sql.SQL(", ").join(values), CHANGED
        )
    )
    return UncomparedRows(sent.rowcount, 0)


def has_waiting_change(
    context: Context, sync: Sync, source: PostgresSource, key: Mapping[str, str | None]
) -> bool:
    """Whether a change of the row with this key, as the source prints it, waits in the slot."""
    wanted = tuple(key[name] for name in source.key)
    with context.databases.connect_source(sync.source.connection) as session:
        log = SlotLifecycle.of(context, sync, source, session).log
        upto = flushed_position(session)
        with log.slot.held(lambda: None):
            peek = SlotPeek(session, log.slot.name, log.publication.name, upto)
            with closing(iter(peek)) as messages:
                keys = changed_keys(messages, log.slot.name, source.table.relation, source.key)
                try:
                    return any(one == wanted for one in keys)
                except TableTruncated:
                    return True
