"""The actions of a job, one by one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from tidegate.core.errors import (
    CommitUnknown,
    DestinationError,
    MaintenanceFailed,
    StaleAttempt,
    TidegateError,
    UsageError,
)
from tidegate.core.failpoints import reach
from tidegate.core.log import log
from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import Action, ActionList, ActionOptions, Effect
from tidegate.iceberg.engines import Engine
from tidegate.jobs.attempt import ClaimedWork
from tidegate.jobs.claim import Claimed, claim_table, open_heartbeat
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import Claim
from tidegate.jobs.job_records import JobAction, JobRecords
from tidegate.jobs.worker_records import user_name
from tidegate.ledger.iceberg import CatalogMoves
from tidegate.load.context import Context
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.maintenance.actions import ACTIONS
from tidegate.maintenance.procedures import (
    ActionContext,
    ActionResult,
    ActionStep,
    MaintainingAttempt,
    engine_of,
    is_transient,
)
from tidegate.maintenance.submit import maintenance_request
from tidegate.spark.task_outcome import spark_reason

_TRIES = 3
# What cannot be told of an action that failed early.
_UNKNOWN = (
    "predicted",
    "actual",
    "files_before",
    "bytes_before",
    "files_after",
    "bytes_after",
    "error",
)


@dataclass(frozen=True, slots=True)
class ActionRun:
    """An action with its options, to be done to a table that is held."""

    work: ActionContext
    action: Action
    options: ActionOptions

    def run(self) -> dict[str, Any]:
        """What is kept of it, whether it went well or not; raises when the attempt was replaced."""
        began = time.monotonic()
        detail: dict[str, Any] = {"status": "failed", **dict.fromkeys(_UNKNOWN)}
        try:
            self._run(detail)
        except Exception as error:
            self._check_held(error)
            reason = _words(error)
            table, action = str(self.work.relation), self.action.value
            log.warning("action_failed", table=table, action=action, error=reason)
            detail["error"] = reason
        return detail | {"seconds": round(time.monotonic() - began, 3)}

    def _run(self, detail: dict[str, Any]) -> None:
        """Do it, again in a session of its own when somebody else has committed first.

        Or when the catalog was lost: no action does harm if it is done twice.
        """
        reason = ""
        for _ in range(_TRIES):
            step = ACTIONS[self.action](self.work, self.options)
            if detail["predicted"] is None:
                detail |= _prediction_fields(step.predicted)
            try:
                result = step.do()
            except Exception as error:
                self._check_held(error)
                if not is_transient(error):
                    raise
                reason = spark_reason(error)
                log.info("action_conflicts", action=self.action.value, reason=reason)
            else:
                detail |= _told(step, result)
                return
        raise DestinationError(
            f"{self.work.relation} was changed by others, or its catalog lost, each of {_TRIES} "
            f"times that it was worked on: {reason}",
            "run it again when less is written to the table",
        )

    def _check_held(self, error: Exception) -> None:
        """Work that was interrupted fails in many ways; the reason is that we were replaced."""
        if isinstance(error, StaleAttempt):
            raise error
        attempt = self.work.attempt
        attempt.check_alive()
        self.work.destination.holding.check_fence(attempt.fence)


def _prediction_fields(predicted: Effect) -> dict[str, Any]:
    before = predicted.before
    return {
        "predicted": asdict(predicted),
        "files_before": before.files,
        "bytes_before": before.bytes,
    }


def _told(step: ActionStep, result: ActionResult) -> dict[str, Any]:
    actual = step.actual(result)
    return {
        "status": "done" if result.skipped is None else "skipped",
        "actual": asdict(actual),
        "files_after": actual.after.files,
        "bytes_after": actual.after.bytes,
        "told": dict(result.told),
        "notes": [*result.notes, *([] if result.skipped is None else [result.skipped])],
    }


def _words(error: Exception) -> str:
    if isinstance(error, TidegateError):
        return error.message if error.hint is None else f"{error.message} ({error.hint})"
    return spark_reason(error)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What is to be done to a table, and by which engine."""

    context: Context
    target: Endpoint
    order: ActionList
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
            work = ActionContext(self.context, destination, self.engine, attempt)
            ended[action] = detail = ActionRun(work, action, options).run()
            attempt.record(action.value, detail)
            reach("action.done")
        self._complain(ended)
        return {"actions": {action.value: ended[action]["status"] for action in ended}}

    def _destination(self) -> IcebergTarget:
        destination = self.context.destination(self.target)
        if not isinstance(destination, IcebergTarget):
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


@dataclass(frozen=True, slots=True)
class Maintained:
    """How it ended: `done`, `failed` with an error, or `stale` when another took over."""

    job_id: UUID
    status: str
    actions: list[JobAction]
    error: TidegateError | None = None


def read_order(name: str, payload: dict[str, Any]) -> ActionList:
    """What a job asks for; UsageError where nobody could have meant it."""
    try:
        order = ActionList.read(payload["order"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the job {name} is malformed: its order cannot be read ({error})",
            "submit it again with: tidegate table maintain TABLE",
        ) from None
    if not order.steps:
        raise UsageError(f"the job {name} is malformed: it names no action", "name one at least")
    return order


def work_maintenance(context: Context, claimed: Claimed) -> bool:
    """Work a claimed job to its end; False when another attempt took over."""
    claim = claimed.claim
    target = Endpoint.parse(claim.payload["target"])
    engine = engine_of(context)
    work = Maintenance(context, target, read_order(claim.name, claim.payload), engine)
    with context.plane.connect() as control:
        claimed_work = ClaimedWork(
            context=context,
            control=control,
            destination=context.destination(target),
            claimed=claimed,
            actor=f"{user_name()} ({claimed.heartbeat.worker.command})",
            what=f"maintenance of {target}",
            interrupt=lambda: engine.interrupt(claim.attempt_id),
        )
        try:
            return claimed_work.run(work.run)
        except TidegateError as error:
            if error.permanent or isinstance(error, CommitUnknown):
                raise
            # The job has ended as failed: whoever sees this must not wait for another attempt.
            raise MaintenanceFailed(error.message, error.hint) from error


def maintain_here(
    context: Context,
    target: Endpoint,
    order: ActionList,
    *,
    actor: str,
    command: str = "tidegate table maintain",
    heartbeat: Heartbeat | None = None,
) -> Maintained:
    """Submit, claim and work in this process; BusyError names who has the table."""
    if heartbeat is None:
        with open_heartbeat(context, command) as own:
            return _maintain(context, target, order, actor, own)
    return _maintain(context, target, order, actor, heartbeat)


def _maintain(
    context: Context, target: Endpoint, order: ActionList, actor: str, heartbeat: Heartbeat
) -> Maintained:
    context.control_id()  # so that there is a control plane to connect to
    with context.plane.connect() as control:
        claimed = claim_table(
            context,
            control,
            context.destination(target),
            target,
            maintenance_request(context, target, order, actor=actor),
            heartbeat,
            actor=actor,
        )
        job_id = claimed.claim.job_id
        error = None
        try:
            status = "done" if work_maintenance(context, claimed) else "stale"
        except TidegateError as found:
            status, error = "failed", found
        actions = JobRecords(context.plane).actions(control, job_id)
    return Maintained(job_id, status, actions, error)
