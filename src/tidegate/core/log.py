"""What the library has to say, through the standard library's logging under the name `tidegate`.

Structlog's own default prints to standard output, which may be the data of whoever uses the
library, and its configuration is the application's. So our logger has a chain of its own, and
where nothing is set up a warning goes to standard error.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

LOGGER = "tidegate"
logged_with = structlog.contextvars.bound_contextvars
"""within it every line says this too"""
_line = structlog.processors.KeyValueRenderer(key_order=["event"])


def _render(logger: WrappedLogger, method: str, event: EventDict) -> tuple[Any, dict[str, Any]]:
    """One line per event; the exception is left to the handlers, as are its parts."""
    exception = event.pop("exc_info", None)
    parts = {"tidegate": dict(event)}
    return (_line(logger, method, event),), {"exc_info": exception, "extra": parts}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger(LOGGER),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.contextvars.merge_contextvars,
        _render,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
    cache_logger_on_first_use=False,
)
