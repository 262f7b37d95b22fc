"""`tidegate scheduler`."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line


def scheduler(
    once: Annotated[bool, typer.Option("--once", help="Look once, then end.")] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Queue what is due, and set free what waited for other jobs.

    Any number may run at the same time: each tick is queued once. Workers do the work.

    Example: tidegate scheduler
    """
    from tidegate.cli.translation import translated
    from tidegate.control.workers import Worker
    from tidegate.runtime.shutdown import Shutdown

    with open_project(project, profile) as opened:
        identity = Worker.of_this_process(opened.name, "tidegate scheduler")
        loop = opened.schedule_loop(f"scheduler {identity.worker_id}")
        if once:
            opened.context.control_id()
            with translated("scheduling"), opened.context.plane.connect() as control:
                done = loop.scheduler.run_once(control)
            if as_json:
                print_json(asdict(done))
            else:
                print_line(
                    f"{done.queued} queued, {done.coalesced} coalesced, {done.missed} missed, "
                    f"{done.disabled} disabled, {done.released} set free"
                )
            return
        with Shutdown(lambda _: 0):
            opened.context.control_id()
            loop.start()
            if not as_json:
                many = len(opened.scheduled)
                print_line(
                    f"scheduler {identity.worker_id} sees to {many} schedule"
                    f"{'' if many == 1 else 's'} of {opened.name}"
                )
            threading.Event().wait()
