"""Tidegate plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, SyncNamesOrAll, open_project
from tidegate.cli.output import print_error, print_json, print_line, print_table
from tidegate.core.errors import TidegateError, UsageError
from tidegate.core.units import in_bytes

if TYPE_CHECKING:
    from tidegate.load.plan import EventPlan, GroupPlan, ProjectPlan, SyncPlan, TaskPlan

_SHOWN_STATEMENTS = 3


def plan(
    names: SyncNamesOrAll = None,
    all_: Annotated[bool, typer.Option("--all", help="Plan every sync; the default.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print every table of a group as if it were named."),
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run would do, and refuse what is unsafe; writes nothing, starts no Spark.

    Exit code 2 when a sync is refused, 1 when a database cannot be reached.

    Example: tidegate plan orders
    """
    from dataclasses import replace

    from tidegate.events.project_events import has_events
    from tidegate.events.provision import plan_events
    from tidegate.load.planner import plan_project
    from tidegate.load.selection import SelectedSyncs
    from tidegate.tasks.registry import plan_tasks

    if all_ and names:
        raise UsageError("--all and names were both given", "give one of them")
    opened = open_project(project, profile)
    events = has_events(opened.context)
    if not opened.names and not opened.tasks and not events:
        raise UsageError(
            "the project declares no sync", "add a [sync.NAME] section to tidegate.toml"
        )
    tasks = [one for name, one in opened.tasks.items() if not names or name in names]
    syncs = [name for name in names or opened.names if name not in opened.tasks]
    # Asked with no name at all, expanded gives every sync.
    expanded = opened.expanded(syncs) if syncs else SelectedSyncs((), ())
    found = plan_project(opened.context, expanded.syncs, expanded.groups)
    found = replace(found, tasks=plan_tasks(tasks))
    if events and not names:
        found = plan_events(opened.context, found)
    if as_json:
        print_json(found)
    else:
        _print(found, set(names or ()), verbose=verbose)
        for refusal in found.refusals:
            error = TidegateError(f"{refusal.sync}: {refusal.message}", refusal.hint)
            print_error(error, as_json=False)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _print(found: ProjectPlan, named: set[str], *, verbose: bool) -> None:
    """Single syncs in full; the tables of a group as one line each, unless they were named."""
    whole = {group.group for group in found.groups}
    single = [one for one in found.plans if one.group not in whole or one.sync in named]
    detailed = list(found.plans) if verbose else single
    blank = False
    for one in detailed:
        if blank:
            print_line("")
        blank = True
        for line in _lines(one):
            print_line(line)
    for group in found.groups:
        if blank:
            print_line("")
        blank = True
        tables = [one for one in found.plans if one.group == group.group]
        print_group(group, tables, verbose=verbose)
    for task in found.tasks:
        if blank:
            print_line("")
        blank = True
        for line in _task_lines(task):
            print_line(line)
    if found.events is not None:
        if blank:
            print_line("")
        for line in _event_lines(found.events):
            print_line(line)


def _lines(plan: SyncPlan) -> list[str]:
    rows = [
        ("moves", f"{plan.source} → {plan.target}, {plan.mode}{_transformed(plan)}"),
        ("key", _key(plan)),
        ("cursor", _cursor(plan)),
        *([("slot", _slot(plan))] if plan.slot is not None else []),
        ("watermark", _watermark(plan)),
        *([("horizon", _horizon(plan))] if _has_horizon(plan) else []),
        ("guarantee", f"{plan.guarantee}: {plan.because}"),
        ("to load", _rows(plan)),
        *([("removes", f"{plan.removes:,} rows at least")] if plan.removes else []),
        ("target", _target(plan)),
        *(("", f"  {part}") for part in plan.target_table.create or plan.target_table.alter),
        ("lock", _lock(plan)),
    ]
    shown = plan.statements[:_SHOWN_STATEMENTS]
    rows += [("reads", statement) for statement in shown]
    if len(plan.statements) > len(shown):
        rows.append(("", f"… and {len(plan.statements) - len(shown)} more (see --json)"))
    if plan.statements:
        rows.append(("publishes", plan.publish or "known once the transformation has run"))
    rows += [("note", text) for text in plan.notes]
    rows += [("warning", text) for text in plan.warnings]
    return [plan.sync, *(f"  {label:<10} {text}" for label, text in rows)]


def _task_lines(plan: TaskPlan) -> list[str]:
    makes = "a side effect" if plan.target is None else f"{plan.target}, {plan.mode}"
    requires = ", ".join(plan.requires) or "nothing"
    if plan.requires_computed:
        requires = "what it computes from its parameters"
    rows = [
        ("task", ", ".join(plan.parameters) or "without parameters"),
        ("makes", makes),
        ("requires", requires),
        ("complete", f"when {plan.complete} says so"),
        *([("schedule", plan.schedule)] if plan.schedule else []),
    ]
    return [plan.task, *(f"  {label:<10} {text}" for label, text in rows)]


def _event_lines(plan: EventPlan) -> list[str]:
    missing = ", ".join(plan.missing)
    rows = [
        ("moves", f"{plan.raw} → {plan.facts}, by month of {plan.partition_column}"),
        ("same", f"two events are one fact when they agree in {', '.join(plan.hashed)}"),
        ("dimensions", ", ".join(plan.dimensions) or "none"),
        ("views", ", ".join(plan.views) or "none"),
        ("to load", f"{plan.waiting:,} events waiting" if plan.waiting else "nothing waits"),
        *([("makes", missing)] if missing else []),
        *([("months", ", ".join(plan.months))] if plan.months else []),
        *([("schedule", plan.schedule)] if plan.schedule else []),
        *(("warning", text) for text in plan.warnings),
    ]
    return ["events", *(f"  {label:<10} {text}" for label, text in rows)]


def _transformed(plan: SyncPlan) -> str:
    return ", through a transformation" if plan.transformed else ""


def _key(plan: SyncPlan) -> str:
    if not plan.key.columns:
        return "none: rows are not told apart"
    proof = "unique by an index" if plan.key.proven else "no unique index proves it"
    return f"{', '.join(plan.key.columns)} ({plan.key.origin}, {proof})"


def _slot(plan: SyncPlan) -> str:
    slot = plan.slot
    assert slot is not None
    name = slot.slot or "a new one"
    if not slot.exists:
        return f"{name} will be made, and publication {slot.publication or 'beside it'}"
    kept = "" if slot.retained_bytes is None else f", keeps {in_bytes(slot.retained_bytes)}"
    return f"{name}{kept}; publication {slot.publication}"


def _cursor(plan: SyncPlan) -> str:
    if plan.slot is not None:
        return f"none: the log of the source orders it; deletes are {plan.slot.deletes}"
    if plan.snapshots is not None:
        return f"none: snapshots order it; main is at {plan.source_snapshot or 'none yet'}"
    if plan.cursor is None and plan.changes == "snapshot":
        return "none: rows are found by the transaction that wrote them"
    if plan.cursor is None:
        return "none: everything is read each time"
    index = "indexed" if plan.cursor.indexed else "no index"
    return f"{plan.cursor.name}, {plan.cursor.type}, {index}; {plan.cursor.stamped}"


def _watermark(plan: SyncPlan) -> str:
    if plan.slot is not None:
        return f"{plan.watermark or 'at the start'} (generation {plan.generation})"
    if plan.snapshots is not None:
        waiting = f"{plan.snapshots:,} snapshot{'s' if plan.snapshots != 1 else ''} waiting"
        return f"{plan.watermark or 'at the start'} (generation {plan.generation}; {waiting})"
    if plan.changes == "snapshot":
        value = "at the start" if plan.watermark is None else f"transaction {plan.watermark}"
        return f"{value} (generation {plan.generation})"
    if plan.cursor is None:
        return "loaded" if plan.version else "never loaded"
    return f"{plan.watermark or 'at the start'} (generation {plan.generation})"


def _has_horizon(plan: SyncPlan) -> bool:
    return plan.cursor is not None and plan.changes == "cursor"


def _horizon(plan: SyncPlan) -> str:
    text = plan.horizon or "nothing may be read now"
    lookback = f"; lookback {plan.lookback}" if plan.lookback else ""
    held = f"; held back by {plan.held_by}" if plan.held_by else ""
    return text + lookback + held


def _rows(plan: SyncPlan) -> str:
    if plan.next_batch is None:
        return "nothing new"
    if plan.slot is not None and not plan.slot.copies:
        return f"what {in_bytes(plan.slot.behind_bytes)} of the log hold of it: {plan.next_batch}"
    about = "" if plan.rows_are_exact else "about "
    time = f", about {_seconds(plan.expected_seconds)}" if plan.expected_seconds else ""
    return (
        f"{about}{plan.rows:,} rows in {plan.batches:,} batch{_es(plan.batches)}{time}; next: "
        f"{plan.next_batch}, {plan.next_batch.rows:,} rows in {plan.partitions} partition"
        f"{_es(plan.partitions)[-1:]}"
    )


def _es(count: int) -> str:
    return "" if count == 1 else "es"


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _target(plan: SyncPlan) -> str:
    if plan.target_table.alter:
        return "exists; before the next load it is changed by"
    if plan.target_table.exists:
        return "exists and can take the rows" if not plan.transformed else "exists"
    return "will be created" + (" with" if plan.target_table.create else "")


def _lock(plan: SyncPlan) -> str:
    lock = plan.lock
    holder = f", held by {lock.holder}" if lock.holder else ", free"
    note = f" ({lock.note})" if lock.note else ""
    return f"{lock.resource}{holder}{note}"


_SHOWN = 4


def print_group(group: GroupPlan, tables: Sequence[SyncPlan], *, verbose: bool) -> None:
    """The choice for every table, and what the group leaves out."""
    count = f"{group.tables} table{'' if group.tables == 1 else 's'}"
    print_line(f"{group.group}: {group.source} → {group.target}, {count}")
    if tables:
        print_table(
            ("table", "mode", "key", "cursor", "rows", "to load", "guarantee", "warnings"),
            (
                (
                    one.table,
                    one.mode,
                    ", ".join(one.key.columns) or "none",
                    one.cursor.name if one.cursor is not None else "none",
                    f"{one.source_rows:,}",
                    _to_load(one),
                    one.guarantee.value,
                    len(one.warnings) or "",
                )
                for one in tables
            ),
        )
    for one in tables:
        if one.is_large:
            print_line(f"warning: {one.table}: {one.warnings[0]}")
    for text in group.warnings:
        print_line(f"warning: {text}")
    for reason, names in _by_reason(group).items():
        shown = names if verbose else names[:_SHOWN]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        print_line(f"left out: {', '.join(shown)}{more}: {reason}")
    if any(one.warnings or one.notes for one in tables) and not verbose:
        print_line(f"details: tidegate plan {group.group}.TABLE, or --verbose for all")


def _to_load(plan: SyncPlan) -> str:
    if plan.next_batch is None:
        return "nothing new"
    return f"{'' if plan.rows_are_exact else 'about '}{plan.rows:,}"


def _by_reason(group: GroupPlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in group.left_out:
        found.setdefault(one.reason, []).append(one.table)
    return found
