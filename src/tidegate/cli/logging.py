"""Logs go to standard error as one plain line each."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime


class _Line(logging.Formatter):
    """Time and level before the event; a command prints its error itself, so no traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        return f"timestamp={at!r} level={record.levelname.lower()!r} {record.getMessage()}"


def configure() -> None:
    """Set up our logger for a command, and structlog for the user's own code in it."""
    import structlog

    from tidegate.log import LOGGER

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    logger = logging.getLogger(LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
