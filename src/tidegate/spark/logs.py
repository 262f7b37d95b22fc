"""What Spark's Python side logs goes to a file, as what its JVM logs does."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

# The first two print every failed expression on the terminal, with its stack; the others speak up
# when a connection breaks.
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j", "pyspark")
_BYTES = 10_000_000
_FILES = 3


def keep_off_the_terminal(path: Path) -> None:
    """Send the loggers of pyspark and py4j to a file of bounded size."""
    from pyspark.logger import PySparkLogger

    file = RotatingFileHandler(
        path, maxBytes=_BYTES, backupCount=_FILES, encoding="utf-8", delay=True
    )
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in _LOGGERS:
        # Made as pyspark makes it, or pyspark would make its own over it.
        context = name.endswith("ContextLogger")
        logger = PySparkLogger.getLogger(name) if context else logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logging.Logger.addHandler(logger, file)
        logger.propagate = False
