"""What the engine asks of a source, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.config.sync import Rules
from tidegate.core.batch import Batch, LoadPlan
from tidegate.core.shape import Shape
from tidegate.core.watermark import CursorType, Watermark

if TYPE_CHECKING:
    from tidegate.load.engine import Transfer
    from tidegate.load.stage import Staged

Prepare = Callable[[Shape], None]
"""makes the target fit for rows of this shape; called before the first one moves"""


@dataclass(frozen=True, slots=True)
class PassOver:
    """Nothing to load on the way to `value`: only the watermark moves."""

    value: str | None
    cursor_type: CursorType | None = None
    declaration: Mapping[str, Any] | None = None
    """None keeps what is recorded"""
    reason: str = "nothing changed"


class Source(Protocol):
    """Where the rows of a sync come from."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of its columns, those that are not loaded too."""

    @property
    def cursor_type(self) -> CursorType | None: ...

    @property
    def loads_whole(self) -> bool:
        """Whether every run loads all of it, so that rows may be missing in the target."""

    def rules(self, batch: Batch) -> Rules: ...

    def update_id(self, batch: Batch, watermark: Watermark) -> str: ...

    def declaration(
        self, batch: Batch | None, watermark: Watermark, columns: Any
    ) -> dict[str, Any]:
        """What is recorded with the watermark, by a batch or by the beginning of a refresh."""

    def check(self, watermark: Watermark) -> None:
        """Refuse what cannot be loaded, before anything is written."""

    def scan(self, transfer: Transfer, watermark: Watermark) -> AbstractContextManager[Scan]:
        """One attempt's way through it, from a watermark that it can go on from."""


class Scan(Protocol):
    """One attempt's way through a source; it knows what comes next."""

    def next(
        self, watermark: Watermark, resumed: Batch | None
    ) -> AbstractContextManager[Batch | PassOver | None]:
        """The next batch, and all that it takes to read it, held until it is staged.

        `resumed` is what an earlier attempt was at and is still to be done, if that can be read.
        """

    def stored(self, batch: Batch) -> dict[str, Any]:
        """What is stored beside the plan of a batch: `final` when the job is done with it."""

    def stage(self, batch: Batch, prepare: Prepare) -> Staged:
        """Write the rows aside; only while `next` holds them."""

    def published(self, plan: LoadPlan) -> None:
        """A batch is in."""

    def passed(self, found: PassOver, watermark: Watermark) -> None:
        """The watermark has moved on from `watermark`; still inside `next`."""
