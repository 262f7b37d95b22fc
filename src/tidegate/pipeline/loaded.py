"""Which rows of a source a watermark says are loaded, and which are not yet."""

from __future__ import annotations

from dataclasses import replace

from psycopg import sql

from tidegate.model.batch import Batch, BatchKind
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.passes import since
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

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
    bounds = since(source, watermark)
    return replace(batch, reached=bounds.reached, tables=bounds.tables)


def _any(source: PostgresSource, batches: list[Batch]) -> sql.Composable:
    if not batches:
        return sql.SQL("false")
    return sql.SQL("({})").format(
        sql.SQL(" OR ").join(sql.SQL("({})").format(source.condition(one)) for one in batches)
    )
