"""Which rows a watermark says are loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import SourceReplaced
from tidegate.core.watermark import Watermark
from tidegate.load.context import Context
from tidegate.load.declaration_changes import check_server
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.xmin import SourcePosition, column_words, loaded_position, pass_position
from tidegate.postgres.connection import Connection


def next_batch_start(
    source: PostgresSource, watermark: Watermark, now: SourcePosition
) -> tuple[Batch, SourcePosition]:
    """Where the next batch begins, and where the source stood when its pass did."""
    began = pass_position(watermark)
    start = rows_since(source, watermark, now)
    if began is None or watermark.position is None:
        return _at(start, now.xmin), now
    high, *key = watermark.position
    return _at(start, high, tuple(key)), began


def rows_since(
    source: PostgresSource, watermark: Watermark, now: SourcePosition | None = None
) -> Batch:
    """The rows that may have changed since all up to the watermark was loaded.

    Where it is known that no table is new, none is looked for, so that an index can serve.
    """
    before = loaded_position(watermark)
    if watermark.value is None or before is None:
        return Batch(BatchKind.WRITTEN, watermark.value)
    same = now is not None and set(now.tables) <= set(before.tables)
    return Batch(
        BatchKind.WRITTEN,
        watermark.value,
        reached=before.cursor if before.column == _column(source) else None,
        tables=None if same else before.tables,
    )


def pass_record(batch: Batch, began: SourcePosition, watermark: Watermark) -> dict[str, Any]:
    """What is remembered beside the watermark that a batch leaves behind."""
    if batch.kind is BatchKind.FULL or batch.closes_tie:
        return {"standing": began.to_json()}
    before = (watermark.declaration or {}).get("standing")
    known = {} if before is None or watermark.value is None else {"standing": before}
    return {**known, "pass": began.to_json()}


def check_standing(
    context: Context,
    connection: Connection,
    source: PostgresSource,
    watermark: Watermark,
    sync: Sync,
) -> list[str]:
    """Refuse a source that is not the one which rows were loaded from; returns what to know."""
    if source.written is not None:
        refuse_restored(watermark, source.standing(connection), sync)
        return []
    if source.cursor is None or sync.changes != "cursor":
        return []
    return check_server(context, connection, watermark, sync)


def refuse_restored(watermark: Watermark, now: SourcePosition, sync: Sync) -> None:
    """Refuse a source in which the transactions of then are not the transactions of now."""
    for before in (pass_position(watermark), loaded_position(watermark)):
        if before is None:
            continue
        why = before.difference(now)
        if why is None and int(now.xmax) < int(before.xmin):
            why = f"{before.xmin} was reached and its next one is {now.xmax}: it was restored"
        if why is not None:
            raise SourceReplaced(
                f"sync {sync.name}: {sync.source} is not as it was when rows were loaded up to "
                f"transaction {before.xmin}: {why}; rows could be passed over",
                f"to load everything again: tidegate run {sync.name} --full-refresh; after a "
                "failover that lost nothing, or if you know since when it differs: tidegate "
                f"watermark rewind {sync.name} TRANSACTION --reason …",
            )


def _at(start: Batch, high: str, after: tuple[str, ...] | None = None) -> Batch:
    return Batch(
        BatchKind.WRITTEN,
        start.low,
        high,
        key_low=after,
        reached=start.reached,
        tables=start.tables,
    )


def _column(source: PostgresSource) -> str | None:
    written = source.written
    return None if written is None or written.cursor is None else column_words(written.cursor)


_FEW_PAGES = 10_000
_MOST_AHEAD = 10_000


def loaded_batches(source: PostgresSource, watermark: Watermark, *, nulls: bool) -> list[Batch]:
    """What is in: all up to the watermark, the finished part of a tie, rows without a cursor."""
    batches: list[Batch] = []
    if watermark.value is not None:
        batches.append(_range(source, watermark, high=watermark.value))
    if watermark.position is not None:
        batches.append(_tie(source, watermark))
    if nulls:
        batches.append(Batch(BatchKind.NULLS))
    return batches


def compared_batches(source: PostgresSource, watermark: Watermark, *, nulls: bool) -> list[Batch]:
    """What is in, as it is read again to be compared; without a cursor that is all of it."""
    if source.is_whole:
        return [Batch(BatchKind.FULL)]
    return loaded_batches(source, watermark, nulls=nulls)


def waiting_batches(source: PostgresSource, watermark: Watermark, *, nulls: bool) -> list[Batch]:
    """What is not in yet; of a tie that is half done, the whole."""
    if source.is_whole:
        return []
    batches = [_range(source, watermark, watermark.value)]
    if source.null_policy is not None and not nulls:
        batches.append(Batch(BatchKind.NULLS))
    return batches


def reads_whole(source: PostgresSource, sync: Sync) -> bool:
    """Whether a run reads all of it each time, so that nothing says what changed since."""
    return source.is_whole and sync.changes != "cdc"


def loaded_condition(
    source: PostgresSource, watermark: Watermark, *, nulls: bool
) -> sql.Composable:
    """The WHERE clause of the rows that are in."""
    if source.is_whole:
        return sql.SQL("true" if watermark.version else "false")
    return _any(source, loaded_batches(source, watermark, nulls=nulls))


def pending_condition(
    source: PostgresSource, watermark: Watermark, *, nulls: bool, high: str | None = None
) -> sql.Composable:
    """The WHERE clause of the rows that are not in; `nulls` as for `loaded_condition`."""
    if source.is_whole:
        return sql.SQL("false" if watermark.version else "true")
    condition: sql.Composable = source.condition(_range(source, watermark, watermark.value, high))
    if watermark.position is not None:
        condition = sql.SQL("({} AND NOT ({}))").format(
            condition, source.condition(_tie(source, watermark))
        )
    if source.null_policy is not None and not nulls:
        condition = sql.SQL("({} OR {})").format(
            condition, source.condition(Batch(BatchKind.NULLS))
        )
    return condition


def rows_ahead(connection: Connection, source: PostgresSource) -> list[str]:
    """Which rows wait for the clock, in words; looked at only where that costs little."""
    cursor = source.cursor
    if cursor is None or cursor.type.is_number:
        return []
    small = source.table.has_blocks and source.table.pages <= _FEW_PAGES
    if not (source.reads_by_index or small):
        return []
    row = connection.execute(
        sql.SQL(
            "SELECT count(*) FILTER (WHERE isfinite(c)), count(*) FILTER (WHERE NOT isfinite(c)),"
            " max(c) FILTER (WHERE isfinite(c))::text"
            " FROM (SELECT {c} AS c FROM {} WHERE {c} > {} LIMIT {}) s"
        ).format(
            source.relation, cursor.soon, sql.Literal(_MOST_AHEAD), c=sql.Identifier(cursor.name)
        )
    ).fetchone()
    assert row is not None
    later, never, highest = row
    capped = "at least " if later + never == _MOST_AHEAD else ""
    notes: list[str] = []
    if later:
        notes.append(
            f"{capped}{_rows(later, source)} stamped in the future (up to {highest}) and loaded "
            "when that time comes"
        )
    if never:
        notes.append(
            f"{capped}{_rows(never, source)} stamped infinity and never loaded; correct "
            f'{cursor.name}, or use changes = "snapshot"'
        )
    return notes


def _rows(count: int, source: PostgresSource) -> str:
    what = source.table.relation
    return f"1 row of {what} is" if count == 1 else f"{count:,} rows of {what} are"


def _range(
    source: PostgresSource, watermark: Watermark, low: str | None = None, high: str | None = None
) -> Batch:
    return _bounded(source, watermark, Batch(BatchKind.RANGE, low, high))


def _tie(source: PostgresSource, watermark: Watermark) -> Batch:
    assert watermark.position is not None
    value, *key = watermark.position
    return _bounded(source, watermark, Batch(BatchKind.TIE, None, value, key_high=tuple(key)))


def _bounded(source: PostgresSource, watermark: Watermark, batch: Batch) -> Batch:
    """Rows that are found by their transactions are bounded as the loads were."""
    if source.written is None:
        return batch
    bounds = rows_since(source, watermark)
    return replace(batch, reached=bounds.reached, tables=bounds.tables)


def _any(source: PostgresSource, batches: list[Batch]) -> sql.Composable:
    if not batches:
        return sql.SQL("false")
    return sql.SQL("({})").format(
        sql.SQL(" OR ").join(sql.SQL("({})").format(source.condition(one)) for one in batches)
    )
