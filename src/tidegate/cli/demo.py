"""Tidegate demo."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.cli.options import AsJson
from tidegate.cli.output import print_json

if TYPE_CHECKING:
    from tidegate.admin.demo import DemoContent, Pair
    from tidegate.load.runner import RunReport
    from tidegate.project import Project

FOLDER = Path(".tidegate") / "demo"
# The second table of the run is in the middle of its publish: written, not committed.
_POINT = "publish.applied@2"


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", help="Where to make the demo; started afresh each time.")
    ] = FOLDER,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the demo's Postgres running at the end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """See a sync survive being killed, on a small shop in a database of its own.

    Example: tidegate demo
    """
    from tidegate.admin.demo import LAKE_TOML, demo_folder, plain_environment
    from tidegate.config import load_settings
    from tidegate.iceberg.jars import fetch
    from tidegate.project import Project

    started = time.monotonic()
    screen = DemoScreen(silent=as_json)
    screen.welcome(folder)
    with screen.busy("looking for Iceberg"):
        has_lake = fetch()
    with demo_folder(folder, LAKE_TOML if has_lake else "") as root:
        project = Project(load_settings(root, environ=plain_environment()))
        try:
            with project:
                story = DemoStory(project, screen)
                story.tell()
        finally:
            if not keep:
                project.context.databases.embedded.stop()
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                "agree": story.agree,
                "seconds": round(seconds, 1),
                "folder": str(folder),
                "steps": story.steps,
            }
        )
    screen.goodbye(folder, story.agree, seconds, keep=keep)
    if not story.agree:
        raise typer.Exit(1)


@dataclass(slots=True)
class DemoStory:
    """The six steps; `agree` stays True while every table is what it must be."""

    project: Project
    screen: DemoScreen
    agree: bool = True
    steps: list[dict[str, Any]] = field(default_factory=list)
    _before: dict[str, DemoContent] = field(default_factory=dict)

    def tell(self) -> None:
        from tidegate.admin.demo import change_shop, make_shop

        context = self.project.context
        with self.screen.busy("starting a Postgres of its own, opening the shop"):
            make_shop(context)

        self.screen.step(1, "First sync: the warehouse is empty, everything is copied.")
        self._run()
        self._compare("first sync")

        changes = change_shop(context, 1)
        self.screen.step(2, "The shop sells on. Sync again: only what is new or changed moves.")
        self.screen.changes(changes)
        self._run()
        self._compare("changed and synced again")

        changes = change_shop(context, 2)
        self.screen.step(3, "The shop sells on. This time the run is killed halfway (kill -9).")
        self.screen.changes(changes)
        self._kill()
        self._compare("killed halfway", killed=True)

        self.screen.step(4, "Run again, with the same command. There is nothing to clean up.")
        self._run()
        self._compare("run again")

        self.screen.step(5, "Run once more: nothing has changed, so nothing is done.")
        self._run(expect_nothing=True)
        self._compare("nothing to do")

        self.screen.step(6, "The same into a lake, killed when its rows are in and not recorded.")
        if any(sync.lake_target for sync in self.project.syncs.values()):
            self._lake()
        else:
            self.screen.without_lake()

    def _lake(self) -> None:
        from tidegate.admin.demo import LAKE_SYNC, change_shop, kill_run

        settings = self.project.settings
        self._run_one(LAKE_SYNC)
        self._compare_lake("into the lake")
        self.screen.changes(change_shop(self.project.context, 3))
        with self.screen.busy(f"tidegate run {LAKE_SYNC}, in a process of its own"):
            pid = kill_run(
                settings.root,
                [LAKE_SYNC],
                "branch.forwarded",
                lambda: None,
                settings.state_directory / "logs" / "killed-run.log",
            )
        self.screen.say(f"kill -9 {pid}: the process is gone. Run again:")
        report = self._run_one(LAKE_SYNC)
        self.agree = self.agree and report.found_nothing
        self._compare_lake("into the lake, killed and run again")

    def _run_one(self, name: str) -> RunReport:
        with self.screen.busy(f"tidegate run {name}"):
            report = self.project.run(name)
        self.screen.run(name, report)
        self.agree = self.agree and report.status == "done"
        return report

    def _compare_lake(self, title: str) -> None:
        from tidegate.admin.demo import compare_lake

        with self.screen.busy("reading the lake"):
            pair = compare_lake(self.project.context)
        self._show(title, [pair], ["agree" if pair.agrees else "DISAGREE"])

    def _run(self, *, expect_nothing: bool = False) -> None:
        for name, sync in self.project.syncs.items():
            if sync.lake_target:
                continue
            with self.screen.busy(f"tidegate run {name}"):
                report = self.project.run(name)
            self.screen.run(name, report)
            self.agree = self.agree and report.status == "done"
            if expect_nothing:
                self.agree = self.agree and report.found_nothing

    def _kill(self) -> None:
        from tidegate.admin.demo import kill_run

        settings = self.project.settings
        with self.screen.busy("tidegate run --all, in a process of its own"):
            pid = kill_run(
                settings.root,
                ["--all", "--concurrency", "1"],
                _POINT,
                self._look,
                settings.state_directory / "logs" / "killed-run.log",
            )
        self.screen.say(f"kill -9 {pid}: the process is gone. The tables after it:")

    def _look(self) -> None:
        """Read the warehouse while the publish stands open, as any reader would."""
        from tidegate.admin.demo import compare_tables

        pairs = compare_tables(self.project.context)
        whole = all(pair.agrees or self._is_as_before(pair) for pair in pairs)
        self.agree = self.agree and whole
        halfway = list(self.project.syncs)[1]
        self.screen.halfway(halfway, whole)

    def _compare(self, title: str, *, killed: bool = False) -> None:
        from tidegate.admin.demo import compare_tables

        pairs = compare_tables(self.project.context)
        verdicts = [self._verdict(pair, killed=killed) for pair in pairs]
        self._show(title, pairs, verdicts)
        self._before = {pair.table: pair.target for pair in pairs}

    def _show(self, title: str, pairs: list[Pair], verdicts: list[str]) -> None:
        self.agree = self.agree and "DISAGREE" not in verdicts
        self.screen.tables(pairs, verdicts)
        self.steps.append(
            {
                "step": title,
                "tables": [
                    {
                        "table": pair.table,
                        "source_rows": pair.source.rows,
                        "source_checksum": pair.source.checksum,
                        "target_rows": pair.target.rows,
                        "target_checksum": pair.target.checksum,
                        "verdict": verdict,
                    }
                    for pair, verdict in zip(pairs, verdicts, strict=True)
                ],
            }
        )

    def _verdict(self, pair: Pair, *, killed: bool) -> str:
        if pair.agrees:
            return "agree"
        # After a kill a table is either done or untouched; anything in between is wrong.
        return "as before" if killed and self._is_as_before(pair) else "DISAGREE"

    def _is_as_before(self, pair: Pair) -> bool:
        return self._before.get(pair.table) == pair.target


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
            'files in [spark.conf] "spark.jars", docs/guides/lake.md shows how.'
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
