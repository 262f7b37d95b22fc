"""`tidegate scheduler`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line

if TYPE_CHECKING:
    from tidegate.admin.state import StateKeeper

_PATIENCE_SECONDS = 60.0


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
    from tidegate.admin.state import StateKeeper
    from tidegate.cli.output import translated
    from tidegate.jobs.notifier import Notifier
    from tidegate.jobs.shutdown import PATIENCE_SECONDS, SIGNALS, Shutdown
    from tidegate.jobs.worker_records import WorkerIdentity

    with open_project(project, profile) as opened:
        identity = WorkerIdentity.of_this_process(opened.name, "tidegate scheduler")
        made = opened.scheduler(f"scheduler {identity.worker_id}")
        path = opened.settings.state_file
        keeper = None if path is None else StateKeeper(opened.context, path)
        if once:
            opened.context.control_id()
            with translated("scheduling"), opened.context.plane.connect() as control:
                done = made.run_once(control)
            if as_json:
                print_json(asdict(done))
            else:
                print_line(
                    f"{done.queued} queued, {done.coalesced} coalesced, {done.missed} missed, "
                    f"{done.disabled} disabled, {done.released} set free"
                )
            return

        def leave(_: str) -> int:
            if keeper is not None:
                keeper.dump()
            return 0

        # A file of many jobs takes longer than anything else a scheduler has to see to.
        patience = _PATIENCE_SECONDS if keeper is not None else PATIENCE_SECONDS
        with (
            Shutdown(leave, patience_seconds=patience, signals=(*SIGNALS, signal.SIGQUIT)),
            _dumped_at_the_end(keeper),
        ):
            opened.context.control_id()
            if keeper is not None:
                # Before the first look, which would fill the schedules.
                keeper.load_on_start()
            made.loop().start()
            Notifier(opened.context).loop().start()
            if not as_json:
                many = len(opened.scheduled)
                print_line(
                    f"scheduler {identity.worker_id} sees to {many} schedule"
                    f"{'' if many == 1 else 's'} of {opened.name}"
                )
            threading.Event().wait()


@contextmanager
def _dumped_at_the_end(keeper: StateKeeper | None) -> Iterator[None]:
    """Whatever ends the work, the file is written."""
    try:
        yield
    finally:
        if keeper is not None:
            keeper.dump()
