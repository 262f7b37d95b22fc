"""`tidegate status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, SyncNamesOrAll, open_project
from tidegate.cli.output import print_json, print_line, print_table, span
from tidegate.core.units import in_bytes

if TYPE_CHECKING:
    from datetime import datetime

    from tidegate.admin.status import SyncStatus
    from tidegate.core.batch import Lateness
    from tidegate.jobs.job_view import QueueStatus
    from tidegate.load.context import Context
    from tidegate.load.sources.cdc.slot_registry import SlotStatus
    from tidegate.maintenance.table_report import UnhealthyTable


def status(
    names: SyncNamesOrAll = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with 1 when something failed or cannot be reached."),
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Show how every sync stands: last run, watermark, lag, and what holds it back.

    Example: tidegate status --check
    """
    from tidegate.admin.status import read_status

    opened = open_project(project, profile)
    expanded = opened.expanded(names or None, from_ledger=True)
    found = read_status(opened.context, expanded.syncs)
    if as_json:
        print_json(found)
    else:
        print_table(
            ("sync", "last run", "when", "rows", "watermark", "behind"),
            [
                (
                    one.sync,
                    one.state.value,
                    _when(one.last_run_at),
                    "" if one.rows is None else f"{one.rows:,}",
                    _watermark(one),
                    _behind(one),
                )
                for one in found.syncs
            ],
        )
        for one in found.syncs:
            for line in _notes(one):
                print_line(f"{one.sync}: {line}")
        for slot in found.slots:
            print_line(f"slot {slot.slot} of {slot.connection}: {_slot(slot)}")
        if not names:
            _print_events(opened.context)
        _print_queue(found.queue)
        _print_unwell(found.unwell_tables)
        if found.control_unreachable:
            print_line(f"control database: {found.control_unreachable}")
        horizon = found.vacuum_horizon
        # The remark on the queue names the holder as well.
        remark = horizon.queue_crowded or horizon.held
        if remark is not None:
            print_line(f"control database: {remark.found}; {remark.fix}")
    if check and not found.is_well:
        raise typer.Exit(1)


def _slot(slot: SlotStatus) -> str:
    """What it keeps, for whom, and what is wrong with it."""
    if slot.unreachable is not None:
        return f"unreachable: {slot.unreachable}"
    readers = ", ".join(one.sync for one in slot.readers) or "nobody"
    kept = "" if slot.retained_bytes is None else f"keeps {in_bytes(slot.retained_bytes)}, "
    text = f"{kept}read by {readers}"
    return text if slot.remark is None else f"{text}; {slot.remark.text}"


def _print_events(context: Context) -> None:
    """What waits and what failed, where the project has events."""
    import psycopg

    from tidegate.core.errors import TidegateError
    from tidegate.events.project_events import has_events
    from tidegate.events.status import read_event_status

    if not has_events(context):
        return
    try:
        found = read_event_status(context)
    except (TidegateError, psycopg.Error) as error:
        print_line(f"events: {str(error).splitlines()[0]}")
        return
    oldest = f" for up to {span(found.lag_seconds)}" if found.lag_seconds is not None else ""
    behind = sum(not one.is_current for one in found.views)
    views = f"{behind} of {len(found.views)} views behind" if behind else "views up to date"
    print_line(
        f"events: {found.pending:,} waiting{oldest}, {found.failed:,} failed, {views}; "
        "see: tidegate event status"
    )


def _print_queue(queue: QueueStatus) -> None:
    """Jobs when there is something to say, and the workers that are there."""
    if queue.is_worth_a_line:
        for text in queue.lines():
            print_line(f"jobs: {text}")
    for one in queue.workers:
        if not one.is_worth_a_line:
            continue
        takes = f"takes {', '.join(one.kinds)}, " if one.kinds else ""
        state = "" if one.is_connected else ", silent: its session is gone"
        print_line(
            f"worker: {one}, {takes}{one.jobs} of {one.concurrency} jobs, last beat "
            f"{span(one.silent_seconds)} ago{state}"
        )


def _print_unwell(tables: tuple[UnhealthyTable, ...]) -> None:
    """The tables of lakes that are not well, some of them by name."""
    if tables:
        some = [f"{one.table} ({', '.join(one.issues)})" for one in tables[:3]]
        more = f" and {len(tables) - 3} more" if len(tables) > 3 else ""
        print_line(f"tables not well: {', '.join(some)}{more}; see: tidegate table health")


def _notes(status: SyncStatus) -> list[str]:
    notes: list[str] = []
    held = status.held_back
    if held is not None:
        since = f", open since {_when(held.since)}" if held.since else ""
        seen = f" (seen {_when(held.seen_at)})" if held.seen_at else ""
        notes.append(f"held back at {held.at or 'its watermark'} by {held.by}{since}{seen}")
    if status.lock is not None and status.lock.holder is not None:
        note = f": {status.lock.note}" if status.lock.note else ""
        notes.append(f"{status.target} is held by {status.lock.holder}{note}")
    if status.late is not None:
        notes.append(_late(status.late, status.lookback))
    notes += status.notes
    if status.error:
        notes.append("last error: " + status.error.replace("\n", ";"))
    if status.problem:
        notes.append(f"problem: {status.problem}")
    return notes + [f"unreachable: {text}" for text in status.unreachable]


def _late(late: Lateness, lookback: str | None) -> str:
    def far(value: float) -> str:
        return span(value) if late.in_seconds else f"{value:,.0f}"

    loads = "the last load that had any" if late.loads == 1 else f"{late.loads} loads that had any"
    return (
        f"{late.rows:,} late rows in {loads}, at most {far(late.farthest)} behind the watermark, "
        f"half of them within {far(late.half_within)}"
        + ("" if lookback is None else f"; lookback = {lookback}")
    )


def _watermark(status: SyncStatus) -> str:
    if status.mode == "replace":
        return "all of it" if status.version else "never loaded"
    return status.watermark or "at the start"


def _behind(status: SyncStatus) -> str:
    if status.mode == "replace" and status.version:
        return "not known without reading it"
    lag = status.lag
    if lag is None:
        return "unknown"
    if status.watermark is None and lag.rows is None:
        return "everything"
    if lag.bytes is not None:
        read = "" if lag.seconds is None else f", read {span(lag.seconds)} ago"
        return f"{in_bytes(lag.bytes)} of the log{read}"
    parts: list[str] = []
    if lag.rows is not None:
        parts.append(f"{'more than ' if lag.rows_are_capped else ''}{lag.rows:,} rows")
    if lag.seconds is not None and lag.rows != 0:
        parts.append(span(lag.seconds))
    return ", ".join(parts) or "unknown (no index on the cursor)"


def _when(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
