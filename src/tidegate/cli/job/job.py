"""Tidegate job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, TwentyAtMost, open_project
from tidegate.cli.output import print_error, print_json, print_line, translated
from tidegate.core.errors import TidegateError, UsageError
from tidegate.jobs.job import JobStatus

if TYPE_CHECKING:
    from tidegate.load.context import Context

app = typer.Typer(
    no_args_is_help=True,
    help="See queued and finished jobs, cancel and retry them.\n\nExample: tidegate job list",
)
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="A job, or as much of its id as is unique.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Watch it until it ends.")]


@app.command("list")
def list_(
    status: Annotated[
        list[JobStatus] | None, typer.Option("--status", help="Only these; may be repeated.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only these, such as sync.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only these, such as orders.")
    ] = None,
    limit: TwentyAtMost = None,
    all_: Annotated[bool, typer.Option("--all", help="However many there are.")] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first, and say how much waits and whether anybody takes it.

    Example: tidegate job list --status failed --limit 50
    """
    from tidegate.cli.job.screen import print_jobs
    from tidegate.jobs.job_view import line_document, list_jobs, queue_document

    if all_ and limit is not None:
        raise UsageError("--all and --limit were both given", "give one of them")
    opened = open_project(project, profile)
    with translated("listing jobs"):
        found = list_jobs(
            opened.context,
            statuses=status,
            kinds=kind,
            names=name,
            limit=None if all_ else limit or 20,
        )
    if as_json:
        print_json(
            {
                "jobs": [line_document(one) for one in found.jobs],
                "queue": queue_document(found.queue),
                "workers": found.queue.workers,
            }
        )
        return
    if found.jobs:
        print_jobs(found.jobs)
    else:
        print_line("no such jobs" if status or kind or name else "no jobs yet")
    for text in found.queue.lines():
        print_line(text)


@app.command()
def show(
    job: JobId,
    follow: Follow = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Show all about one job: attempts, loads, lease, lock, and what to do next.

    Example: tidegate job show 019a8f3c-1b2d --follow
    """
    from tidegate.cli.job.screen import follow as watch
    from tidegate.cli.job.screen import print_job
    from tidegate.jobs.job_view import detail_document, show_job

    opened = open_project(project, profile)
    with translated(f"looking at job {job}"):
        found = show_job(opened.context, job)
    job_id, code = found.record.job_id, 0
    if not as_json:
        print_job(found)
    if follow:
        with translated(f"following job {job_id}"):
            code = watch(opened.context, [job_id], quiet=as_json, seen=found)
            found = show_job(opened.context, str(job_id))
    if as_json:
        print_json(detail_document(found))
    if code:
        raise typer.Exit(code)


@app.command()
def cancel(
    jobs: Annotated[
        list[str], typer.Argument(metavar="ID…", help="Jobs, or as much of each id as is unique.")
    ],
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs that wait or run; after the answer nothing more of them is published.

    Example: tidegate job cancel 019a8f3c-1b2d
    """
    opened = open_project(project, profile)
    with translated("cancelling"):
        answers = cancel_all(opened.context, jobs)

    def say(one: Answer) -> None:
        if one.error is not None:
            error = TidegateError(f"job {one.job_id}: {one.error.message}", one.error.hint)
            print_error(error, as_json=False)
        else:
            print_line(f"job {one.job_id} ({one.name}): {one.text}")

    if as_json:
        print_json([one.document for one in answers])
    else:
        for one in answers:
            say(one)
    failed = [one.error.exit_code for one in answers if one.error is not None]
    if failed:
        raise typer.Exit(failed[0] if len(failed) == len(answers) else 1)


@app.command()
def retry(
    job: JobId,
    follow: Follow = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Queue the work of a failed or cancelled job once more, as a new job.

    Example: tidegate job retry 019a8f3c-1b2d --follow
    """
    from tidegate.cli.job.screen import follow as watch
    from tidegate.jobs.job import Submitted
    from tidegate.jobs.job_view import show_job
    from tidegate.jobs.worker_records import user_name
    from tidegate.load.submit import retry_job

    opened = open_project(project, profile)
    with translated(f"retrying job {job}"):
        found = show_job(opened.context, job)
        with opened.context.plane.connect() as control:
            submitted = retry_job(
                opened.context, control, found.record, actor=f"{user_name()} (tidegate job retry)"
            )
    job_id, created = submitted.job_id, submitted.outcome is Submitted.QUEUED
    assert job_id is not None
    code = 0
    if not as_json:
        print_line(
            f"{found.record.name}: queued again as job {job_id}"
            if created
            else f"{found.record.name}: another job does this already: {job_id}"
        )
        if not follow:
            print_line(f"watch it with: tidegate job show {job_id} --follow")
    if follow:
        with translated(f"following job {job_id}"):
            code = watch(opened.context, [job_id], quiet=as_json)
    if as_json:
        print_json({"job": job_id, "created": created, "retry_of": found.record.job_id})
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one job, and how many of its loads are in the table."""

    job_id: UUID
    name: str
    status: JobStatus | None = None
    loads: int = 0
    error: TidegateError | None = None

    @property
    def text(self) -> str:
        if self.status is JobStatus.DONE:
            return "done: its load was published before the cancel could reach it"
        if self.status is not JobStatus.CANCELLED:
            return f"{self.status}: it ended so before the cancel could reach it"
        if not self.loads:
            return "cancelled: nothing of it was published"
        loads = "1 load" if self.loads == 1 else f"{self.loads} loads"
        return f"cancelled: {loads} published earlier stay, nothing more of it was published"

    @property
    def document(self) -> dict[str, Any]:
        return {
            "job": self.job_id,
            "name": self.name,
            "status": self.status,
            "loads_published": self.loads,
            "error": None if self.error is None else self.error.message,
            "hint": None if self.error is None else self.error.hint,
        }


def cancel_all(context: Context, ids: Sequence[str]) -> list[Answer]:
    """Cancel these jobs; when one of them is unknown or has ended, none is touched."""
    from tidegate.jobs.context import control_session
    from tidegate.jobs.job_view import show_job
    from tidegate.jobs.worker_records import user_name

    found = {one.record.job_id: one for one in (show_job(context, text) for text in ids)}
    for one in found.values():
        if one.record.status.is_terminal:
            raise UsageError(
                f"job {one.record.job_id} ({one.record.name}) is {one.record.status} already; "
                "nothing was changed",
                f"see what it did with: tidegate job show {one.record.job_id}",
            )
    actor = f"{user_name()} (tidegate job cancel)"
    answers = []
    with control_session(context) as control:
        assert control is not None
        for one in found.values():
            job_id, name = one.record.job_id, one.record.name
            try:
                answers.append(_cancel(context, control, job_id, name, actor))
            except TidegateError as error:
                answers.append(Answer(job_id, name, error=error))
    return answers


def _cancel(context: Context, control: Any, job_id: UUID, name: str, actor: str) -> Answer:
    import psycopg

    from tidegate.jobs.cancel import cancel_job
    from tidegate.jobs.job_view import count_published, read_job
    from tidegate.postgres.connection import translate

    try:
        ended = cancel_job(context, control, job_id, actor=actor)
        detail = read_job(context.plane, control, context.settings.project.name, job_id)
        return Answer(job_id, name, ended.status, count_published(context, detail))
    except psycopg.Error as error:
        raise translate(error, f"cancelling job {job_id}") from error
