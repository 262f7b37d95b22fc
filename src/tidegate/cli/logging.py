"""Logs go to standard error as one line each, plain or JSON."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO, cast


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

    from tidegate.log import LOGGER

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
