"""How far a sync has got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.model.batch import Batch, BatchKind
from tidegate.model.lake import LoadMark


@dataclass(frozen=True, slots=True)
class Watermark:
    """One row of etl_state; `position` is how far an unfinished tie or pass got: the value that it
    leads to, then a key."""

    pipeline: str
    table: str
    value: str | None = None
    cursor_type: str | None = None
    generation: int = 0
    version: int = 0
    rows_synced: int = 0
    position: tuple[str, ...] | None = None
    update_id: str | None = None
    updated_at: datetime | None = None
    declaration: Mapping[str, Any] | None = None
    """source, cursor and key of the sync that loaded up to here"""

    @property
    def is_refreshing(self) -> bool:
        """Whether a full refresh has begun here and nothing has moved since: rows of the time
        before it are still in the target, so nothing but the refresh itself may be loaded."""
        begun = (self.declaration or {}).get("refreshing")
        return begun is not None and begun == self.version

    def after(self, batch: Batch, rows: int, update_id: str) -> Watermark:
        """The watermark that publishing this batch leaves behind."""
        value, position = self.value, self.position
        if batch.kind in (
            BatchKind.RANGE,
            BatchKind.FULL,
            BatchKind.SNAPSHOTS,
            BatchKind.CHANGES,
        ):
            value, position = batch.high if batch.high is not None else value, None
        elif batch.kind in (BatchKind.TIE, BatchKind.WRITTEN):
            if batch.closes_tie:
                value, position = batch.high, None
            else:
                assert batch.high is not None
                assert batch.key_high is not None
                position = (batch.high, *batch.key_high)
        return replace(
            self,
            value=value,
            position=position,
            version=self.version + 1,
            rows_synced=self.rows_synced + rows,
            update_id=update_id,
        )

    def after_mark(self, load: LoadMark) -> Watermark:
        """The watermark that a load left behind, by what its snapshot says."""
        same = load.generation == self.generation
        return replace(
            self,
            value=load.value,
            position=load.position,
            generation=load.generation,
            version=(load.version or 0) + 1,
            rows_synced=load.rows + (self.rows_synced if same else 0),
            update_id=load.update_id,
        )
