"""`tidegate drain`: take no new jobs in, as before an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import moment, print_json, print_line, translated

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.jobs.drain import DrainStatus
    from tidegate.load.context import Context

app = typer.Typer(
    no_args_is_help=True,
    help="Take no new jobs in, as before an upgrade.\n\nExample: tidegate drain on",
)


@app.command()
def on(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Take no new jobs in; what is queued and what runs is worked off.

    Example: tidegate drain on
    """
    from tidegate.jobs.drain import start_draining
    from tidegate.jobs.worker_records import user_name

    with translated("draining"):
        found, changed = start_draining(_context(project, profile), user_name())
    _print(found, changed, as_json, again="drains already")


@app.command()
def off(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Take jobs in again.

    Example: tidegate drain off
    """
    from tidegate.jobs.drain import stop_draining

    with translated("ending the drain"):
        found, changed = stop_draining(_context(project, profile))
    _print(found, changed, as_json, again="it did not drain")


@app.command()
def status(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Say whether new jobs are taken in, since when not, by whose word, and what is left.

    Example: tidegate drain status
    """
    from tidegate.jobs.drain import read_draining

    with translated("looking whether it drains"):
        found = read_draining(_context(project, profile))
    _print(found, None, as_json)


def _context(project: Path, profile: str | None) -> Context:
    return open_project(project, profile).context


def _print(found: DrainStatus, changed: bool | None, as_json: bool, again: str = "") -> None:
    if as_json:
        document: dict[str, Any] = {
            "draining": found.draining is not None,
            "since": found.draining.since if found.draining else None,
            "by": found.draining.by if found.draining else None,
            "queued": found.queued,
            "running": found.running,
        }
        print_json(document if changed is None else {**document, "changed": changed})
        return
    prefix = f"{again}; " if changed is False else ""
    if found.draining is None:
        print_line(f"{prefix}new jobs are taken in")
    else:
        print_line(
            f"{prefix}no new jobs are taken in since {moment(found.draining.since)}, by "
            f"{found.draining.by}"
        )
    print_line(
        f"{found.queued} still queued, {found.running} running, in all projects of this control "
        "database"
    )
    if found.draining is not None and not (found.queued or found.running):
        print_line("nothing is left to be done: it is drained")
