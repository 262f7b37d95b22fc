"""What the harnesses of all destinations share: a table that is loaded attempt by attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar
from uuid import uuid4

from tidegate.destinations.destination import Destination
from tidegate.destinations.publication import Publication
from tidegate.ledger.fences import Fence
from tidegate.model.batch import Batch
from tidegate.model.cursor import CursorType
from tidegate.model.identity import new_attempt_id
from tidegate.model.load import Published, StagedWrite
from tidegate.model.rules import Duplicates, Rules
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark

PIPELINE = "shop.orders"
D = TypeVar("D", bound=Destination)


class DestinationHarness(Generic[D]):
    """One table, and the attempts that load it; how rows are staged and read is each one's own."""

    def __init__(self, destination: D, shape: Shape, rules: Rules | None) -> None:
        self.destination = destination
        self.shape = shape
        self.rules = rules or Rules()
        self.token = 0
        destination.ledger.ensure()
        destination.prepare(shape, self.watermark(), self.rules)

    @property
    def table(self) -> str:
        return str(self.destination.relation)

    def attempt(self) -> Fence:
        self.token += 1
        fence = Fence(self.table, self.destination.control_id, self.token, new_attempt_id())
        self.destination.raise_fence(fence)
        return fence

    def check(self, fence: Fence, writes: Sequence[StagedWrite], *, newest: bool = False) -> None:
        self.destination.check(self.shape, writes, fence, self._rules(newest))

    def publish(
        self,
        fence: Fence,
        writes: Sequence[StagedWrite],
        batch: Batch,
        *,
        update_id: str | None = None,
        watermark: Watermark | None = None,
        newest: bool = False,
    ) -> Published:
        return self.destination.publish(
            Publication(
                update_id=update_id or uuid4().hex,
                batch=batch,
                shape=self.shape,
                writes=tuple(writes),
                watermark=watermark or self.watermark(),
                cursor_type=CursorType.BIGINT,
                fence=fence,
                moved_by="test",
                remaining_seconds=lambda: 60.0,
                rules=self._rules(newest),
            )
        )

    def exists(self, update_id: str) -> bool:
        return self.destination.exists(update_id)

    def watermark(self) -> Watermark:
        return self.destination.watermark(PIPELINE)

    def discard(self, fence: Fence) -> int:
        return self.destination.discard(fence.attempt_id)

    def sweep(self, *live: Fence) -> int:
        return self.destination.sweep(lambda: {fence.attempt_id for fence in live})

    def _rules(self, newest: bool) -> Rules:
        duplicates = Duplicates.NEWEST if newest else self.rules.duplicates
        return replace(self.rules, duplicates=duplicates)
