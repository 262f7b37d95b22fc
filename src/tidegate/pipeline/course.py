"""The course of one attempt at a sync: where it stands, what it plans, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tidegate.destinations.destination import Destination
from tidegate.errors import LoadError, StagingLost, WatermarkMoved
from tidegate.ledger.fences import Fence
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import Batch
from tidegate.model.cursor import CursorType
from tidegate.model.horizon import Horizon
from tidegate.model.identity import load_update_id
from tidegate.model.load import LoadPlan, LoadResult
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import Connection

Answer = TypeVar("Answer")

FINISHES_REFRESH = "this finishes the full refresh that was begun and did not come to its end"
_REPLANS = 5


class Attempt(Protocol):
    """The hold that an attempt has on its job, as far as the work needs it."""

    @property
    def fence(self) -> Fence: ...

    @property
    def actor(self) -> str: ...

    @property
    def stored_plan(self) -> dict[str, Any] | None: ...

    def store_plan(self, plan: dict[str, Any] | None) -> None: ...

    def report(self, progress: dict[str, Any]) -> None: ...

    def ask(self, question: Callable[[Connection], Answer]) -> Answer: ...

    def remaining_seconds(self) -> float: ...

    def check_alive(self) -> None: ...


@dataclass(slots=True)
class SyncOutcome:
    """What an attempt did."""

    loads: list[LoadResult] = field(default_factory=list)
    watermark: Watermark | None = None
    horizon: Horizon | None = None
    fingerprints: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """what there is to say where no load could say it"""

    @property
    def rows(self) -> int:
        return sum(load.rows for load in self.loads)

    @property
    def changed(self) -> int:
        return sum(load.changed for load in self.loads)

    @property
    def rejected(self) -> int:
        return sum(load.rejected for load in self.loads)

    @property
    def notes(self) -> list[str]:
        """What to know of the source, and what the loads had to say of the target, each once."""
        found = (note for load in self.loads for note in load.notes)
        return list(dict.fromkeys((*self.remarks, *found)))


@dataclass(frozen=True, slots=True)
class Course:
    """What the work of an attempt does whatever its source is."""

    sync: Sync
    destination: Destination
    attempt: Attempt
    outcome: SyncOutcome
    max_batches: int | None = None

    def watermark(self) -> Watermark:
        return self.destination.watermark(self.sync.pipeline)

    @property
    def limit_reached(self) -> bool:
        return self.max_batches is not None and len(self.outcome.loads) >= self.max_batches

    def follow(self, load_next: Callable[[], bool]) -> None:
        """Load until there is nothing more.

        What was planned on a watermark that has moved since, or was lost from staging when the
        snapshot it came from had ended, is planned again.
        """
        replans = 0
        while not self.limit_reached:
            try:
                if not load_next():
                    break
            except (WatermarkMoved, StagingLost):
                replans += 1
                if replans > _REPLANS:
                    raise

    def begin_refresh(
        self, declare: Callable[[Any], Mapping[str, Any]], cursor_type: CursorType | None
    ) -> Watermark:
        """A full refresh starts by forgetting how far the sync had got, under a new generation."""
        watermarks, table = Watermarks(self.destination.ledger), str(self.destination.relation)
        doing = f"beginning the full refresh of {self.sync.name}"
        with self.destination.fenced_transaction(self.attempt.fence, doing) as connection:
            watermarks.lock(connection, self.sync.pipeline, table)
            current = self.watermark()
            columns = (current.declaration or {}).get("columns")
            return watermarks.reset(
                connection,
                current,
                None,
                cursor_type=cursor_type,
                new_generation=True,
                moved_by=self.attempt.actor,
                reason="full refresh",
                declaration={**declare(columns), "refreshing": current.version + 1},
            )

    def pass_over(
        self,
        watermark: Watermark,
        value: str | None,
        cursor_type: CursorType | None = None,
        declaration: Mapping[str, Any] | None = None,
        reason: str = "nothing changed",
    ) -> None:
        """Move to where the source stands, when nothing has changed on the way there."""
        fence = self.attempt.fence
        doing = f"moving the watermark of {self.sync.name}"
        with self.destination.fenced_transaction(fence, doing) as connection:
            Watermarks(self.destination.ledger).move(
                connection,
                watermark,
                replace(watermark, value=value, version=watermark.version + 1),
                cursor_type=cursor_type,
                fence=fence.token,
                attempt_id=fence.attempt_id,
                moved_by=self.attempt.actor,
                reason=reason,
                declaration=declaration,
                is_load=False,
            )

    def plan(self, source: str, batch: Batch, watermark: Watermark) -> LoadPlan:
        update_id = load_update_id(
            pipeline=self.sync.pipeline,
            source=source,
            target=str(self.destination.relation),
            generation=watermark.generation,
            version=watermark.version,
            batch=batch,
        )
        return LoadPlan(update_id, batch, watermark.generation, watermark.version)

    def take_stored(
        self, plan_again: Callable[[Batch, Watermark], LoadPlan]
    ) -> Callable[[Watermark], Batch | None]:
        """The batch an earlier attempt at this job was at, once, if it is still to be done."""
        stored = self.attempt.stored_plan
        plan = None if stored is None else LoadPlan.from_json(stored)

        def batch(watermark: Watermark) -> Batch | None:
            nonlocal plan
            found, plan = plan, None
            if found is None or self.destination.exists(found.update_id):
                return None
            # Another version, generation or declaration: what was planned then is not to be done.
            return found.batch if plan_again(found.batch, watermark) == found else None

        return batch

    def check_moved(self, plan: LoadPlan) -> None:
        """A marker without its watermark would be met again and again."""
        if self.watermark().version <= plan.version:
            target = f"{self.sync.target.connection}:{self.destination.relation}"
            raise LoadError(
                f"{target} has a marker for {plan.update_id}, but no watermark says that it is "
                "loaded: one of them was removed by hand",
                f"if its rows are not there: tidegate marker forget {target} {plan.update_id}",
            )

    def report(self, step: str, rows: int) -> None:
        before = self.outcome
        self.attempt.report(
            {"step": step, "rows": rows, "loads": len(before.loads), "loaded": before.rows}
        )
