"""A backfill: a range of a sync's cursor, loaded again in chunks that keep their identity."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tidegate.model.batch import Batch, BatchKind


@dataclass(frozen=True, slots=True)
class BackfillRange:
    """[low, high) as the source prints it, and how it is cut: `bounds` begin with low."""

    low: str
    high: str
    chunk: str
    bounds: tuple[str, ...]

    @property
    def chunks(self) -> list[Batch]:
        ends = (*self.bounds[1:], self.high)
        return [
            Batch(BatchKind.BACKFILL, low, high)
            for low, high in zip(self.bounds, ends, strict=True)
        ]

    def update_id(
        self, batch: Batch, *, pipeline: str, source: str, target: str, generation: int, turn: int
    ) -> str:
        """The identity of one chunk: the same command gives the same, until it has come to its end.

        A backfill that has, is a new turn when it is given again.
        """
        content = json.dumps(
            [source, target, self.low, self.high, self.chunk, batch.identity],
            ensure_ascii=False,
            separators=(",", ":"),
        )
        digest = hashlib.sha256(content.encode()).hexdigest()[:40]
        return f"{pipeline}-backfill-g{generation}-t{turn}-{digest}"


@dataclass(slots=True)
class BackfillReport:
    """What a backfill did."""

    sync: str
    low: str
    high: str
    chunk: str
    chunks: int
    loaded: int = 0
    already: int = 0
    """chunks that an earlier one, which did not come to its end, had loaded"""
    empty: int = 0
    rows: int = 0
    changed: int = 0
    rejected: int = 0
    job: str | None = None
