"""What a project declares: syncs, groups and tasks, in tidegate.toml and in its pipelines file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from tidegate.config import Settings, SyncSettings
from tidegate.config.sync import DriftPolicy, Duplicates, Group, Layout, Mode, RowCheck, Sync
from tidegate.config.task import Task
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.watermark import NullPolicy
from tidegate.declare import Declared, Transform, collect
from tidegate.jobs.schedules import known_resources
from tidegate.load.groups import make_group, mark_shared_targets
from tidegate.load.selection import same_database
from tidegate.spark.user_code import import_file, user_code
from tidegate.tasks.registry import read_tasks


@dataclass(frozen=True, slots=True)
class Declarations:
    """Everything declared, by name and in order."""

    syncs: dict[str, Sync | Group]
    tasks: dict[str, Task]


def read_declarations(settings: Settings) -> Declarations:
    """Read what is declared; one name twice is refused, and tasks that could never run."""
    in_python = list(_in_python(settings))
    syncs = _read_syncs(settings, [one for one in in_python if not one.is_task])
    return Declarations(syncs, read_tasks(settings, in_python, syncs))


def _read_syncs(settings: Settings, in_python: Iterable[Declared]) -> dict[str, Sync | Group]:
    found = {name: _make(settings, name, values, None) for name, values in settings.sync.items()}
    pipelines = settings.project.pipelines
    for declared in in_python:
        if declared.name in found:
            raise DeclarationError(
                f"sync {declared.name} is declared twice: in tidegate.toml or in "
                f"{pipelines}, and again in the latter",
                "give one of them another name",
            )
        values = settings.make_sync(declared.name, declared.values, pipelines)
        found[declared.name] = _make(settings, declared.name, values, declared.function)
    plain = [one for one in found.values() if isinstance(one, Sync)]
    same = partial(same_database, settings)
    found.update((one.name, one) for one in mark_shared_targets(plain, plain, same))
    return found


def _in_python(settings: Settings) -> Iterable[Declared]:
    if not settings.pipelines_file.exists():
        return []
    connect = settings.spark.remote is not None
    return collect(lambda: import_file(user_code(settings), connect=connect))


def _make(
    settings: Settings, name: str, values: SyncSettings, transform: Transform | None
) -> Sync | Group:
    sync = _make_sync(settings, name, values, transform)
    return make_group(sync, values) if values.is_group else sync


def _make_sync(
    settings: Settings, name: str, values: SyncSettings, transform: Transform | None
) -> Sync:
    target = Endpoint.parse(values.target)
    source = (
        Endpoint.parse(values.source)
        if values.query is None
        else Endpoint(values.source, Relation("(query)", name))
    )
    return Sync(
        project=settings.project.name,
        name=name,
        source=source,
        target=target,
        mode=Mode(values.mode),
        key=values.key,
        cursor=values.cursor,
        changes=values.changes,
        deletes=values.deletes,
        lookback=values.lookback,
        settle_seconds=values.settle_seconds,
        null_cursor=None if values.null_cursor is None else NullPolicy(values.null_cursor),
        cursor_timezone=values.cursor_timezone,
        duplicates=Duplicates(values.duplicates),
        batch_rows=values.batch_rows,
        partitions=values.partitions,
        schedule=values.schedule,
        timezone=values.timezone,
        catch_up=values.catch_up,
        priority=values.priority,
        resources=known_resources(settings, f"sync {name}", values.resources),
        disable_after=values.disable_after,
        columns=values.columns,
        exclude_columns=values.exclude_columns,
        where=values.where,
        query=values.query,
        before_sql=values.before_sql,
        after_sql=values.after_sql,
        checks=tuple(RowCheck(*one) for one in values.checks.items()),
        reject_limit=values.reject_limit,
        drift=DriftPolicy(values.drift),
        max_removed=settings.safety.max_removed,
        layout=Layout.parse(values.partition_by, values.sort_by, values.table_properties),
        lake_source=settings.is_lake(source.connection),
        lake_target=settings.is_lake(target.connection),
        transform=transform,
    )
