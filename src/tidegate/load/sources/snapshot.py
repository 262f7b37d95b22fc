"""Changes = "snapshot"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan
from tidegate.core.watermark import Guarantee, Horizon, Watermark
from tidegate.load.declaration_changes import declaration, refuse_changed_declaration
from tidegate.load.engine import Transfer
from tidegate.load.source import PassOver, Prepare
from tidegate.load.sources.database import DatabaseSource, check_first_key
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import check_open, count_rows
from tidegate.load.sources.watermark_conditions import (
    check_standing,
    next_batch_start,
    pass_record,
    pending_condition,
    refuse_restored,
)
from tidegate.load.sources.xmin import FAR, SourcePosition, loaded_position
from tidegate.load.stage import Staged
from tidegate.postgres.connection import Connection, Snapshot


@dataclass(slots=True)
class SnapshotSource(DatabaseSource):
    """Rows are found by the transaction that wrote them."""

    began: SourcePosition | None = field(default=None, init=False)
    """where the source stood when the pass of the last batch began"""

    def declaration(
        self, batch: Batch | None, watermark: Watermark, columns: Any
    ) -> dict[str, Any]:
        found = declaration(self.sync, self.source, columns)
        if batch is None:
            return found
        assert self.began is not None
        return {**found, **pass_record(batch, self.began, watermark)}

    def check(self, watermark: Watermark) -> None:
        check_first_key(self.sync, self.source, self.connection, watermark)

    @contextmanager
    def scan(self, transfer: Transfer, watermark: Watermark) -> Iterator[SnapshotScan]:
        refuse_changed_declaration(watermark, self.source, self.sync)
        check_standing(self.context, self.connection, self.source, watermark, self.sync)
        yield SnapshotScan(self, transfer, self.known_fingerprints(transfer))
        self.follow_columns(transfer)
        self.release_slots(transfer)


@dataclass(slots=True)
class SnapshotScan:
    """Finishes the pass that was begun, then makes one of what has been written since."""

    origin: SnapshotSource
    transfer: Transfer
    known_fingerprints: dict[str, Any]
    _passes: int | None = None
    """how many are left; known once what comes before them is loaded"""
    _resumed: Batch | None = None
    _snapshot: Snapshot | None = None
    _seen_again: str | None = None
    """what the next pass will find again of the rows that are staged"""

    @contextmanager
    def next(
        self, watermark: Watermark, resumed: Batch | None
    ) -> Iterator[Batch | PassOver | None]:
        origin, connection, source = self.origin, self.origin.connection, self.origin.source
        self._resumed, self._seen_again = resumed, None
        while self._passes != 0:
            check_open(connection, source)
            with origin.context.reading(connection, source) as snapshot:
                found = self._plan(watermark, resumed)
                if found is not None:
                    self._snapshot = snapshot
                    yield found
                    if isinstance(found, Batch) and found.is_last and found.key_low is None:
                        # Of a pass in pieces, what was written behind its back is not loaded yet.
                        assert origin.began is not None
                        self._seen_again = self._fingerprint(origin.began)
                    return
            self._end_pass()
        yield None

    def stored(self, batch: Batch) -> dict[str, Any]:
        assert self.origin.began is not None
        return {"final": batch.is_last, "standing": self.origin.began.to_json()}

    def stage(self, batch: Batch, prepare: Prepare) -> Staged:
        assert self._snapshot is not None
        return self.origin.stage(self._snapshot, batch, self.transfer, prepare)

    def published(self, plan: LoadPlan) -> None:
        self._remember(self._seen_again, plan.version + 1, plan.update_id)
        if plan.batch.kind is BatchKind.WRITTEN and plan.batch.is_last and self._resumed is None:
            self._end_pass()

    def passed(self, _: PassOver, watermark: Watermark) -> None:
        assert self.origin.began is not None
        seen_again = self._fingerprint(self.origin.began)
        self._remember(seen_again, watermark.version + 1, watermark.update_id)
        self._end_pass()

    # --- what comes next

    def _plan(self, watermark: Watermark, resumed: Batch | None) -> Batch | PassOver | None:
        origin, transfer = self.origin, self.transfer
        now = origin.source.standing(origin.connection)
        stored = transfer.attempt.stored_plan
        if resumed is not None and stored is not None:
            origin.began = SourcePosition.from_json(stored["standing"])
            return resumed
        loaded = (load.batch.kind for load in transfer.outcome.loads)
        if transfer.refreshes and BatchKind.FULL not in loaded:
            # Everything, once, in one snapshot.
            origin.began = now
            whole = Batch(BatchKind.FULL, None, now.xmin, is_last=True)
            return replace(whole, rows=origin.source.count(origin.connection, whole))
        if self._passes is None:
            self._passes = 1 if watermark.position is None else 2
        return self._next_batch(watermark, now)

    def _next_batch(self, watermark: Watermark, now: SourcePosition) -> Batch | PassOver | None:
        origin = self.origin
        start, origin.began = next_batch_start(origin.source, watermark, now)
        batch = origin.source.written_batch(origin.connection, start)
        if batch is not None and not self._is_loaded(batch, watermark):
            return batch
        far = watermark.value is not None and int(now.xmax) - int(watermark.value) > FAR
        if not far and (batch is None or watermark.value == now.xmin):
            return None
        # Otherwise the same rows are looked at again, or ids come round before anything changes.
        origin.began = now
        columns = (watermark.declaration or {}).get("columns")
        declared = declaration(origin.sync, origin.source, columns)
        return PassOver(now.xmin, origin.cursor_type, {**declared, "standing": now.to_json()})

    def _end_pass(self) -> None:
        assert self._passes is not None
        self._passes -= 1

    def _is_loaded(self, batch: Batch, watermark: Watermark) -> bool:
        """Whether the last load took these very rows, though a transaction was open then that
        may have written others."""
        known = self.known_fingerprints.get(BatchKind.WRITTEN.value, {})
        loaded = (watermark.version, watermark.update_id)
        if not batch.closes_tie or (known.get("version"), known.get("update_id")) != loaded:
            return False
        self.transfer.outcome.fingerprints[BatchKind.WRITTEN.value] = known
        now = self.origin.source.fingerprint(self.origin.connection, batch)
        return bool(known["fingerprint"] == now)

    def _fingerprint(self, now: SourcePosition) -> str | None:
        if now.is_quiet:
            return None
        again = Batch(BatchKind.WRITTEN, now.xmin, reached=now.cursor)
        return self.origin.source.fingerprint(self.origin.connection, again)

    def _remember(self, fingerprint: str | None, version: int, update_id: str | None) -> None:
        """Keep what of the loaded rows the next pass will find again."""
        if fingerprint is not None:
            self.transfer.outcome.fingerprints[BatchKind.WRITTEN.value] = {
                "fingerprint": fingerprint,
                "version": version,
                "update_id": update_id,
            }


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
    before = loaded_position(watermark)
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
    now: SourcePosition = source.standing(connection)
    start, _ = next_batch_start(source, watermark, now)
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
