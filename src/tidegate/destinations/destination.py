"""What every destination can do; the load needs to know no more of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from tidegate.destinations.publication import Publication
from tidegate.ledger.fences import Fence, FencedTable
from tidegate.model.load import Published, StagedWrite
from tidegate.model.rules import Rules
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import Connection


class Destination(FencedTable, Protocol):
    """One table, and the ledger that says what is in it."""

    @property
    def control_id(self) -> UUID: ...

    def watermark(self, pipeline: str) -> Watermark: ...

    def fenced_transaction(self, fence: Fence, doing: str) -> AbstractContextManager[Connection]:
        """A transaction beside the ledger that only this attempt can have, and whose end is known:
        CommitUnknown where it is not."""

    def check_present(self, watermark: Watermark) -> None:
        """Refuse to go on from a watermark whose rows are not there any more."""

    def holds_rows(self) -> bool:
        """Whether the target is there and has any row."""

    def prepare(
        self,
        shape: Shape,
        watermark: Watermark | None,
        rules: Rules,
        *,
        fence: Fence | None = None,
        source_names: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Make, evolve or check the target, before anything is staged; returns what to know."""

    def check(
        self, shape: Shape, writes: Sequence[StagedWrite], fence: Fence, rules: Rules
    ) -> None:
        """Verify what was staged."""

    def publish(self, publication: Publication) -> Published:
        """Rows, marker and watermark, all or nothing, once."""
