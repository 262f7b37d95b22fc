"""Maintenance of one table of a lake: the actions one by one, each recorded as it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.control.job_records import JobRecords
from tidegate.destinations.lake import LakeDestination
from tidegate.errors import MaintenanceFailed, UsageError
from tidegate.failpoints import reach
from tidegate.lake.engine import Engine
from tidegate.ledger.catalog_moves import CatalogMoves
from tidegate.model.job import Claim
from tidegate.model.maintenance import Action, Order
from tidegate.model.relation import Endpoint
from tidegate.pipeline.action_run import ActionRun
from tidegate.pipeline.action_work import MaintainingAttempt, Work
from tidegate.pipeline.context import Context


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What is to be done to a table, and by which engine."""

    context: Context
    target: Endpoint
    order: Order
    engine: Engine

    def run(self, attempt: MaintainingAttempt) -> dict[str, Any]:
        """Do what is not done yet; MaintenanceFailed says what could not be, and what was."""
        reach("maintenance.healed")
        destination = self._destination()
        if destination.read() is None:
            raise UsageError(
                f"{self.target} does not exist, so there is nothing to maintain",
                "see what there is with: tidegate table list",
            )
        with destination.open() as connection:
            CatalogMoves(destination.ledger).forget(connection)
        ended = self._ended(attempt.claim)
        for number, (action, options) in enumerate(self.order.steps, 1):
            if action in ended:
                continue
            attempt.report(
                {
                    "phase": "maintaining",
                    "action": action.value,
                    "number": number,
                    "of": len(self.order.steps),
                }
            )
            reach("action.started")
            work = Work(self.context, destination, self.engine, attempt)
            ended[action] = detail = ActionRun(work, action, options).run()
            attempt.record(action.value, detail)
            reach("action.done")
        self._complain(ended)
        return {"actions": {action.value: ended[action]["status"] for action in ended}}

    def _destination(self) -> LakeDestination:
        destination = self.context.destination(self.target)
        if not isinstance(destination, LakeDestination):
            raise UsageError(
                f"{self.target} is no table of a lake", "maintenance is for Iceberg tables"
            )
        return destination

    def _ended(self, claim: Claim) -> dict[Action, dict[str, Any]]:
        """What an attempt before this one has done of the same job."""
        with self.context.plane.connect() as control:
            recorded = JobRecords(self.context.plane).actions(control, claim.job_id)
        return {
            Action(one.action): one.detail
            for one in recorded
            if one.detail["status"] in ("done", "skipped")
        }

    def _complain(self, ended: Mapping[Action, dict[str, Any]]) -> None:
        failed = [one for one in self.order.actions if ended[one]["status"] == "failed"]
        if not failed:
            return
        reasons = "; ".join(f"{one.value}: {ended[one]['error']}" for one in failed)
        done = [one.value for one in self.order.actions if one not in failed]
        message = f"{len(failed)} of {len(self.order.steps)} actions failed: {reasons}"
        raise MaintenanceFailed(
            f"{message}; done: {', '.join(done)}" if done else message,
            "what is done stays done; run the others again when the reason is gone",
        )
