"""`tidegate event run`."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, TakeOver, open_project
from tidegate.cli.output import print_error, print_json, print_line, working
from tidegate.model.event_phase import Phase
from tidegate.model.figures import counted

if TYPE_CHECKING:
    from tidegate.model.event_batch import Processed
    from tidegate.pipeline.event_provision import Provisioned
    from tidegate.pipeline.event_refresh import RefreshEnd
    from tidegate.runtime.event_runner import EventReport


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
    from tidegate.cli.run import PATIENCE_SECONDS, leave
    from tidegate.runtime.claiming import open_heartbeat
    from tidegate.runtime.event_jobs import COMMAND
    from tidegate.runtime.shutdown import Shutdown

    opened = open_project(project, profile)
    wanted = [one for one in Phase if not phases or one in phases]

    def ended(phase: Phase, report: EventReport) -> None:
        if not as_json:
            for line in _lines(phase, report):
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
        print_json(_document(report))
    elif report.error is not None:
        print_error(report.error, as_json=False)
    opened.close()
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _lines(phase: Phase, report: EventReport) -> list[str]:
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


def _document(report: EventReport) -> dict[str, Any]:
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
