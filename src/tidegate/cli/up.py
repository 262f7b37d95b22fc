"""`tidegate up`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, given_overrides, open_project
from tidegate.cli.output import print_json, print_line


def up(
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many worker processes.")] = 1,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="How many jobs each works side by side.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="The service too, where serve.host and port say.")
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Run the project's workers together, with the service if wanted, and stop them together.

    Where something has a schedule, a scheduler runs beside them. One that dies is started again;
    one that dies five times in a row within seconds ends them all.

    Example: tidegate up --workers 2
    """
    from tidegate.jobs.shutdown import Supervised, Supervisor
    from tidegate.maintenance.table_cache import Refresher

    opened = open_project(project, profile)
    opened.context.control_id()
    folder = opened.settings.root
    lakes = Refresher(opened.context).lakes
    tells = bool(opened.settings.notify.channels)
    schedules = bool(opened.scheduled)
    opened.close()
    base = [sys.executable, "-m", "tidegate"]
    for key, value in given_overrides().items():
        base += ["--set", f"{key}={value}"]
    common = ["--project", str(folder), *(["--profile", profile] if profile else [])]
    command = [*base, "worker", *common]
    if concurrency:
        command += ["--concurrency", str(concurrency)]
    members = [Supervised(f"worker {number}", command) for number in range(1, workers + 1)]
    if serve:
        members.append(Supervised("service", [*base, "serve", *common]))
    elif lakes or tells:
        # Workers come and go with their number; the tables of lakes and the notices need one who
        # looks after them.
        members.append(Supervised("sweeper", [*base, "sweeper", *common]))
    if schedules:
        members.append(Supervised("scheduler", [*base, "scheduler", *common]))
    say = _say_nothing if as_json else print_line
    others = ["the service"] * serve + ["a scheduler"] * schedules
    beside = "".join(f" and {one}" for one in others)
    many = "es" if workers > 1 else ""
    say(f"{opened.name}: {workers} worker process{many}{beside}; Ctrl-C ends")
    code = Supervisor(members, say=say).run()
    if as_json:
        print_json({"project": opened.name, "workers": workers, "exit_code": code})
    raise typer.Exit(code)


def _say_nothing(_: str) -> None:
    """Only the document at the end goes to standard output."""
