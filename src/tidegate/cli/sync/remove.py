"""`tidegate remove`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, TakeOver, Yes, open_project
from tidegate.cli.output import print_json, print_line, print_table, translated
from tidegate.core.errors import ControlMismatch, UsageError

if TYPE_CHECKING:
    from tidegate.admin.remove import RecordSearch, SyncRecords
    from tidegate.load.context import Context
    from tidegate.load.sources.cdc.slot_lifecycle import ReleasedSlot


def remove(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The sync, declared or not; a group or group.table."),
    ],
    yes: Yes = False,
    drop_target: Annotated[
        bool, typer.Option("--drop-target", help="Drop the target table as well.")
    ] = False,
    take_over: TakeOver = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Remove what is recorded of a sync; run again, it starts from the beginning.

    Example: tidegate remove orders --drop-target
    """
    from tidegate.admin.remove import check_drop, find_holdings, leave_slot
    from tidegate.core.identity import pipeline_name

    opened = open_project(project, profile)
    with translated(f"looking for {name}"):
        search = find_holdings(opened.context, name, opened.syncs, opened.groups)
    found = search.found
    declared = name in opened.names or name.partition(".")[0] in opened.groups
    if not found:
        with translated(f"removing {name}"):
            slots = leave_slot(opened.context, pipeline_name(opened.settings.project.name, name))
        if slots:
            _print_left(name, slots, as_json=as_json)
            return
        _nothing(name, declared, search, opened.names, as_json=as_json)
        return
    if drop_target:
        for one in found:
            check_drop(one)
    if not as_json and name in opened.groups:
        _print_group(found, drop_target=drop_target)
    elif not as_json:
        for one in found:
            _print_holdings(one, drop_target=drop_target)
    if not yes:
        _ask(name)
    left: list[ReleasedSlot] = []
    with translated(f"removing {name}"):
        for one in found:
            left += _remove(opened.context, one, drop_target=drop_target, take_over=take_over)
    if as_json:
        print_json(
            {
                "sync": name,
                "removed": [_document(one, drop_target=drop_target) for one in found],
                "not_searched": search.unreachable,
                "slots": left,
            }
        )
        return
    print_line(f"removed {name}")
    _print_slots(left)
    for connection, problem in search.unreachable.items():
        sys.stderr.write(f"note: {connection} could not be searched: {problem}\n")
    if declared:
        print_line("it is still declared: the next run loads it from the start")


def _print_left(name: str, left: list[ReleasedSlot], *, as_json: bool) -> None:
    if as_json:
        print_json({"sync": name, "removed": [], "not_searched": {}, "slots": left})
    else:
        _print_slots(left)


def _print_slots(left: list[ReleasedSlot]) -> None:
    for one in left:
        if one.by_hand is not None:
            sys.stderr.write(f"note: its source could not be reached: {one.because}\n")
            sys.stderr.write(f"  in that database, once it can be: {one.by_hand}\n")
            continue
        slot = f" and slot {one.slot}" if one.dropped_slot else ""
        print_line(f"dropped publication {one.publication}{slot} in its source")


def _remove(
    context: Context, one: SyncRecords, *, drop_target: bool, take_over: bool
) -> list[ReleasedSlot]:
    from tidegate.admin.remove import remove_holdings
    from tidegate.jobs.attempt import hold_table
    from tidegate.jobs.job import SYNC
    from tidegate.jobs.queue import Jobs

    # A job of the sync's own kind: what the last run remembered must not outlive the removal.
    request = {"kind": SYNC, "name": one.name}
    result: dict[str, Any] = {
        "removed": True,
        "loads": 0,
        "rows": 0,
        "changed": 0,
        "found_nothing": False,
        "watermark": None,
        "horizon": None,
        "fingerprints": {},
    }
    hold = hold_table(
        context, one.target, request, result=result, command="tidegate remove", take_over=take_over
    )
    try:
        with hold as held:
            live = partial(Jobs(context.plane).live_attempts, held.control)
            return remove_holdings(context, one, held.fence, live, drop_target=drop_target)
    except ControlMismatch as error:
        raise ControlMismatch(
            error.message, f"stop that one first, then: tidegate remove {one.name} --take-over"
        ) from None


def _nothing(
    name: str, declared: bool, search: RecordSearch, names: list[str], *, as_json: bool
) -> None:
    if not declared:
        from tidegate.load.sources.resolve import nearest

        looked = "; ".join(
            f"{key} could not be searched ({why})" for key, why in search.unreachable.items()
        )
        raise UsageError(
            f"there is no sync {name}, and no destination has anything recorded of it",
            looked or (nearest(name, names) if names else "see: tidegate watermark list"),
        )
    if as_json:
        print_json({"sync": name, "removed": [], "not_searched": search.unreachable})
    else:
        print_line(f"nothing is recorded of {name}, so there is nothing to remove")


def _print_holdings(one: SyncRecords, *, drop_target: bool) -> None:
    print_line(f"of {one.name} in {one.target}:")
    print_line(f"  the watermark and its log of {one.moves:,} moves")
    print_line(f"  {one.markers:,} markers")
    if one.shared_with:
        print_line(f"  (the fence stays: {', '.join(one.shared_with)} loads this table as well)")
    else:
        print_line("  the fence")
    print_line("  what the horizon remembers of its cursor, and staging that no run uses")
    if one.in_lake:
        for line in _left_in_lake(one):
            print_line(line)
        return
    if drop_target and one.target_exists:
        print_line(f"  THE TABLE {one.target.relation} WITH ALL OF ITS ROWS")
    elif one.target_exists:
        print_line(f"the table {one.target.relation} stays (--drop-target drops it)")


def _left_in_lake(one: SyncRecords) -> list[str]:
    lines = ["  loads that were about to be published"]
    if one.target_exists:
        lines.append(f"the table {one.target.relation} stays, and what its snapshots say of loads")
    lines += [
        f"branch {name} stays until the next run into this table, or: ALTER TABLE … DROP BRANCH"
        for name in one.branches
    ]
    return lines


def _print_group(found: list[SyncRecords], *, drop_target: bool) -> None:
    print_table(
        ("sync", "target", "moves", "markers", "the table"),
        (
            (
                one.name,
                one.target,
                f"{one.moves:,}",
                f"{one.markers:,}",
                "is not there"
                if not one.target_exists
                else "IS DROPPED WITH ALL OF ITS ROWS"
                if drop_target
                else "stays",
            )
            for one in found
        ),
    )


def _ask(name: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"removing {name} needs a yes", "look at what is listed, then add --yes")
    if not typer.confirm("remove this?", err=True):
        print_line("nothing was removed")
        raise typer.Exit(1)


def _document(one: SyncRecords, *, drop_target: bool) -> dict[str, object]:
    return {
        "sync": one.name,
        "target": str(one.target),
        "watermarks": one.watermarks,
        "moves": one.moves,
        "markers": one.markers,
        "fences": 0 if one.shared_with else one.fences,
        "dropped_target": drop_target and one.target_exists,
    } | ({"branches_left": list(one.branches)} if one.in_lake else {})
