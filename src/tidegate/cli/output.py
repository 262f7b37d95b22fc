"""Tables, JSON, errors, times, log lines."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from tidegate.core.errors import TidegateError


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


def span(seconds: float) -> str:
    """A length of time in the unit that suits it.

    >>> span(5400)
    '90 min'
    """
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def moment(at: datetime | None) -> str:
    """A moment, which is always shown in UTC."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Say what was being done when the database refused."""
    import psycopg

    from tidegate.postgres.connection import translate

    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from error


class _StandardError:
    """Where nobody reads it any more, what is said is lost, and nothing else: work goes on."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


class _Line(logging.Formatter):
    """Time and level before the event; a command prints its error itself, so no traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        return f"timestamp={at!r} level={record.levelname.lower()!r} {record.getMessage()}"


class _Json(logging.Formatter):
    """The parts of an event as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            **getattr(record, "tidegate", {"event": record.getMessage()}),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def configure(*, as_json: bool = False) -> None:
    """Set up our logger for a command, and structlog for the user's own code in it."""
    import structlog

    from tidegate.core.log import LOGGER

    handler = logging.StreamHandler(cast(TextIO, _StandardError()))
    handler.setFormatter(_Json() if as_json else _Line())
    logger = logging.getLogger(LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer()
            if as_json
            else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, _StandardError())),
    )
