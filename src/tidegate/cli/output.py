"""What the command line prints: tables for people, JSON for programs, errors for both."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidegate.errors import TidegateError


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n")
    # Whoever starts a service waits for it to say where it is.
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """A table that is plain text when standard output is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = ["" if cell is None else cell for cell in row]
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in cells))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200)
    console.print(table)


def print_line(text: str) -> None:
    """One line of progress or result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on a terminal that something is going on; lines printed meanwhile stay above it."""
    if not sys.stdout.isatty():
        yield
        return
    from rich.console import Console

    with Console().status(text):
        yield


def print_error(error: TidegateError, *, as_json: bool) -> None:
    """What happened, and what to do, on standard error."""
    if as_json:
        document = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        return
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"  fix: {error.hint}\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
