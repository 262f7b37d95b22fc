"""What is not queued by itself because it failed too often: a sync, or one run of a task."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tidegate.control.task_states import DisableRule, TaskStates
from tidegate.log import log
from tidegate.model.job import TASK
from tidegate.model.scheduled import Scheduled
from tidegate.model.task import Step, TaskRun
from tidegate.postgres.connect import Connection
from tidegate.runtime.job_context import JobContext


def why_disabled(
    context: JobContext, control: Connection, one: Scheduled, now: datetime
) -> str | None:
    """Why nothing of this name is queued now; None when it is."""
    return _judge(context, control, one.name, one.kind, one.disable_after, now)


def why_runs_disabled(
    context: JobContext, control: Connection, steps: Iterable[Step], now: datetime
) -> str | None:
    """Why a graph is not queued: one of its runs failed too often; other runs are not concerned."""
    for step in steps:
        if isinstance(step, TaskRun):
            after = step.task.disable_after
            found = _judge(context, control, step.name, TASK, after, now, run=step)
            if found is not None:
                return f"{step}: {found}"
    return None


def _judge(
    context: JobContext,
    control: Connection,
    name: str,
    kind: str,
    disable_after: int | None,
    now: datetime,
    *,
    run: TaskRun | None = None,
) -> str | None:
    settings = context.settings.scheduler
    rule = DisableRule(
        disable_after or settings.disable_after,
        settings.disable_window_seconds,
        settings.disable_for_seconds,
    )
    found = TaskStates(context.plane, context.settings.project.name).judge(
        control,
        name,
        kind,
        rule,
        now,
        digest="" if run is None else run.digest,
        update_id=None if run is None else run.update_id,
    )
    if found is None:
        return None
    if found.since == now:
        log.warning(
            "disabled", name=str(run or name), failures=found.failures, until=str(found.until)
        )
    return f"{found.failures} failures; disabled until {found.until:%Y-%m-%d %H:%M:%S} UTC"
