"""A table of any destination under test, which is loaded attempt by attempt, without Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from integration.conftest import Database
from tidegate.config.sync import Duplicates, Mode, Rules
from tidegate.core.batch import Batch, BatchKind, Published, StagedWrite
from tidegate.core.identity import new_attempt_id
from tidegate.core.shape import Shape, StagedColumn
from tidegate.core.watermark import CursorType, Watermark
from tidegate.ledger.fences import Fence
from tidegate.load.target import Publication, Target

PIPELINE = "shop.orders"
COLUMNS = "id integer, name text, c bigint"
Row = tuple[Any, ...]
D = TypeVar("D", bound=Target)


class DestinationHarness(ABC, Generic[D]):
    """One table, and the attempts that load it; how rows are staged and read is each one's own."""

    def __init__(self, destination: D, shape: Shape, rules: Rules | None, ledger: Database) -> None:
        self.destination = destination
        self.shape = shape
        self.rules = rules or Rules()
        self.token = 0
        self._ledger = ledger
        destination.ledger.ensure()
        destination.prepare(shape, self.watermark(), self.rules)

    @abstractmethod
    def stage(self, fence: Fence, *parts: Sequence[Row]) -> tuple[StagedWrite, ...]:
        """Write rows aside, one writer call for each part.

        Made with deletes, each row ends with a flag: whether the row with its key is gone.
        """

    @abstractmethod
    def lose_staging(self) -> None:
        """Empty what was staged, as crash recovery does."""

    @abstractmethod
    def refuse_writes(self) -> None:
        """Make the target fail when rows are put into it."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """The target's rows in order."""

    @abstractmethod
    def staged_tables(self) -> int: ...

    @property
    def table(self) -> str:
        return str(self.destination.relation)

    def attempt(self) -> Fence:
        """A new attempt that has raised its fence."""
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
        """Publish into the target, from the watermark that stands unless another is given."""
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

    def markers(self) -> list[str]:
        """The update_ids of the target's markers in order."""
        rows = self._ledger.execute(
            f"SELECT update_id FROM {self.destination.ledger.schema}.table_updates"
            f" WHERE target_table = '{self.table}' ORDER BY inserted, update_id"
        )
        return [row[0] for row in rows]

    def watermark(self) -> Watermark:
        return self.destination.watermark(PIPELINE)

    def discard(self, fence: Fence) -> int:
        return self.destination.discard(fence.attempt_id)

    def sweep(self, *live: Fence) -> int:
        return self.destination.sweep(lambda: {fence.attempt_id for fence in live})

    def _rules(self, newest: bool) -> Rules:
        duplicates = Duplicates.NEWEST if newest else self.rules.duplicates
        return replace(self.rules, duplicates=duplicates)


class MakeHarness(Protocol):
    def __call__(
        self,
        columns: str = COLUMNS,
        key: str = "id",
        cursor: str | None = "c",
        *,
        unique: bool = True,
        deletes: bool = False,
    ) -> DestinationHarness[Any]: ...


def make_shape(
    columns: str = COLUMNS,
    key: str = "id",
    cursor: str | None = "c",
    *,
    unique: bool = True,
    deletes: bool = False,
) -> Shape:
    pairs = [part.split(maxsplit=1) for part in columns.split(", ")]
    staged = tuple(StagedColumn(name, kind, kind) for name, kind in pairs)
    deleted = "is gone" if deletes else None
    return Shape(staged, tuple(key.split(", ")) if key else (), cursor, unique, deleted)


def maker_of(
    make: Callable[[Shape, Rules], DestinationHarness[Any]], mode: Mode, *, keyless: bool
) -> MakeHarness:
    """A maker of tables that are loaded in one mode."""

    def made(columns: str = COLUMNS, key: str = "id", *cursor: Any, **options: Any) -> Any:
        if keyless:
            key, options["unique"] = "", False
        return make(make_shape(columns, key, *cursor, **options), Rules(mode=mode))

    return made


def load(
    harness: DestinationHarness[Any],
    *rows: Row,
    high: int = 10,
    kind: BatchKind = BatchKind.RANGE,
    newest: bool = False,
    update_id: str | None = None,
) -> Published:
    """A whole load: stage, check, publish, discard."""
    fence = harness.attempt()
    writes = harness.stage(fence, rows)
    harness.check(fence, writes, newest=newest)
    batch = Batch(kind, None, str(high), rows=len(rows))
    published = harness.publish(fence, writes, batch, update_id=update_id, newest=newest)
    harness.discard(fence)
    return published
