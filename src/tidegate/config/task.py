"""Task, its requirements, one run of it, its parameter for the tick."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from tidegate.config.parameters import Json, Parameter, Signature, canonical
from tidegate.config.sync import Mode
from tidegate.core.errors import DeclarationError
from tidegate.core.identity import task_digest, task_update_id
from tidegate.core.relation import Endpoint


@dataclass(frozen=True, slots=True)
class Need:
    """A requirement as it was written: a decorated function or a name, with parameters or none."""

    of: Callable[..., Any] | str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement whose name is known; parameters that are not given are the requiring task's."""

    name: str
    parameters: Mapping[str, Any]
    is_task: bool


Requires = Sequence[Requirement] | Callable[..., Sequence[Requirement]]


@dataclass(frozen=True, slots=True)
class Task:
    """One declared task; without a target it is a side effect."""

    project: str
    name: str
    function: Callable[..., Any]
    signature: Signature
    target: Endpoint | None = None
    key: tuple[str, ...] | None = None
    mode: Mode = Mode.MERGE
    requires: Requires = ()
    """what it needs before it runs, or a function of its parameters that says so"""
    complete: Callable[..., bool] | None = None
    """says whether the side effect is there; without one a marker does"""
    luigi: Callable[..., str] | None = None
    """says under which update_id Luigi has the run that these parameters name"""
    retries: int | None = None
    retry_delay_seconds: float | None = None
    schedule: str | None = None
    timezone: str = "UTC"
    catch_up: str = "last"
    schedule_parameter: str | None = None
    """which parameter a tick of the schedule is given to"""
    priority: int = 0
    resources: tuple[str, ...] = ()
    disable_after: int | None = None
    partitions: int = 32

    def run(self, values: Mapping[str, Any]) -> TaskRun:
        """One run with parameters that were read by the signature."""
        return TaskRun(self.name, canonical(self.signature.write(values)), dict(values), self)

    def describe(self) -> str:
        """For messages and lists: `revenue(day: date)`."""
        inside = ", ".join(f"{one.name}: {one.type.name}" for one in self.signature.parameters)
        return f"{self.name}({inside})"


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One task with one set of parameters: equal to another where these are equal."""

    name: str
    canonical: str
    values: Mapping[str, Any] = field(compare=False, repr=False)
    task: Task = field(compare=False, repr=False)
    allow_removal: bool = field(default=False, compare=False, repr=False)
    """it may remove more of its target than [safety] max_removed says"""

    @property
    def parameters(self) -> dict[str, Json]:
        """The parameters as JSON."""
        return self.task.signature.write(self.values)

    @property
    def update_id(self) -> str:
        """The identity of what this run leaves behind."""
        if self.task.luigi is not None:
            return self.task.luigi(**self.values)
        target = None if self.task.target is None else str(self.task.target)
        return task_update_id(self.task.project, self.name, self.canonical, target)

    @property
    def digest(self) -> str:
        """What tells the runs of one task apart: its parameters."""
        return task_digest(self.canonical, None)

    @property
    def resource(self) -> str:
        """What a run of a side effect locks."""
        return f"task:{self.task.project}/{self.name}:{self.digest}"

    @property
    def unique_key(self) -> str:
        """Of several queued runs with one such key at most one is unfinished."""
        return f"task:{self.name}:{self.canonical}"

    @property
    def payload(self) -> dict[str, Any]:
        """What makes two jobs the same run."""
        found: dict[str, Any] = {
            "task": self.name,
            "parameters": self.parameters,
            "update_id": self.update_id,
        }
        if self.task.target is not None:
            found["target"] = str(self.task.target)
        if self.allow_removal:
            found["allow_removal"] = True
        return found

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={_short(value)}" for name, value in self.parameters.items())
        return f"{self.name}({inside})"


@dataclass(frozen=True, slots=True)
class SyncRun:
    """A sync or a group that a task requires."""

    name: str
    allow_removal: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"sync {self.name}"


Step = TaskRun | SyncRun
"""what a graph of tasks is made of"""


def _short(value: Json) -> str:
    """One value as a person would write it after `--param NAME=`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_TIMES = ("date", "time")


def ticked_parameter(task: Task) -> Parameter | None:
    """The parameter that gets the tick; None where the task runs the same each time."""
    if task.schedule_parameter is not None:
        found = {one.name: one for one in task.signature.parameters}[task.schedule_parameter]
        if found.type.name not in _TIMES:
            raise DeclarationError(
                f"task {task.name}: a tick is no {found.type.name}, and its schedule_parameter is "
                f"{found.describe()}",
                "choose a parameter of type date or datetime",
            )
        return found
    times = [one for one in task.signature.parameters if one.type.name in _TIMES]
    return times[0] if len(times) == 1 else None


def check_schedulable(task: Task) -> None:
    """Refuse a schedule for a task whose other parameters nobody gives."""
    if task.schedule is None:
        return
    ticked = ticked_parameter(task)
    for one in task.signature.parameters:
        if one.required and one != ticked:
            raise DeclarationError(
                f"task {task.name} has a schedule, and nobody gives it {one.describe()}",
                "give it a default, or say which parameter gets the tick: schedule_parameter=…",
            )


def run_at(task: Task, tick: datetime) -> TaskRun:
    """The run that a tick asks for: a date gets the day that it is in the schedule's time zone."""
    ticked = ticked_parameter(task)
    given = {}
    if ticked is not None:
        local = tick.astimezone(ZoneInfo(task.timezone))
        given[ticked.name] = local.date() if ticked.type.name == "date" else tick.astimezone(UTC)
    return task.run(task.signature.read(task.name, given))
