"""`tidegate event retry`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from tidegate.cli.options import HERE, AsJson, DryRun, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line
from tidegate.cli.translation import translated
from tidegate.errors import UsageError
from tidegate.model.figures import counted


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
    from tidegate.insight.events import count_failed, retry_events

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
