"""The `tidegate` command: one module per command or noun, nothing heavy imported before use."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tidegate.cli import (
    db as db_module,
)
from tidegate.cli import (
    demo as demo_module,
)
from tidegate.cli import (
    doctor as doctor_module,
)
from tidegate.cli import (
    event as event_module,
)
from tidegate.cli import (
    init as init_module,
)
from tidegate.cli import (
    serve as serve_module,
)
from tidegate.cli import (
    status as status_module,
)
from tidegate.cli import (
    table as table_module,
)
from tidegate.cli import (
    token as token_module,
)
from tidegate.cli import (
    up as up_module,
)
from tidegate.cli.job import (
    drain as drain_module,
)
from tidegate.cli.job import (
    history as history_module,
)
from tidegate.cli.job import (
    job as job_module,
)
from tidegate.cli.job import (
    notify as notify_module,
)
from tidegate.cli.job import (
    schedule as schedule_module,
)
from tidegate.cli.job import (
    scheduler as scheduler_module,
)
from tidegate.cli.job import (
    state as state_module,
)
from tidegate.cli.job import (
    sweeper as sweeper_module,
)
from tidegate.cli.job import (
    worker as worker_module,
)
from tidegate.cli.options import override_settings
from tidegate.cli.output import print_error
from tidegate.cli.sync import (
    adopt as adopt_module,
)
from tidegate.cli.sync import (
    backfill as backfill_module,
)
from tidegate.cli.sync import (
    marker as marker_module,
)
from tidegate.cli.sync import (
    plan as plan_module,
)
from tidegate.cli.sync import (
    prove as prove_module,
)
from tidegate.cli.sync import (
    remove as remove_module,
)
from tidegate.cli.sync import (
    run as run_module,
)
from tidegate.cli.sync import (
    vacuum as vacuum_module,
)
from tidegate.cli.sync import (
    verify as verify_module,
)
from tidegate.cli.sync import (
    watermark as watermark_module,
)
from tidegate.cli.sync import (
    why as why_module,
)
from tidegate.core.errors import TidegateError
from tidegate.version import __version__

app = typer.Typer(
    name="tidegate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Data pipelines that can be killed anywhere and run again, and still leave the "
    "destination exactly right.",
)
app.command("init")(init_module.init)
app.command("plan")(plan_module.plan)
app.command("doctor")(doctor_module.doctor)
app.command("run")(run_module.run)
app.command("backfill")(backfill_module.backfill)
app.command("status")(status_module.status)
app.command("verify")(verify_module.verify)
app.command("why")(why_module.why)
app.command("prove")(prove_module.prove)
app.command("demo")(demo_module.demo)
app.command("adopt")(adopt_module.adopt)
app.command("vacuum")(vacuum_module.vacuum)
app.command("remove")(remove_module.remove)
app.command("worker")(worker_module.worker)
app.command("sweeper")(sweeper_module.sweeper)
app.command("scheduler")(scheduler_module.scheduler)
app.command("serve")(serve_module.serve)
app.command("up")(up_module.up)
app.add_typer(watermark_module.app, name="watermark")
app.add_typer(marker_module.app, name="marker")
app.add_typer(job_module.app, name="job")
app.add_typer(history_module.app, name="history")
app.add_typer(table_module.app, name="table")
app.add_typer(event_module.app, name="event")
app.add_typer(schedule_module.app, name="schedule")
app.add_typer(drain_module.app, name="drain")
app.add_typer(token_module.app, name="token")
app.add_typer(state_module.app, name="state")
app.add_typer(notify_module.app, name="notify")
app.add_typer(db_module.app, name="db")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidegate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a setting for this command, such as --set spark.master=local[2].",
        ),
    ] = None,
) -> None:
    from tidegate.cli.output import configure

    configure()
    override_settings(settings or [])


def main() -> None:
    """Run the command; an error of ours becomes one message and its exit code."""
    try:
        app()
    except TidegateError as error:
        print_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run again at any time\n")
        sys.exit(130)
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main()
