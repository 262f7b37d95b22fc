"""Logs go to standard error as one plain line each."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TextIO, cast


class _StandardError:
    """Where nobody reads it any more, what is said is lost, and nothing else: work goes on."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def configure() -> None:
    """Set up structlog for a command."""
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, _StandardError())),
    )
