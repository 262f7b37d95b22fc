"""Schedules, for people who look at them or stop them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.control.schedules import ScheduleLine, Schedules
from tidegate.control.task_states import TaskStates
from tidegate.errors import UsageError
from tidegate.insight.control_session import control_session
from tidegate.model.scheduled import Scheduled
from tidegate.runtime.job_context import JobContext


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """One declared schedule; without a line no scheduler has seen it yet."""

    declared: Scheduled
    line: ScheduleLine | None
    next_tick: datetime | None

    @property
    def state(self) -> str:
        """In one word, as a person would say it."""
        if self.line is None:
            return "new"
        if self.line.paused_at is not None:
            return "paused"
        return "active" if self.line.disabled_until is None else "DISABLED"


def read_schedules(context: JobContext, declared: Sequence[Scheduled]) -> list[ScheduleStatus]:
    """How each stands; changes nothing."""
    lines: dict[str, ScheduleLine] = {}
    now = datetime.now(UTC)
    with control_session(context) as control:
        if control is not None:
            schedules = _schedules(context)
            lines = {line.name: line for line in schedules.list(control)}
            now = schedules.clock(control)
    found = []
    for one in declared:
        line = lines.get(one.name)
        paused = line is not None and line.paused_at is not None
        found.append(ScheduleStatus(one, line, None if paused else one.schedule.next_after(now)))
    return found


def pause(
    context: JobContext, declared: Sequence[Scheduled], name: str, actor: str, reason: str | None
) -> bool:
    """Queue nothing for it; False when it was paused already."""
    _require(declared, name)
    context.control_id()
    with context.plane.connect() as control:
        schedules = _schedules(context)
        schedules.declare(control, declared, schedules.clock(control))
        return schedules.pause(control, name, actor, reason)


def resume(context: JobContext, declared: Sequence[Scheduled], name: str) -> bool:
    """Queue for it again; False when it was not paused."""
    _require(declared, name)
    with control_session(context) as control:
        return control is not None and _schedules(context).resume(control, name)


def enable(context: JobContext, name: str, actor: str) -> bool:
    """Queue again what failed too often; False when it was not disabled."""
    with control_session(context) as control:
        states = TaskStates(context.plane, context.settings.project.name)
        return control is not None and states.enable(control, name, actor)


def _schedules(context: JobContext) -> Schedules:
    return Schedules(context.plane, context.settings.project.name)


def _require(declared: Sequence[Scheduled], name: str) -> None:
    names = [one.name for one in declared]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        there = f"there is {', '.join(names)}" if names else "nothing has a schedule"
        raise UsageError(
            f"{name} has no schedule", f"did you mean {near[0]}?" if near else f"{there}"
        )
