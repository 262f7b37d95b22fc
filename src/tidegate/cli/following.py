"""Following jobs on the screen until they end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

import typer

from tidegate.cli.job_screen import action_text, pairs, state_text
from tidegate.cli.moments import span
from tidegate.cli.output import print_line

if TYPE_CHECKING:
    from tidegate.control.job_lists import JobLine
    from tidegate.insight.jobs import JobDetail
    from tidegate.pipeline.context import Context


def follow(
    context: Context, job_ids: Sequence[UUID], *, quiet: bool = False, seen: JobDetail | None = None
) -> int:
    """Print what happens until all have ended; the exit code says whether all are done.

    What was shown of the job before is not printed again.
    """
    from rich.console import Console
    from rich.text import Text

    from tidegate.insight.following import Follower
    from tidegate.model.job import JobStatus

    status = Console().status("") if sys.stdout.isatty() and not quiet else None
    last: list[JobLine] = []

    def tick(found: list[JobLine]) -> None:
        last[:] = found
        if status is not None:
            status.update(Text(_title(found)))

    follower = Follower(context, job_ids, tick)
    if seen is not None:
        follower.skip(seen.line, len(seen.actions))
    try:
        with status or nullcontext():
            for step in follower.steps():
                if quiet:
                    continue
                if step.job is None:
                    sys.stderr.write("the control database does not answer; trying again\n")
                elif step.action is not None:
                    print_line(f"{step.job.name}: {action_text(step.action)}")
                else:
                    print_line(state_text(step.job))
    except KeyboardInterrupt:
        sys.stderr.write(
            "left; the job is not touched by that. "
            f"Look again with: tidegate job show {job_ids[0]} --follow\n"
        )
        raise typer.Exit(130) from None
    return 0 if all(line.status is JobStatus.DONE for line in last) else 1


def _title(found: list[JobLine]) -> str:
    left = [line for line in found if not line.status.is_terminal]
    if not left:
        return ""
    if len(left) > 1:
        return f"{len(left)} of {len(found)} jobs to go"
    line = left[0]
    took = "" if line.duration_seconds is None else f", {span(line.duration_seconds)}"
    progress = f", {pairs(line.progress)}" if line.progress else ""
    return f"{line.name}: {line.state.value}{took}{progress}"
