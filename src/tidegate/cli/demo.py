"""`tidegate demo`: a shop is synced, changed, synced again, killed halfway and synced again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import AsJson
from tidegate.cli.output import print_json

if TYPE_CHECKING:
    from tidegate.cli.demo_screen import DemoScreen
    from tidegate.insight.demo import Content, Pair
    from tidegate.project import Project
    from tidegate.runtime.runner import RunReport

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
    from tidegate.cli.demo_screen import DemoScreen
    from tidegate.insight.demo import demo_folder
    from tidegate.insight.demo_lake import LAKE_TOML
    from tidegate.insight.killed_run import plain_environment
    from tidegate.lake.fetching import fetch
    from tidegate.project import Project
    from tidegate.settings import load_settings

    started = time.monotonic()
    screen = DemoScreen(silent=as_json)
    screen.welcome(folder)
    with screen.busy("looking for Iceberg"):
        has_lake = fetch()
    with demo_folder(folder, LAKE_TOML if has_lake else "") as root:
        project = Project(load_settings(root, environ=plain_environment()))
        try:
            with project:
                story = Story(project, screen)
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
class Story:
    """The six steps; `agree` stays True while every table is what it must be."""

    project: Project
    screen: DemoScreen
    agree: bool = True
    steps: list[dict[str, Any]] = field(default_factory=list)
    _before: dict[str, Content] = field(default_factory=dict)

    def tell(self) -> None:
        from tidegate.insight.demo import change_shop, make_shop

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
        from tidegate.insight.demo import change_shop
        from tidegate.insight.demo_lake import LAKE_SYNC
        from tidegate.insight.killed_run import kill_run

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
        from tidegate.insight.demo_lake import compare_lake

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
        from tidegate.insight.killed_run import kill_run

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
        from tidegate.insight.demo import compare_tables

        pairs = compare_tables(self.project.context)
        whole = all(pair.agrees or self._is_as_before(pair) for pair in pairs)
        self.agree = self.agree and whole
        halfway = list(self.project.syncs)[1]
        self.screen.halfway(halfway, whole)

    def _compare(self, title: str, *, killed: bool = False) -> None:
        from tidegate.insight.demo import compare_tables

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
