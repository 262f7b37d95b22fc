"""What a project has declared to be queued by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.errors import DeclarationError
from tidegate.model.group import Group
from tidegate.model.job import SYNC, TASK
from tidegate.model.schedule import CatchUp, Schedule
from tidegate.model.scheduled import Scheduled
from tidegate.model.sync import Sync
from tidegate.model.task import Task
from tidegate.settings import Settings


def scheduled_syncs(declared: Iterable[Sync | Group]) -> list[Scheduled]:
    """The syncs and groups that have a schedule."""
    found = []
    for one in declared:
        sync = one.template if isinstance(one, Group) else one
        if sync.schedule is None:
            continue
        found.append(
            Scheduled(
                name=sync.name,
                kind=SYNC,
                schedule=Schedule(sync.schedule, sync.timezone),
                catch_up=CatchUp(sync.catch_up),
                disable_after=sync.disable_after,
            )
        )
    return found


def scheduled_tasks(declared: Iterable[Task]) -> list[Scheduled]:
    """The tasks that have a schedule."""
    return [
        Scheduled(
            name=task.name,
            kind=TASK,
            schedule=Schedule(task.schedule, task.timezone),
            catch_up=CatchUp(task.catch_up),
            disable_after=task.disable_after,
        )
        for task in declared
        if task.schedule is not None
    ]


def known_resources(settings: Settings, what: str, names: Sequence[str]) -> tuple[str, ...]:
    """These names of resources; DeclarationError when [resources] does not have one of them."""
    for name in names:
        if name not in settings.resources:
            known = ", ".join(settings.resources)
            raise DeclarationError(
                f"{what}: resources names {name}, of which nobody has said how many there are",
                f"add {name} = 2, or the like, to [resources] in tidegate.toml"
                + (f"; there is {known}" if known else ""),
            )
    return tuple(names)
