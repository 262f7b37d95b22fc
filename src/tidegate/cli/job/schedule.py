"""`tidegate schedule`: what is queued by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import moment, print_json, print_line, print_table, translated
from tidegate.jobs.job import TASK

if TYPE_CHECKING:
    from tidegate.jobs.schedules import ScheduleStatus

app = typer.Typer(
    no_args_is_help=True,
    help="See, pause and resume what is queued by itself.\n\nExample: tidegate schedule list",
)
Names = Annotated[list[str], typer.Argument(help="Syncs, groups or tasks that have a schedule.")]


@app.command("list")
def list_(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Say when each is due next, what became of its last tick, and whether it is paused.

    Example: tidegate schedule list
    """
    from tidegate.jobs.schedules import read_schedules

    with open_project(project, profile) as opened, translated("reading the schedules"):
        found = read_schedules(opened.context, opened.scheduled)
    if as_json:
        print_json([_document(one) for one in found])
    elif not found:
        print_line('nothing has a schedule; give a sync one, such as schedule = "*/5 * * * *"')
    else:
        columns = ("name", "schedule", "state", "next", "last tick", "came to")
        print_table(columns, (_row(one) for one in found))


@app.command()
def pause(
    names: Names,
    reason: Annotated[str | None, typer.Option(help="Why, for whoever asks later.")] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Queue nothing for these until they are resumed; what is queued or at work goes on.

    Example: tidegate schedule pause orders --reason "the source is being moved"
    """
    from tidegate.jobs import schedules
    from tidegate.jobs.worker_records import user_name

    with open_project(project, profile) as opened, translated("pausing"):
        changed = {
            name: schedules.pause(opened.context, opened.scheduled, name, user_name(), reason)
            for name in names
        }
    _print(changed, "paused", "was paused already", as_json)


@app.command()
def resume(
    names: Names, project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False
) -> None:
    """Queue for these again; what was missed is made up for as catch_up says.

    Example: tidegate schedule resume orders
    """
    from tidegate.jobs import schedules

    with open_project(project, profile) as opened, translated("resuming"):
        changed = {name: schedules.resume(opened.context, opened.scheduled, name) for name in names}
    _print(changed, "resumed", "was not paused", as_json)


@app.command()
def enable(
    names: Names, project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False
) -> None:
    """Queue again what failed too often and was disabled, before its time is over.

    Example: tidegate schedule enable orders
    """
    from tidegate.jobs import schedules
    from tidegate.jobs.worker_records import user_name

    with open_project(project, profile) as opened, translated("enabling"):
        changed = {name: schedules.enable(opened.context, name, user_name()) for name in names}
    _print(changed, "enabled", "was not disabled", as_json)


def _print(changed: dict[str, bool], done: str, before: str, as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, "changed": one} for name, one in changed.items()])
        return
    for name, one in changed.items():
        print_line(f"{name}: {done if one else before}")


def _row(one: ScheduleStatus) -> tuple[Any, ...]:
    line, schedule = one.declared.name, one.declared.schedule
    when = schedule.cron if schedule.timezone == "UTC" else f"{schedule.cron} {schedule.timezone}"
    last, came_to, state = "", "", one.state
    if one.line is not None:
        last = moment(one.line.tick)
        came_to = one.line.outcome or ""
        if one.line.job_status is not None:
            came_to = f"{came_to}, job {one.line.job_status}"
        if one.line.paused_at is not None:
            why = f": {one.line.paused_reason}" if one.line.paused_reason else ""
            state = f"paused by {one.line.paused_by}{why}"
        elif one.line.disabled_until is not None:
            # Of a task, only runs with some parameters.
            some = " in part" if one.line.kind == TASK else ""
            state = f"DISABLED{some} until {moment(one.line.disabled_until)}"
    return line, when, state, moment(one.next_tick), last, came_to


def _document(one: ScheduleStatus) -> dict[str, Any]:
    line, declared = one.line, one.declared
    return {
        "name": declared.name,
        "kind": declared.kind,
        "schedule": declared.schedule.cron,
        "timezone": declared.schedule.timezone,
        "catch_up": declared.catch_up,
        "state": one.state,
        "next": one.next_tick,
        "last_tick": line.tick if line else None,
        "outcome": line.outcome if line else None,
        "job": line.job_id if line else None,
        "job_status": line.job_status if line else None,
        "paused_at": line.paused_at if line else None,
        "paused_by": line.paused_by if line else None,
        "paused_reason": line.paused_reason if line else None,
        "disabled_until": line.disabled_until if line else None,
    }
