"""What every destination can do; the load needs to know no more of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from tidegate.destinations.publication import Publication
from tidegate.ledger.fences import Fence, Fences
from tidegate.ledger.ledger import Ledger
from tidegate.model.load import Published, StagedWrite
from tidegate.model.relation import Relation
from tidegate.model.rules import Rules
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import Connection


class Destination(Protocol):
    """One table, and the ledger that says what is in it."""

    @property
    def relation(self) -> Relation: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def control_id(self) -> UUID: ...

    @property
    def fences(self) -> Fences: ...

    def open(self) -> AbstractContextManager[Connection]:
        """A session of the database that holds the ledger."""

    def identify(self) -> str:
        """What a job on this table locks, however many names lead to it."""

    def exists(self, update_id: str) -> bool:
        """Whether a load is in."""

    def watermark(self, pipeline: str) -> Watermark: ...

    def raise_fence(self, fence: Fence) -> None:
        """Make this attempt the only one that may publish."""

    def fenced_transaction(self, fence: Fence, doing: str) -> AbstractContextManager[Connection]:
        """A transaction beside the ledger that only this attempt can have, and whose end is known:
        CommitUnknown where it is not."""

    def heal(self, fence: Fence) -> None:
        """Record what an attempt before this one has published without saying so."""

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

    def discard(self, attempt_id: str, *, ended: bool = False) -> int:
        """Remove what an attempt staged; `ended` when all of its Spark work is known to be over.

        Of a job that failed, Spark's other tasks may still be writing.
        """

    def sweep(self, live_attempts: Callable[[], set[str]]) -> int:
        """Remove what this control plane's dead attempts staged."""
