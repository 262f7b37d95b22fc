"""What `plan` says of a sync that finds rows by their transactions."""

from __future__ import annotations

from tidegate.model.batch import Batch
from tidegate.model.cursor import Guarantee
from tidegate.model.horizon import Horizon
from tidegate.model.standing import Standing, loaded_at
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.loaded import pending_condition
from tidegate.pipeline.passes import next_start, refuse_restored
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.reading import count_rows

_UNSEEN = "deleted rows and changed keys are not seen"
# Looking through more than this with every run deserves a second thought.
_MANY_ROWS = 10_000_000


def read_promise(
    connection: Connection, source: PostgresSource, watermark: Watermark, sync: Sync
) -> Horizon:
    """Which promise holds; refuses a source that is not as it was."""
    now = source.standing(connection)
    refuse_restored(watermark, now, sync)
    found = "rows are found by the transaction that wrote them"
    written = source.written
    if written is None or written.cursor is None:
        because = f"{found}, whoever stamps them and however late it ends; {_UNSEEN}"
        return Horizon(now.xmin, Guarantee.EXACT, because)
    before = loaded_at(watermark)
    reached = now.cursor if before is None else before.cursor or now.cursor
    because = (
        f"{found}, bounded by the lookback: one whose {written.cursor.name} lies more than "
        f"{sync.lookback} below the highest that was loaded ({reached or 'none yet'}) is not "
        f"looked at, whenever it was written; {_UNSEEN}"
    )
    return Horizon(now.xmin, Guarantee.BOUNDED, because)


def next_phase(
    connection: Connection, source: PostgresSource, watermark: Watermark
) -> tuple[Batch, int, bool] | None:
    """The next batch, and how many rows are to be loaded in all: counted, or else estimated."""
    now: Standing = source.standing(connection)
    start, _ = next_start(source, watermark, now)
    batch = source.written_batch(connection, start)
    if batch is None:
        return None
    if batch.is_last:
        return batch, batch.rows, True
    rows, exact = count_rows(connection, source, pending_condition(source, watermark, nulls=True))
    return batch, max(rows, batch.rows), exact


def snapshot_warnings(sync: Sync, source: PostgresSource, size: int) -> list[str]:
    """What a person should know before the first run."""
    found: list[str] = []
    relation = source.table.relation
    if source.written is None or source.written.cursor is None:
        if size > _MANY_ROWS:
            found.append(
                f"every run looks through all of about {size:,} rows of {relation}; a cursor with "
                "a lookback would lead by an index to those that can have changed"
            )
    elif not source.reads_by_index:
        found.append(
            f"no index of {relation} leads with {source.written.cursor.name}, so every run looks "
            "through the whole table"
        )
    if sync.transform is not None:
        found.append("the target's columns are checked when the transformation runs")
    return found
