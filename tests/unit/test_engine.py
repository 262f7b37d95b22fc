"""The loop of the engine, over a source and a target that live in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import pytest

from tidegate.config.sync import Mode, Rules, Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, Published, StagedWrite
from tidegate.core.errors import LoadError, StagingLost, WatermarkMoved
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.shape import Shape, StagedColumn
from tidegate.core.watermark import Watermark
from tidegate.ledger.fences import Fence
from tidegate.load import engine
from tidegate.load.engine import FINISHES_REFRESH, Transfer, run
from tidegate.load.source import PassOver, Prepare
from tidegate.load.stage import Staged
from tidegate.load.target import Publication

SHAPE = Shape((StagedColumn("id", "bigint", "bigint"),), ("id",), None, key_is_unique=True)


@dataclass
class MemoryTarget:
    """What is in: markers and one watermark."""

    place: Watermark = field(default_factory=lambda: Watermark("shop.orders", "public.orders"))
    markers: set[str] = field(default_factory=set)
    failures: list[Exception] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    relation: str = "public.orders"

    def watermark(self, _: str) -> Watermark:
        return self.place

    def exists(self, update_id: str) -> bool:
        return update_id in self.markers

    def check_present(self, _: Watermark) -> None:
        self.happened.append("present")

    def prepare(self, *_: Any, **__: Any) -> tuple[str, ...]:
        self.happened.append("prepare")
        return ()

    def check(self, *_: Any) -> None:
        self.happened.append("check")

    def publish(self, load: Publication) -> Published:
        self.happened.append("publish")
        if load.update_id in self.markers:
            return Published(0, 0, already=True)
        if self.failures:
            raise self.failures.pop(0)
        assert load.watermark == self.place
        self.place = self.place.after(load.batch, load.rows, load.update_id)
        self.markers.add(load.update_id)
        return Published(load.rows, load.rows)

    def discard(self, *_: Any, **__: Any) -> None:
        self.happened.append("discard")


@dataclass
class MemoryAttempt:
    """An attempt at a job, outside of any queue."""

    stored_plan: dict[str, Any] | None = None
    actor: str = "a test"
    fence: Fence = field(default_factory=lambda: Fence("public.orders", uuid4(), 1, "a" * 32))

    def store_plan(self, plan: dict[str, Any] | None) -> None:
        self.stored_plan = plan

    def report(self, _: dict[str, Any]) -> None:
        """Nobody watches."""

    def record(self, _: str, __: dict[str, Any]) -> None:
        """Nobody asks later."""

    def remaining_seconds(self) -> float:
        return 60.0

    def check_alive(self) -> None:
        """It is."""


@dataclass
class Numbers:
    """A source of the numbers up to `upto`, in batches of ten; it is its own scan."""

    upto: int
    target: MemoryTarget
    passes: bool = False
    cursor_type: None = None
    loads_whole: bool = False
    names: tuple[str, ...] = ("id",)
    resumed: list[Batch] = field(default_factory=list)
    is_held: bool = False

    def rules(self, _: Batch) -> Rules:
        return Rules(mode=Mode.MERGE)

    def update_id(self, batch: Batch, watermark: Watermark) -> str:
        return f"g{watermark.generation}-v{watermark.version}-{batch.low}-{batch.high}"

    def declaration(self, _: Batch | None, __: Watermark, columns: Any) -> dict[str, Any]:
        return {"columns": columns}

    def check(self, _: Watermark) -> None:
        self.target.happened.append("refuse")

    @contextmanager
    def scan(self, _: Transfer, __: Watermark) -> Iterator[Numbers]:
        yield self

    @contextmanager
    def next(
        self, watermark: Watermark, resumed: Batch | None
    ) -> Iterator[Batch | PassOver | None]:
        low = int(watermark.value or 0)
        self.is_held = True
        try:
            if resumed is not None:
                self.resumed.append(resumed)
                yield resumed
            elif low >= self.upto:
                yield None
            elif self.passes and low == 0:
                yield PassOver("10")
            else:
                high = min(low + 10, self.upto)
                yield Batch(BatchKind.RANGE, watermark.value, str(high), rows=high - low)
        finally:
            self.is_held = False

    def stored(self, batch: Batch) -> dict[str, Any]:
        return {"final": int(batch.high or 0) == self.upto}

    def stage(self, batch: Batch, prepare: Prepare) -> Staged:
        assert self.is_held
        prepare(SHAPE)
        self.target.happened.append("stage")
        return Staged(SHAPE, (StagedWrite("w", batch.rows),))

    def published(self, plan: LoadPlan) -> None:
        assert not self.is_held
        self.target.happened.append(f"published {plan.batch.high}")

    def passed(self, found: PassOver, _: Watermark) -> None:
        self.target.happened.append(f"passed {found.value}")


def transfer(
    target: MemoryTarget, source: Numbers, attempt: MemoryAttempt | None = None, **options: Any
) -> Transfer:
    relation = Relation("public", "orders")
    sync = Sync("shop", "orders", Endpoint("crm", relation), Endpoint("dw", relation))
    return Transfer(
        sync,
        source,
        cast("Any", target),
        cast("Any", attempt or MemoryAttempt()),
        **options,
    )


def test_every_load_is_planned_staged_checked_and_published_in_this_order() -> None:
    target = MemoryTarget()
    attempt = MemoryAttempt()
    done = run(transfer(target, Numbers(15, target), attempt))
    load = ["prepare", "stage", "check", "publish", "discard"]
    assert target.happened == [
        "refuse", "present", *load, "published 10", *load, "published 15",
    ]  # fmt: skip
    assert [one.rows for one in done.loads] == [10, 5]
    assert done.watermark == target.place
    assert attempt.stored_plan is not None
    assert attempt.stored_plan["final"]
    assert attempt.stored_plan["update_id"] == done.loads[-1].update_id


def test_a_limit_of_batches_ends_the_run() -> None:
    target = MemoryTarget()
    assert len(run(transfer(target, Numbers(100, target), max_batches=3)).loads) == 3
    assert target.place.value == "30"


@pytest.mark.parametrize("error", [WatermarkMoved("moved"), StagingLost("lost")])
def test_what_moved_or_was_lost_is_planned_anew(error: Exception) -> None:
    target = MemoryTarget(failures=[error] * 5)
    assert [one.rows for one in run(transfer(target, Numbers(10, target))).loads] == [10]
    assert target.happened.count("stage") == 6


def test_nobody_plans_for_ever() -> None:
    target = MemoryTarget(failures=[WatermarkMoved("moved")] * 6)
    with pytest.raises(WatermarkMoved):
        run(transfer(target, Numbers(10, target)))


def test_a_load_that_went_well_starts_the_count_of_replans_again() -> None:
    target = MemoryTarget()
    source = Numbers(20, target)
    lost: list[Exception] = [StagingLost("lost")] * 4
    target.failures = list(lost)
    found = transfer(
        target, source, loaded=lambda load: target.failures.extend(lost if load.rows else [])
    )
    assert len(run(replace(found, max_batches=2)).loads) == 2


def test_a_stored_plan_is_resumed_once_while_nothing_has_moved() -> None:
    target = MemoryTarget()
    batch = Batch(BatchKind.RANGE, None, "7", rows=7)
    plan = LoadPlan("g0-v0-None-7", batch, target.place.generation, 0)
    source = Numbers(10, target)
    stored = MemoryAttempt(plan.to_json() | {"final": False})
    done = run(transfer(target, source, stored))
    assert source.resumed == [batch]
    assert [one.update_id for one in done.loads] == ["g0-v0-None-7", "g0-v1-7-10"]
    # It is in now, and another version of the watermark is none of its business.
    for stored in (plan, replace(plan, version=9), replace(plan, update_id="another")):
        again = Numbers(10, target)
        assert run(transfer(target, again, MemoryAttempt(stored.to_json()))).loads == []
        assert again.resumed == []


def test_a_marker_without_its_watermark_is_refused() -> None:
    target = MemoryTarget(markers={"g0-v0-None-10"})
    with pytest.raises(LoadError, match="removed by hand"):
        run(transfer(target, Numbers(10, target)))


def test_what_is_passed_over_moves_the_watermark_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target = MemoryTarget()

    def move(_: Any, __: Any, ___: Any, watermark: Watermark, found: PassOver) -> None:
        target.place = replace(watermark, value=found.value, version=watermark.version + 1)

    monkeypatch.setattr(engine, "move_watermark", move)
    done = run(transfer(target, Numbers(15, target, passes=True)))
    assert [one.rows for one in done.loads] == [5]
    assert "passed 10" in target.happened


def test_a_refresh_that_nobody_asked_for_again_is_finished_and_says_so() -> None:
    target = MemoryTarget()
    target.place = replace(target.place, version=1, declaration={"refreshing": 1})

    class Whole(Numbers):
        @contextmanager
        def next(
            self, watermark: Watermark, resumed: Batch | None
        ) -> Iterator[Batch | PassOver | None]:
            with super().next(watermark, resumed) as batch:
                yield replace(batch, kind=BatchKind.FULL) if isinstance(batch, Batch) else batch

    found = transfer(target, Whole(10, target))
    assert run(found).notes == [FINISHES_REFRESH]
    assert found.refreshes
