"""`tidegate job`: what is queued, what runs, what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, TwentyAtMost, open_project
from tidegate.cli.output import print_error, print_json, print_line
from tidegate.cli.translation import translated
from tidegate.errors import TidegateError, UsageError
from tidegate.model.job import JobStatus

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
    from tidegate.cli.job_screen import print_jobs
    from tidegate.insight.job_documents import line_document, queue_document
    from tidegate.insight.jobs import list_jobs

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
    from tidegate.cli.following import follow as watch
    from tidegate.cli.job_screen import print_job
    from tidegate.insight.job_documents import detail_document
    from tidegate.insight.jobs import show_job

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
    from tidegate.cli.cancelling import Answer, cancel_all

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
    from tidegate.cli.following import follow as watch
    from tidegate.control.workers import user_name
    from tidegate.insight.jobs import show_job
    from tidegate.model.job import Submitted
    from tidegate.runtime.submitting import retry_job

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
