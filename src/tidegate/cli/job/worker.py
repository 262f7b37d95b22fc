"""`tidegate worker`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line


def worker(
    once: Annotated[
        bool, typer.Option("--once", help="Work one job, then end; 0 when there was none.")
    ] = False,
    burst: Annotated[
        bool, typer.Option("--burst", help="Work until the queue is empty, then end.")
    ] = False,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="How many jobs are worked side by side.")
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(help="Take only jobs of these kinds, such as sync,vacuum; default: all."),
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Take jobs from the queue and work them, until told to stop.

    Ends within two seconds of SIGTERM or Ctrl-C: loads go back to the queue. The exit code is 1
    when a job failed or work was given back, else 0.

    Example: tidegate worker --concurrency 4 --kinds sync
    """
    from tidegate.jobs.shutdown import Shutdown

    opened = open_project(project, profile)
    chosen = [kind.strip() for kind in (kinds or "").split(",") if kind.strip()]
    made = opened.worker(kinds=chosen, concurrency=concurrency, once=once, burst=burst)
    identity = made.heartbeat.worker
    sweeping = opened.sweeper(f"sweeper of {identity.worker_id}").loop()

    def ready() -> None:
        if once or burst:
            # What the dead have left counts as work that is there.
            sweeping.run_once()
        sweeping.start()
        if not as_json:
            print_line(
                f"worker {identity.worker_id} takes {', '.join(identity.kinds)} of "
                f"{opened.name}, {identity.concurrency} at a time"
            )

    with Shutdown(made.leave):
        tally = made.run(ready)
        sweeping.stop()
        opened.close()
    if as_json:
        print_json(
            {
                "worker": identity.worker_id,
                "done": tally.done,
                "failed": tally.failed,
                "retried": tally.retried,
                "stale": tally.stale,
            }
        )
    else:
        print_line(
            f"worker {identity.worker_id}: {tally.done} done, {tally.failed} failed, "
            f"{tally.retried} to be retried, {tally.stale} taken over by others"
        )
    raise typer.Exit(tally.exit_code)
