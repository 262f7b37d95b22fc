"""The Target protocol and what a publish needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from tidegate.config.sync import Rules
from tidegate.core.batch import Batch, BatchKind, Published, StagedWrite
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.core.watermark import CursorType, Watermark
from tidegate.ledger.fences import Fence, FencedTable
from tidegate.load.modes import MODES, Request
from tidegate.postgres.connection import Connection


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
        """Whether the rows go beside what is there, whatever that is; twice would be twice."""
        return MODES[self.rules.mode].only_adds and self.batch.kind is not BatchKind.FULL

    @property
    def rows(self) -> int:
        return sum(write.rows for write in self.writes)


class Target(FencedTable, Protocol):
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


def refuse_deletes(relation: Relation, shape: Shape, rules: Rules, *, full: bool = False) -> None:
    """Refuse deletes where they have no meaning."""
    if shape.deleted is None:
        return
    carried, mode = f"the rows for {relation} carry deletes", MODES[rules.mode]
    if full and not mode.only_adds:
        raise DeclarationError(
            f"{carried}, and a full batch removes whatever it does not hold",
            'load the changes in mode = "merge" or "delete_insert", or the whole without deletes',
        )
    refused = mode.refused(Request.DELETES, carried=carried)
    if refused is not None:
        raise DeclarationError(*refused)
    if not shape.key:
        raise DeclarationError(
            f"{carried}, and without a key nobody can tell which rows are gone",
            "declare a key with key = …",
        )
    if shape.deleted in shape.names:
        raise DeclarationError(
            f"{carried} in a column called {shape.deleted}, and so is a column of the target",
            "rename that column at the source, or leave it out with exclude_columns",
        )


def refuse_outside(relation: Relation, rows: int, rules: Rules) -> None:
    """Rows outside the part that is replaced would be there twice after the next time."""
    if rows:
        part = ", ".join(f"{name} = {value}" for name, value in rules.within)
        raise DeclarationError(
            f"{rows} rows for {relation} are not of the part that they replace ({part})",
            "return only rows with the values of the parameters in the columns of their names",
        )
