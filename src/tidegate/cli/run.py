"""`tidegate run`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import (
    HERE,
    AsJson,
    Profile,
    ProjectFolder,
    choose_syncs,
    open_project,
)
from tidegate.cli.output import print_error, print_json, print_line, working
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.model.load import LoadResult
    from tidegate.model.sync import Sync
    from tidegate.runtime.runner import RunReport


def run(
    names: Annotated[
        list[str] | None, typer.Argument(help="Syncs to run, groups or group.table.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Run every declared sync.")] = False,
    full_refresh: Annotated[
        bool,
        typer.Option(
            "--full-refresh",
            help="Load everything again in one commit; rows gone from the source leave the target.",
        ),
    ] = False,
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Stop each sync after this many loads.")
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take a table over from another control plane that is stopped."
        ),
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Load what is new, safely: killed anywhere, run it again.

    Example: tidegate run orders customers
    """
    opened = open_project(project, profile)
    chosen = opened.expand(choose_syncs(names or [], all_, opened.names), fresh=full_refresh)
    reports: list[dict[str, Any]] = []
    worst = 0
    for sync in chosen:
        name = sync.name
        try:
            with nullcontext() if as_json else working(f"{name}: loading"):
                report = opened.run(
                    sync,
                    full_refresh=full_refresh,
                    max_batches=max_batches,
                    take_over=take_over,
                    step=None if as_json else _print_load,
                )
        except TidegateError as error:
            worst = error.exit_code if worst in (0, error.exit_code) else 1
            reports.append(
                {"sync": name, "status": "failed", "error": error.message, "hint": error.hint}
            )
            if not as_json:
                print_error(TidegateError(f"{name}: {error.message}", error.hint), as_json=False)
            continue
        reports.append(_document(name, report))
        if not as_json:
            print_line(_summary(sync, report))
    if as_json:
        print_json(reports)
    opened.close()
    if worst:
        raise typer.Exit(worst)


def _print_load(sync: Sync, load: LoadResult) -> None:
    already = ", was already in" if load.already else ""
    rejected = f", {load.rejected:,} rejected" if load.rejected else ""
    print_line(
        f"{sync.name}: {load.rows:,} rows, {load.changed:,} changed{rejected}, {load.batch}, "
        f"{load.seconds:.1f} s{already}"
    )


def _summary(sync: Sync, report: RunReport) -> str:
    from tidegate.destinations.quarantine import rejected_table
    from tidegate.model.rules import Mode

    name = sync.name
    if report.status == "stale":
        return f"{name}: another attempt took over; this one published nothing more"
    watermark = report.outcome.watermark.value if report.outcome.watermark else None
    at = (
        f"watermark {watermark or 'at the start'}" if sync.mode is not Mode.REPLACE else "all of it"
    )
    if report.found_nothing:
        text = f"{name}: ran, found nothing new; {at}"
    else:
        text = f"{name}: done, {report.outcome.rows:,} rows, {at}"
    if report.outcome.rejected:
        text += (
            f"; {report.outcome.rejected:,} rejected, see {rejected_table(sync.target.relation)}"
        )
    horizon = report.outcome.horizon
    if horizon is not None and horizon.held_by is not None:
        text += f"; held back by {horizon.held_by}"
    return text


def _document(name: str, report: RunReport) -> dict[str, Any]:
    outcome = report.outcome
    return {
        "sync": name,
        "job": str(report.job_id),
        "status": report.status,
        "rows": outcome.rows,
        "changed": outcome.changed,
        "rejected": outcome.rejected,
        "found_nothing": report.found_nothing,
        "watermark": outcome.watermark.value if outcome.watermark else None,
        "held_by": str(outcome.horizon.held_by)
        if outcome.horizon and outcome.horizon.held_by
        else None,
        "loads": [
            {
                "update_id": load.update_id,
                "batch": str(load.batch),
                "rows": load.rows,
                "changed": load.changed,
                "rejected": load.rejected,
                "seconds": round(load.seconds, 3),
            }
            for load in outcome.loads
        ],
    }
