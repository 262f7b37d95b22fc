"""What the demo shows: colours and a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tidegate.insight.demo import Pair
    from tidegate.runtime.runner import RunReport

STEPS = 6
_WELCOME = """\
Tidegate copies tables from one database to another. It can be killed at any
moment and run again, and the copy is still exactly right. Six steps show it.
"""
_STYLES = {"agree": "green", "as before": "yellow", "DISAGREE": "bold red"}


class DemoScreen:
    """Prints the demo's story."""

    def __init__(self, *, silent: bool = False) -> None:
        self._console = Console(highlight=False, markup=False, quiet=silent, soft_wrap=True)
        self._live = self._console.is_terminal and not silent

    def welcome(self, folder: Path) -> None:
        self.say(_WELCOME, 0)
        self.say("shop       the source: orders, order_items, customers in a Postgres of its own")
        self.say("warehouse  the target: the same tables; e-mail addresses arrive as a hash")
        self.say(f"folder     {folder}, with tidegate.toml and pipelines.py")

    def step(self, number: int, title: str) -> None:
        self.say("", 0)
        self.say(f"{number}/{STEPS}  {title}", 0, style="bold")

    def changes(self, changes: Mapping[str, tuple[int, int]]) -> None:
        parts = [f"{table} +{new} ~{changed}" for table, (new, changed) in changes.items()]
        self.say(f"in the shop: {', '.join(parts)}   (+ new, ~ changed)")

    def run(self, name: str, report: RunReport) -> None:
        self.say(f"run {name}: {_said(report)}")

    def halfway(self, table: str, whole: bool) -> None:
        seen = "every table whole, none half done" if whole else "HALF-DONE WORK"
        self.say(f"{table} is written but not committed; a reader sees {seen}.")

    def without_lake(self) -> None:
        self.say(
            "Iceberg could not be fetched, so there is no lake here. With a network, or with its "
            'files in [spark.conf] "spark.jars", docs/lake.md shows how.'
        )

    def tables(self, pairs: Sequence[Pair], verdicts: Sequence[str]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("  table", no_wrap=True)
        for side in ("shop", "target"):
            table.add_column(f"{side} rows", justify="right", no_wrap=True)
            table.add_column("checksum", no_wrap=True)
        table.add_column("", no_wrap=True)
        for pair, verdict in zip(pairs, verdicts, strict=True):
            table.add_row(
                f"  {pair.table}",
                f"{pair.source.rows:,}",
                pair.source.checksum,
                f"{pair.target.rows:,}",
                pair.target.checksum,
                Text(verdict, style=_STYLES[verdict]),
            )
        self._console.print(table)
        if "as before" in verdicts:
            self.say("as before: not loaded yet, and exactly as it was when the run began")

    def goodbye(self, folder: Path, agree: bool, seconds: float, *, keep: bool) -> None:
        self.say("", 0)
        if agree:
            self.say(f"Everything agrees ({seconds:.0f} s).", 0, style="bold green")
        else:
            self.say("Something DISAGREES: see above. That is a bug.", 0, style="bold red")
        program, at = _program(), shlex.quote(str(folder))
        self.say("", 0)
        state = "its Postgres is running" if keep else "its Postgres starts again by itself"
        self.say(f"Try next ({state}):", 0, style="bold")
        for arguments, why in _NEXT:
            self.say(f"# {why}", style="dim")
            self.say(f"{program} {arguments.replace('FOLDER', at)}")
        self.say("A project of your own:", 0, style="bold")
        self.say(f'{program} init my_project --source "postgresql://user@host/database"')

    def say(self, text: str, indent: int = 2, *, style: str | None = None) -> None:
        self._console.print(" " * indent + text, style=style)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """A spinner while something takes its time."""
        if not self._live:
            yield
            return
        with self._console.status(what):
            yield


_NEXT = (
    ("status -C FOLDER", "where every sync stands"),
    ("watermark show orders -C FOLDER", "how far one has got; each move with who and why"),
    ("verify --all -C FOLDER", "compare source and target"),
    (
        "watermark rewind orders 2026-01-15 --reason 'trying' -C FOLDER",
        "go back in time, and load again: nothing doubles",
    ),
    ("run --all -C FOLDER", "this one in cron, and the copy follows its source"),
    ("db stop -C FOLDER", "stop its Postgres"),
)


def _said(report: RunReport) -> str:
    if report.found_nothing:
        return "ran, found nothing"
    if report.status != "done":
        return report.status
    rows, changed = report.outcome.rows, report.outcome.changed
    return f"{rows:,} rows moved, {changed:,} written"


def _program() -> str:
    """How this command can be called again from here."""
    if shutil.which("tidegate"):
        return "tidegate"
    path = Path(sys.argv[0])
    if path.name != "tidegate":
        return f"{shlex.quote(sys.executable)} -m tidegate.cli.main"
    return shlex.quote(str(path))
