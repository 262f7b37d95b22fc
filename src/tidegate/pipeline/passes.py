"""Passes over a source whose rows are found by their transactions: since when, from where on."""

from __future__ import annotations

from typing import Any

from tidegate.errors import SourceReplaced
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.standing import Standing, begun_at, loaded_at
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.changed import check_server
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.written import column_words


def next_start(
    source: PostgresSource, watermark: Watermark, now: Standing
) -> tuple[Batch, Standing]:
    """Where the next batch begins, and where the source stood when its pass did."""
    began = begun_at(watermark)
    start = since(source, watermark, now)
    if began is None or watermark.position is None:
        return _at(start, now.xmin), now
    high, *key = watermark.position
    return _at(start, high, tuple(key)), began


def since(source: PostgresSource, watermark: Watermark, now: Standing | None = None) -> Batch:
    """The rows that may have changed since all up to the watermark was loaded.

    Where it is known that no table is new, none is looked for, so that an index can serve.
    """
    before = loaded_at(watermark)
    if watermark.value is None or before is None:
        return Batch(BatchKind.WRITTEN, watermark.value)
    same = now is not None and set(now.tables) <= set(before.tables)
    return Batch(
        BatchKind.WRITTEN,
        watermark.value,
        reached=before.cursor if before.column == _column(source) else None,
        tables=None if same else before.tables,
    )


def record(batch: Batch, began: Standing, watermark: Watermark) -> dict[str, Any]:
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


def refuse_restored(watermark: Watermark, now: Standing, sync: Sync) -> None:
    """Refuse a source in which the transactions of then are not the transactions of now."""
    for before in (begun_at(watermark), loaded_at(watermark)):
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
