"""Changes = "cursor": batch after batch from the watermark up to the horizon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tidegate.core.batch import Batch, BatchKind, LoadPlan
from tidegate.core.watermark import Horizon, NullPolicy, Watermark
from tidegate.load.declaration_changes import (
    declaration,
    horizon_remarks,
    is_same_server,
    refuse_changed_declaration,
)
from tidegate.load.engine import Transfer
from tidegate.load.inspection import AttemptMemory
from tidegate.load.source import PassOver, Prepare
from tidegate.load.sources.database import DatabaseSource, check_first_key
from tidegate.load.sources.horizon import read_horizon
from tidegate.load.sources.reading import check_open
from tidegate.load.sources.watermark_conditions import check_standing, rows_ahead
from tidegate.load.stage import Staged
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connection import Snapshot
from tidegate.postgres.server_identity import Server

PlanBatch = Callable[[Watermark, Horizon], Batch | None]


@dataclass(slots=True)
class CursorSource(DatabaseSource):
    """Rows in the order of their cursor; all of them each time where there is none."""

    server: Server | None = field(default=None, init=False)
    """as it was when the last batch was planned"""
    _is_known: bool = field(default=True, init=False)

    def declaration(self, _: Batch | None, __: Watermark, columns: Any) -> dict[str, Any]:
        found = declaration(self.sync, self.source, columns)
        if self.source.cursor is None:
            return found
        return {**found, "server": (self.server or read_server(self.connection)).to_json()}

    def check(self, watermark: Watermark) -> None:
        check_first_key(self.sync, self.source, self.connection, watermark)
        if self.source.null_policy is NullPolicy.RAISE:
            self.source.null_batch(self.connection)
        self._is_known = is_same_server(watermark, read_server(self.connection))

    @contextmanager
    def scan(self, transfer: Transfer, watermark: Watermark) -> Iterator[CursorScan]:
        source, connection, outcome = self.source, self.connection, transfer.outcome
        refuse_changed_declaration(watermark, source, self.sync)
        outcome.remarks += check_standing(self.context, connection, source, watermark, self.sync)
        memory = AttemptMemory(self.context.plane, transfer.attempt.ask, self.sync.pipeline)
        if not self._is_known:
            # What was seen of another's values says nothing of those that this one will give out.
            memory.forget()
        yield CursorScan(self, transfer, memory, self.known_fingerprints(transfer), watermark)
        check_open(connection, source)
        outcome.remarks += horizon_remarks(
            connection, source.cursor, outcome.watermark, outcome.horizon
        )
        outcome.remarks += rows_ahead(connection, source)
        self.follow_columns(transfer)
        self.release_slots(transfer)


@dataclass(slots=True)
class CursorScan:
    """Late rows first, then new ones, then those without a cursor."""

    origin: CursorSource
    transfer: Transfer
    memory: AttemptMemory
    known_fingerprints: dict[str, Any]
    start: Watermark
    _phases: list[PlanBatch] = field(init=False)
    _resumed: Batch | None = None
    _snapshot: Snapshot | None = None
    _skips_lookback: bool = False

    def __post_init__(self) -> None:
        source, refreshes = self.origin.source, self.transfer.refreshes
        if source.cursor is None:
            self._phases = [self._whole_batch]
            return
        self._phases = [self._next_batch]
        if refreshes:
            self._phases.insert(0, self._refresh_batch)
        elif self.start.value is not None and source.lookback is not None:
            self._phases.insert(0, self._lookback_batch)
        if not refreshes and source.null_policy is NullPolicy.INCLUDE:
            self._phases.append(self._null_batch)

    @contextmanager
    def next(
        self, watermark: Watermark, resumed: Batch | None
    ) -> Iterator[Batch | PassOver | None]:
        if not self._phases:
            yield None
            return
        origin, connection, outcome = self.origin, self.origin.connection, self.transfer.outcome
        check_open(connection, origin.source)
        if outcome.horizon is None:
            # Fixed for the whole run, which would never end where writers are quicker than it.
            outcome.horizon = read_horizon(connection, origin.source.cursor, self.memory)
        with origin.context.reading(connection, origin.source) as snapshot:
            batch, self._resumed = resumed, resumed
            if resumed is not None:
                # What an earlier snapshot showed of these rows may not be what is read now.
                outcome.fingerprints.pop(resumed.kind.value, None)
            while batch is None and self._phases:
                batch = self._phases[0](watermark, outcome.horizon)
                if batch is None:
                    del self._phases[0]
            if batch is not None:
                self._snapshot, origin.server = snapshot, read_server(connection)
            yield batch

    def stored(self, batch: Batch) -> dict[str, Any]:
        source = self.origin.source
        if batch.kind is BatchKind.RANGE:
            is_final = batch.is_last and source.null_policy is not NullPolicy.INCLUDE
        else:
            is_final = batch.kind is BatchKind.NULLS or source.cursor is None
        return {"final": is_final}

    def stage(self, batch: Batch, prepare: Prepare) -> Staged:
        assert self._snapshot is not None
        return self.origin.stage(self._snapshot, batch, self.transfer, prepare)

    def published(self, plan: LoadPlan) -> None:
        batch = plan.batch
        if batch.kind is not BatchKind.LOOKBACK or batch.high == self.start.value:
            # Of a lookback in pieces only the last one makes the whole of it known.
            known = self.transfer.outcome.fingerprints.get(batch.kind.value)
            if known is not None:
                known.update(version=plan.version + 1, update_id=plan.update_id)
        if batch.is_last and self._resumed is None:
            del self._phases[0]

    def passed(self, found: PassOver, watermark: Watermark) -> None:
        """A cursor never passes anything over."""

    # --- what comes next, by phase

    def _refresh_batch(self, _: Watermark, horizon: Horizon) -> Batch | None:
        if self._is_loaded(BatchKind.FULL):
            return None
        return self.origin.source.full_batch(self.origin.connection, horizon)

    def _next_batch(self, watermark: Watermark, horizon: Horizon) -> Batch | None:
        return self.origin.source.next_batch(self.origin.connection, watermark, horizon)

    def _lookback_batch(self, watermark: Watermark, _: Horizon) -> Batch | None:
        """(W - lookback, W] in bounded pieces; skipped when it is as it was when last loaded."""
        start = self.start.value
        assert start is not None
        loaded = [load.batch for load in self.transfer.outcome.loads]
        pieces = [batch.high for batch in loaded if batch.kind is BatchKind.LOOKBACK]
        reached = pieces[-1] if pieces else None
        if self._skips_lookback or reached == start:
            return None
        found = self.origin.source.lookback_batch(self.origin.connection, start, reached)
        if found is not None and reached is None:
            whole = Batch(BatchKind.LOOKBACK, found.low, start)
            self._skips_lookback = self._is_unchanged(whole, watermark)
        return None if self._skips_lookback else found

    def _whole_batch(self, watermark: Watermark, horizon: Horizon) -> Batch | None:
        """The whole source, unless it is as it was when it was last loaded."""
        if self._is_loaded(BatchKind.FULL):
            return None
        found = self.origin.source.full_batch(self.origin.connection, horizon)
        unchanged = self._is_unchanged(found, watermark)
        if not unchanged or self.transfer.refreshes:
            return found
        # Somebody may have emptied or dropped the target meanwhile.
        return None if found.rows == 0 or self.transfer.target.holds_rows() else found

    def _null_batch(self, watermark: Watermark, _: Horizon) -> Batch | None:
        if self._is_loaded(BatchKind.NULLS):
            return None
        found = self.origin.source.null_batch(self.origin.connection)
        if found is None or self._is_unchanged(found, watermark):
            return None
        return found

    def _is_loaded(self, kind: BatchKind) -> bool:
        """Whether this attempt has loaded a phase of a single batch, perhaps by a stored plan."""
        return any(load.batch.kind is kind for load in self.transfer.outcome.loads)

    def _is_unchanged(self, batch: Batch, watermark: Watermark) -> bool:
        """Whether these rows were loaded just so by the last load of this sync."""
        kind = batch.kind.value
        found = {
            "fingerprint": self.origin.source.fingerprint(self.origin.connection, batch),
            "version": watermark.version,
            "update_id": watermark.update_id,
        }
        self.transfer.outcome.fingerprints[kind] = found
        return bool(self.known_fingerprints.get(kind, {}) == found)
