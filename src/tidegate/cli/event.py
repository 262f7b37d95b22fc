"""`tidegate event`: raw events, and what becomes of them."""

from __future__ import annotations

import typer

from tidegate.cli import event_generate as generate_module
from tidegate.cli import event_retry as retry_module
from tidegate.cli import event_run as run_module
from tidegate.cli import event_status as status_module

app = typer.Typer(
    no_args_is_help=True,
    help="Raw events, and the facts that they become.\n\n"
    "Example: tidegate event generate --count 100000",
)
app.command("generate")(generate_module.generate)
app.command("run")(run_module.run)
app.command("status")(status_module.status)
app.command("retry")(retry_module.retry)
