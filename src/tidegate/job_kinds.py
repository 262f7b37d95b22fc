"""The kinds of job that a worker of a project can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tidegate.config.sync import Sync
from tidegate.config.task import Task
from tidegate.core.errors import UsageError
from tidegate.events.runner import EventRunner, check_event
from tidegate.jobs.attempt import ClaimedWork, LiveAttempt
from tidegate.jobs.claim import Claimed
from tidegate.jobs.job import EVENT, MAINTENANCE, SYNC, TASK, VACUUM
from tidegate.jobs.worker import NOTHING_HANDLER, Handler, check_kind, payload_flag, payload_text
from tidegate.jobs.worker_records import user_name
from tidegate.load.context import Context
from tidegate.load.runner import Runner, RunOptions
from tidegate.maintenance.runner import read_order, work_maintenance
from tidegate.maintenance.vacuum import find_versions, remove_superseded
from tidegate.tasks.runner import TaskRunner, read_payload

FindSync = Callable[[str], Sync]
FindTasks = Callable[[], Mapping[str, Task]]


def handlers_of(
    context: Context,
    find_sync: FindSync,
    kinds: Sequence[str] = (),
    *,
    find_tasks: FindTasks = dict,
) -> Mapping[str, Handler]:
    """A handler for each of the given kinds, or for all."""
    made = {
        SYNC: Handler(SYNC, check_sync, partial(_work_sync, context, find_sync)),
        VACUUM: Handler(VACUUM, check_vacuum, partial(_work_vacuum, context, find_sync)),
        MAINTENANCE: Handler(MAINTENANCE, check_maintenance, partial(work_maintenance, context)),
        TASK: Handler(TASK, check_task, partial(_work_task, context, find_tasks)),
        EVENT: Handler(EVENT, check_event, partial(_work_event, context)),
        NOTHING_HANDLER.kind: NOTHING_HANDLER,
    }
    return {kind: check_kind(kind, made) for kind in kinds} if kinds else made


def check_sync(name: str, payload: dict[str, Any]) -> None:
    """Refuse a payload that no run of a sync could have."""
    payload_text(name, payload, "target")
    payload_flag(name, payload, "full_refresh")
    payload_flag(name, payload, "allow_removal")
    most = payload.get("max_batches")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise UsageError(
            f"the job {name} is malformed: max_batches in its payload is {most!r}",
            "give a whole number above 0, or leave it out",
        )


def check_vacuum(name: str, payload: dict[str, Any]) -> None:
    payload_text(name, payload, "target")


def check_maintenance(name: str, payload: dict[str, Any]) -> None:
    """Refuse an order that nobody could have given."""
    payload_text(name, payload, "target")
    read_order(name, payload)


def check_task(name: str, payload: dict[str, Any]) -> None:
    """Refuse a payload that no run of a task could have."""
    payload_text(name, payload, "task")
    payload_text(name, payload, "update_id")
    payload_flag(name, payload, "allow_removal")
    if not isinstance(payload.get("parameters"), dict):
        raise UsageError(
            f"the job {name} is malformed: its payload holds no parameters",
            "submit it again with: tidegate run NAME --param … --queue",
        )


def _work_task(context: Context, find_tasks: FindTasks, claimed: Claimed) -> bool:
    claim = claimed.claim
    run = read_payload(find_tasks(), claim.name, claim.payload)
    TaskRunner(context, claimed.heartbeat).work(run, claimed)
    return True


def _work_event(context: Context, claimed: Claimed) -> bool:
    return EventRunner(context, claimed.heartbeat).work(claimed)


def _work_sync(context: Context, find_sync: FindSync, claimed: Claimed) -> bool:
    claim = claimed.claim
    sync = _declared(find_sync, claim.name, claim.payload)
    options = RunOptions(
        full_refresh=payload_flag(claim.name, claim.payload, "full_refresh"),
        max_batches=claim.payload.get("max_batches"),
        allow_removal=payload_flag(claim.name, claim.payload, "allow_removal"),
    )
    report = Runner(context, claimed.heartbeat).work(sync, claimed, options)
    return report.status == "done"


def _work_vacuum(context: Context, find_sync: FindSync, claimed: Claimed) -> bool:
    sync = _declared(find_sync, claimed.claim.name, claimed.claim.payload)

    def work(attempt: LiveAttempt) -> dict[str, Any]:
        versions = find_versions(context, sync)
        if isinstance(versions, str):
            return {"note": versions}
        found = remove_superseded(context, versions, attempt.fence, attempt.check_alive)
        attempt.record("vacuum", {"removed_versions": found.rows, "removed_bytes": found.bytes})
        return {"removed_versions": found.rows, "removed_bytes": found.bytes}

    with context.plane.connect() as control:
        return ClaimedWork(
            context=context,
            control=control,
            destination=context.destination(sync.target),
            claimed=claimed,
            actor=f"{user_name()} ({claimed.heartbeat.worker.command})",
            what=f"vacuum of {sync.name}",
            interrupt=lambda: None,
            retries=True,
        ).run(work)


def _declared(find_sync: FindSync, name: str, payload: dict[str, Any]) -> Sync:
    """The sync as it is declared now; its target must be the one that the job has locked."""
    sync = find_sync(name)
    if sync.refused is not None:
        raise sync.refused
    if str(sync.target) != payload["target"]:
        raise UsageError(
            f"sync {name} loads into {sync.target} now; the job was submitted for "
            f"{payload['target']}",
            f"submit it again with: tidegate run {name} --queue",
        )
    return sync
