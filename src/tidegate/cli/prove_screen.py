"""What `tidegate prove` shows meanwhile: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.cli.output import print_line


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
