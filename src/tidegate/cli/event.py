"""Tidegate event."""

from __future__ import annotations

import json
import secrets
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from tidegate.cli.options import (
    HERE,
    AsJson,
    DryRun,
    Profile,
    ProjectFolder,
    TakeOver,
    open_project,
)
from tidegate.cli.output import (
    moment,
    print_error,
    print_json,
    print_line,
    print_table,
    span,
    translated,
    working,
)
from tidegate.core.errors import TidegateError, UsageError
from tidegate.core.units import counted, in_bytes
from tidegate.events.model import Phase

if TYPE_CHECKING:
    from tidegate.events.generator import GeneratedEvents, Generation
    from tidegate.events.model import Processed
    from tidegate.events.provision import Provisioned
    from tidegate.events.refresh import RefreshEnd
    from tidegate.events.runner import EventReport
    from tidegate.events.status import EventStatus, Throughput


def generate(
    count: Annotated[int, typer.Option(min=1, max=100_000_000, help="How many events.")] = 10_000,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same events; else new ones.")
    ] = None,
    duplicates: Annotated[
        float, typer.Option(min=0, max=1, help="The share that repeats others, in other words.")
    ] = 0.02,
    malformed: Annotated[
        float, typer.Option(min=0, max=1, help="The share that is broken and must fail.")
    ] = 0.01,
    late: Annotated[
        float, typer.Option(min=0, max=1, help="The share that is months older than the rest.")
    ] = 0.0,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="How many days the events are spread over.")
    ] = 60,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="The day before which all of them lie; today."),
    ] = None,
    totals: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what must come out to a file.")
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Make up events for the project's model and add them to the raw ones.

    Example: tidegate event generate --count 100000 --seed 7
    """
    from tidegate.events.generator import Generation, generate_events

    if duplicates + malformed > 1:
        raise UsageError("--duplicates and --malformed are more than all", "lower one of them")
    plan = Generation(
        count,
        secrets.randbelow(2**31) if seed is None else seed,
        (until or datetime.now(UTC)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC),
        days,
        duplicates,
        malformed,
        late,
    )
    with (
        open_project(project, profile) as opened,
        translated("making up events"),
        working(f"making up {count:,} events"),
    ):
        filled = generate_events(opened.context, plan)
    document = _generated_document(plan, filled)
    if totals is not None:
        _write(totals, document)
    if as_json:
        print_json(document)
        return
    print_line(_line(plan, filled))


def _generated_document(plan: Generation, filled: GeneratedEvents) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "until": f"{plan.until:%Y-%m-%d}",
        "days": plan.days,
        "table": f"{filled.connection}:{filled.table}",
        "added": filled.added,
        **filled.totals.document(),
    }


def _line(plan: Generation, filled: GeneratedEvents) -> str:
    totals = filled.totals
    known = totals.events - filled.added
    return (
        f"added {filled.added:,} events to {filled.connection}:{filled.table}"
        + (f" ({known:,} were there already)" if known else "")
        + f": {totals.facts:,} facts, {totals.duplicates:,} duplicates, "
        f"{totals.malformed.total():,} that fail; seed {plan.seed}"
    )


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TidegateError(
            f"{path} cannot be written: {error.strerror}; the events were added",
            "give --totals a file that you may write, and the same --seed",
        ) from None


def retry(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of failed events.")] = None,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Those whose reason begins with this text."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every failed event.")] = False,
    dry_run: DryRun = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Let failed events be processed again, as after the model was corrected.

    Example: tidegate event retry --reason "amount is"
    """
    from tidegate.events.status import count_failed, retry_events

    if sum((bool(ids), reason is not None, all_)) != 1:
        raise UsageError("which events?", "give ids, or --reason TEXT, or --all")
    chosen = None if not ids else [_uuid(one) for one in ids]
    with open_project(project, profile) as opened, translated("retrying events"):
        work = count_failed if dry_run else retry_events
        count = work(opened.context, ids=chosen, reason=reason)
    if as_json:
        print_json({"retried": 0 if dry_run else count, "found": count})
    elif dry_run:
        print_line(f"{counted(count, 'failed event')} would wait again")
    else:
        then = "; process them with: tidegate event run" if count else ""
        print_line(f"{counted(count, 'failed event')} waiting again{then}")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not the id of an event", "see tidegate event status for some"
        ) from None


def run(
    phases: Annotated[
        list[Phase] | None,
        typer.Option("--phase", help="Only this phase; repeatable. All three by default."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="When the second phase stops claiming; events.time_budget by default.",
        ),
    ] = None,
    take_over: TakeOver = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Turn waiting events into facts: provision, process, refresh, each committed by itself.

    Any number may run at once, and be killed anywhere. An event that cannot be read fails with
    its reason and stops nothing.

    Example: tidegate event run
    """
    from tidegate.cli.sync.run import PATIENCE_SECONDS, leave
    from tidegate.events.runner import COMMAND
    from tidegate.jobs.claim import open_heartbeat
    from tidegate.jobs.shutdown import Shutdown

    opened = open_project(project, profile)
    wanted = [one for one in Phase if not phases or one in phases]

    def ended(phase: Phase, report: EventReport) -> None:
        if not as_json:
            for line in _run_lines(phase, report):
                print_line(line)

    with (
        open_heartbeat(opened.context, COMMAND) as heartbeat,
        Shutdown(partial(leave, opened, heartbeat), patience_seconds=PATIENCE_SECONDS),
        nullcontext() if as_json else working("events"),
    ):
        report = opened.run_events(
            *wanted, budget=budget, take_over=take_over, heartbeat=heartbeat, ended=ended
        )
    if as_json:
        print_json(_run_document(report))
    elif report.error is not None:
        print_error(report.error, as_json=False)
    opened.close()
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _run_lines(phase: Phase, report: EventReport) -> list[str]:
    if phase is Phase.PROVISION and report.provisioned is not None:
        return [f"provision: {_provisioned(report.provisioned)}"]
    if phase is Phase.PROCESS and report.processed is not None:
        return [f"process: {_processed(report.processed)}"]
    if phase is Phase.REFRESH and report.refreshed is not None:
        ends = report.refreshed
        return [f"refresh: {_refreshed(one)}" for one in ends] or ["refresh: the model has no view"]
    return []


def _provisioned(done: Provisioned) -> str:
    parts = []
    if done.tables:
        parts.append(f"{len(done.tables):,} tables, columns or functions made")
    if done.made:
        first, last = min(done.made), max(done.made)
        span = f"{first:%Y-%m}" + (f" to {last:%Y-%m}" if last > first else "")
        parts.append(f"{counted(len(done.made), 'month')} made ({span})")
    if done.detached:
        parts.append(f"{', '.join(done.detached)} detached")
    return "; ".join(parts) or "nothing to do"


def _processed(done: Processed) -> str:
    if not done.claimed:
        waits = f"; {done.left_pending:,} held by others" if done.left_pending else ""
        return f"nothing to do{waits}"
    rate = f", {done.claimed / done.seconds:,.0f} a second" if done.seconds > 0 else ""
    left = f"; {done.left_pending:,} left" if done.left_pending else ""
    failed = f", {done.failed:,} failed (see tidegate event status)" if done.failed else ""
    return (
        f"{done.done:,} events done, {done.facts:,} facts, {done.duplicates:,} duplicates{failed}, "
        f"in {counted(done.batches, 'commit')}, {done.seconds:.1f} s{rate}{left}"
    )


def _refreshed(end: RefreshEnd) -> str:
    if end.error is not None:
        return f"{end.view} failed: {end.error}"
    rows = "" if end.rows is None else f", {counted(end.rows, 'row')}"
    took = f", {end.seconds:.1f} s" if end.outcome == "refreshed" else ""
    return f"{end.view} {end.outcome}{rows}{took}"


def _run_document(report: EventReport) -> dict[str, Any]:
    from dataclasses import asdict

    processed = report.processed
    return {
        "jobs": {name: str(job_id) for name, job_id in report.jobs.items()},
        "provisioned": None if report.provisioned is None else asdict(report.provisioned),
        "processed": None
        if processed is None
        else {**asdict(processed), "duplicates": processed.duplicates},
        "refreshed": report.refreshed,
        "error": None if report.error is None else report.error.message,
        "hint": None if report.error is None else report.error.hint,
    }


def status(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Say how many events wait and since when, how fast they go, why some failed, and how the
    views stand.

    Example: tidegate event status
    """
    from tidegate.events.status import read_event_status, status_document

    with open_project(project, profile) as opened, translated("reading the events"):
        found = read_event_status(opened.context)
    if as_json:
        print_json(status_document(found))
        return
    for line in _status_lines(found):
        print_line(line)
    if found.reasons:
        print_line("")
        rows = [
            (one.error, f"{one.events:,}", moment(one.last_at), one.example)
            for one in found.reasons
        ]
        print_table(("why events failed", "events", "last", "such as"), rows)
    if found.views and found.is_provisioned:
        print_line("")
        shown = [
            (
                one.view,
                moment(one.refreshed_at) if one.refreshed_at else "never",
                "" if one.rows is None else f"{one.rows:,}",
                "" if one.seconds is None else f"{one.seconds:.1f} s",
                "yes" if one.is_current else "no",
                one.error,
            )
            for one in found.views
        ]
        print_table(("view", "refreshed", "rows", "took", "shows all", "error"), shown)


def _status_lines(found: EventStatus) -> list[str]:
    place = f"{found.connection}:{found.raw} → {found.facts}"
    if not found.is_provisioned:
        return [place, "  nothing is there yet; make it with: tidegate event run"]
    waits = "nothing waits"
    if found.pending:
        since = f", the oldest for {span(found.lag_seconds or 0)}"
        waits = f"{counted(found.pending, 'event')} waiting{since}"
    return [
        place,
        f"  backlog    {waits}",
        f"  last hour  {_throughput(found.last_hour)}",
        f"  failed     {found.failed:,}" + (", see below" if found.failed else ""),
        f"  facts      {counted(found.partitions, 'month')}, {in_bytes(found.facts_bytes)}"
        + (f" ({found.first_partition} … {found.last_partition})" if found.partitions else ""),
    ]


def _throughput(done: Throughput) -> str:
    if not done.batches:
        last = moment(done.last_committed_at) if done.last_committed_at else "never"
        return f"nothing committed; last: {last}"
    rate = f", {done.per_second:,.0f} a second of work" if done.per_second else ""
    return (
        f"{done.done:,} done, {done.failed:,} failed, {done.facts:,} facts in "
        f"{counted(done.batches, 'commit')}{rate}"
    )


app = typer.Typer(
    no_args_is_help=True,
    help="Raw events, and the facts that they become.\n\n"
    "Example: tidegate event generate --count 100000",
)
app.command("generate")(generate)
app.command("run")(run)
app.command("status")(status)
app.command("retry")(retry)
