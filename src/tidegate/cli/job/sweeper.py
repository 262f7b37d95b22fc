"""`tidegate sweeper`."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line


def sweeper(
    once: Annotated[bool, typer.Option("--once", help="Sweep once, then end.")] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Take back the jobs of dead workers, and look after the tables of lakes.

    Every worker does the first too; it is for when workers only live for one job each. The table
    cache is kept up to date, and automatic maintenance is queued.

    Example: tidegate sweeper
    """
    from tidegate.jobs.notifier import Notifier
    from tidegate.jobs.shutdown import Shutdown
    from tidegate.jobs.worker_records import WorkerIdentity
    from tidegate.maintenance.policy import PolicyRunner
    from tidegate.maintenance.table_cache import Refresher

    with open_project(project, profile) as opened:
        identity = WorkerIdentity.of_this_process(opened.name, "tidegate sweeper")
        if once:
            opened.context.control_id()
            with opened.context.plane.connect() as control:
                swept = opened.sweeper(identity.worker_id).run_once(control, tidy=True)
                notified = Notifier(opened.context).run_once(control)
                refreshed = Refresher(opened.context).run_once(control)
                PolicyRunner(opened.context).run_once(control)
            if as_json:
                print_json(asdict(swept) | {"tables": refreshed, "notified": notified.delivered})
            else:
                print_line(
                    f"{swept.reclaimed} jobs taken back, {swept.cancelled} cancels ended, "
                    f"{swept.staging} staging tables dropped, {swept.forgotten} jobs forgotten"
                )
            return
        with Shutdown(lambda _: 0):
            opened.context.control_id()
            for loop in opened.loops(identity.worker_id):
                loop.start()
            if not as_json:
                print_line(f"sweeper {identity.worker_id} looks after {opened.name}")
            threading.Event().wait()
