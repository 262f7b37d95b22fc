"""A retry of a job does the work that was planned, whatever has happened to the lake since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from integration.conftest import MakePlace
from integration.lake_sources import Lake, open_lake
from tidegate.ledger.fences import Fence
from tidegate.model.identity import new_attempt_id
from tidegate.model.load import LoadPlan
from tidegate.pipeline.course import SyncOutcome
from tidegate.pipeline.lake_declaration import resolve_lake_source
from tidegate.pipeline.lake_sync import LakeSyncWork
from tidegate.spark.session import SparkSessions


class Died(Exception):
    """The attempt got no further."""


@dataclass(slots=True)
class Held:
    """An attempt at a job, outside of any queue."""

    fence: Fence
    stored_plan: dict[str, Any] | None
    dies: bool
    actor: str = "a test"

    def store_plan(self, plan: dict[str, Any] | None) -> None:
        self.stored_plan = plan
        if self.dies:
            raise Died

    def report(self, progress: dict[str, Any]) -> None:
        """Nobody listens."""

    def remaining_seconds(self) -> float:
        return 60.0

    def check_alive(self) -> None:
        """It is."""


def attempt(
    lake: Lake, number: int, plan: dict[str, Any] | None = None, *, dies: bool = False
) -> tuple[SyncOutcome, dict[str, Any] | None]:
    """One attempt; what it did, and the plan that it leaves with its job."""
    context, sync = lake.project.context, lake.project.syncs["orders"]
    destination = context.destination(sync.target)
    fence = Fence(str(destination.relation), context.control_id(), number, new_attempt_id())
    destination.raise_fence(fence)
    held = Held(fence, plan, dies)
    source = resolve_lake_source(context, sync)
    work = LakeSyncWork(context, sync, source, destination, held)
    if not dies:
        return work.run(), held.stored_plan
    with pytest.raises(Died):
        work.run()
    return work.outcome, held.stored_plan


def test_a_retry_loads_what_was_planned_and_then_the_rest(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        attempt(lake, 1)
        lake.insert(3)
        _, stored = attempt(lake, 2, dies=True)
        assert stored is not None
        lake.sql("DELETE FROM T WHERE id = 3")
        lake.insert(4)
        outcome, _ = attempt(lake, 3, stored)
        planned = LoadPlan.from_json(stored)
        assert outcome.loads[0].update_id == planned.update_id
        assert [load.rows for load in outcome.loads] == [1, 2]
        assert lake.target() == lake.source()
        # It is in, so a retry whose answer was lost has nothing to do.
        again, _ = attempt(lake, 4, stored)
        assert again.loads == []


def test_a_plan_whose_snapshot_is_no_longer_part_of_main_is_made_anew(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        attempt(lake, 1)
        loaded = lake.table.main
        lake.insert(3)
        _, stored = attempt(lake, 2, dies=True)
        assert stored is not None
        lake.call("rollback_to_snapshot", f"snapshot_id => {loaded}")
        lake.insert(4)
        outcome, _ = attempt(lake, 3, stored)
        assert [load.update_id for load in outcome.loads] != [stored["update_id"]]
        assert lake.target() == lake.source()
