"""A publication: everything that one publish needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.ledger.fences import Fence
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.cursor import CursorType
from tidegate.model.load import StagedWrite
from tidegate.model.rules import Rules
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Publication:
    """Rows that are staged and checked, and what shall be recorded with them."""

    update_id: str
    batch: Batch
    shape: Shape
    writes: tuple[StagedWrite, ...]
    watermark: Watermark | None
    """what the load moves; None where the rows have no place in a source"""
    cursor_type: CursorType | None
    fence: Fence
    moved_by: str
    remaining_seconds: Callable[[], float]
    rules: Rules
    declaration: Mapping[str, Any] | None = None

    @property
    def only_adds(self) -> bool:
        return self.rules.only_adds(full=self.batch.kind is BatchKind.FULL)

    @property
    def rows(self) -> int:
        return sum(write.rows for write in self.writes)
