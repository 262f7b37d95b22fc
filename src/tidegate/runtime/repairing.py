"""`tidegate verify --repair`: compare, load again what differs, compare again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tidegate.destinations.destination import Destination
from tidegate.model.job import REPAIR
from tidegate.model.load import LoadResult
from tidegate.model.sync import Sync
from tidegate.model.verification import Repair, Verdict, Verification
from tidegate.pipeline.context import Context
from tidegate.pipeline.repair import RepairWork, refuse_repair, was_stopped
from tidegate.pipeline.verify import verify_sync
from tidegate.runtime.attempt import LiveAttempt
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.loading import CommandedLoads, record_load

COMMAND = "tidegate verify --repair"


def repair_sync(
    context: Context,
    sync: Sync,
    heartbeat: Heartbeat,
    *,
    allow_removal: bool = False,
    step: Callable[[LoadResult], None] = lambda _: None,
) -> Verification:
    """What a comparison finds after all that differed was loaded again.

    Where nothing differs, no row is written. The target is held only from the second comparison
    on, so that loads go on beside the first.
    """
    if allow_removal:
        sync = replace(sync, max_removed=1.0)
    found = verify_sync(context, sync)
    if found.verdict is not Verdict.UNEQUAL and not (
        found.verdict is Verdict.EQUAL
        and was_stopped(context.destination(sync.target).watermark(sync.pipeline))
    ):
        return found
    refuse_repair(sync)
    done: list[RepairWork] = []

    def work(destination: Destination, attempt: LiveAttempt) -> dict[str, Any]:
        def loaded(load: LoadResult) -> None:
            record_load(attempt, load)
            step(load)

        repair = RepairWork(context, sync, destination, attempt, loaded)
        repair.run()
        done.append(repair)
        difference = repair.difference
        return {
            "loads": len(repair.outcome.loads),
            "rows": repair.outcome.rows,
            "changed": repair.outcome.changed,
            "rejected": repair.outcome.rejected,
            "missing": difference.missing if difference else 0,
            "extra": difference.extra if difference else 0,
            "different": difference.different if difference else 0,
        }

    job_id = CommandedLoads(context, heartbeat, sync, REPAIR, COMMAND).run(work)
    outcome = done[0].outcome
    repair = Repair(
        job=str(job_id),
        loads=len(outcome.loads),
        rows=outcome.rows,
        changed=outcome.changed,
        difference=done[0].difference,
    )
    return replace(verify_sync(context, sync), repair=repair)
