"""Tidegate prove."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.cli.options import (
    HERE,
    AllSyncs,
    AsJson,
    Profile,
    ProjectFolder,
    choose_syncs,
    given_overrides,
    open_project,
)
from tidegate.cli.output import print_error, print_json, print_line
from tidegate.core.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.project import Project
    from tidegate.testing.report import Proof


def prove(
    names: Annotated[list[str] | None, typer.Argument(help="Syncs to prove.")] = None,
    all_: AllSyncs = False,
    rows: Annotated[int, typer.Option("--rows", help="Rows to take from the source.")] = 1_000,
    seed: Annotated[
        int, typer.Option("--seed", help="Chooses rows, changes and where each kill falls.")
    ] = 0,
    point: Annotated[
        list[str] | None,
        typer.Option("--point", help="Kill at this point only; none for no kill at all."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Take only the row with this key; parts joined by commas."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML for CI.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the databases, to look into them.")
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Kill the real pipeline at every commit point, on a copy, and compare with a clean pass.

    Example: tidegate prove orders --junit prove.xml
    """
    from tidegate.testing.prove import ProofOptions, prove_sync
    from tidegate.testing.report import write_junit

    opened = open_project(project, profile)
    options = ProofOptions(rows, seed, tuple(point or ()), tuple(key or ()), keep)
    proofs: list[Proof] = []
    documents: list[Any] = []
    worst = 0
    for name in choose_syncs(names or [], all_, list(opened.syncs)):
        try:
            with ProveScreen(silent=as_json) as screen:
                proof = prove_sync(opened, name, options, screen, given_overrides())
        except TidegateError as error:
            worst = error.exit_code if worst in (0, error.exit_code) else 1
            documents.append({"sync": name, "error": error.message, "hint": error.hint})
            if not as_json:
                print_error(TidegateError(f"{name}: {error.message}", error.hint), as_json=False)
            continue
        worst = worst if proof.proved else 1
        proofs.append(proof)
        documents.append(_document(proof))
        if not as_json:
            for line in _lines(proof, opened):
                print_line(line)
    if junit is not None:
        write_junit(junit, proofs)
    if as_json:
        print_json(documents)
    opened.close()
    if worst:
        raise typer.Exit(worst)


def _lines(proof: Proof, project: Project) -> list[str]:
    lines = [f"note: {note}" for note in proof.notes]
    found = proof.finding
    if found is not None:
        shown = "; ".join(found.rows)
        more = found.total_rows - len(found.rows)
        lines += [
            f"{proof.sync}: {found.cause.value}",
            f"  {found.text}",
        ]
        if found.total_rows:
            few = f"  smallest case: {found.total_rows} row{'s'[: found.total_rows != 1]}: {shown}"
            lines.append(few + (f" and {more} more" if more else ""))
        lines += [
            f"  fix: {found.hint}",
            f"  again: {found.command}",
        ]
    if proof.kept:
        url = project.context.databases.embedded.url
        lines += ["kept on the embedded server (tidegate db stop ends it), for psql:"]
        lines += [f"  {url(name)}" for name in proof.kept]
    if not proof.proved and not proof.kills:
        return [*lines, f"{proof.sync}: not proved"]
    return [*lines, f"{proof.sync}: {proof.summary}"]


def _document(proof: Proof) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **asdict(proof),
        "proved": proof.proved,
        "killed": proof.killed,
        "summary": proof.summary,
        "seconds": round(proof.seconds, 1),
    }


class ProveScreen:
    """Told by a proof how far it is."""

    def __init__(self, *, silent: bool = False) -> None:
        self._lines = not silent and not sys.stdout.isatty()
        self._bar: Progress | None = None
        if not silent and not self._lines:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[now]}", markup=False),
                console=Console(highlight=False),
                transient=True,
            )
        self._task = None if self._bar is None else self._bar.add_task("", total=None, now="")

    def begin(self, text: str, total: int | None = None) -> None:
        """A new part of the work; `total` is how many advances it takes, if that is known."""
        if self._lines:
            print_line(text)
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, description=text, total=total, now="")

    def advance(self, text: str) -> None:
        if self._lines:
            print_line(f"  {text}")
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, now=text)

    def __enter__(self) -> ProveScreen:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
