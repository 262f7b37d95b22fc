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
_line = structlog.processors.KeyValueRenderer(key_order=["event"])


def _render(logger: WrappedLogger, method: str, event: EventDict) -> tuple[Any, dict[str, Any]]:
    """One line per event; the exception is left to the handlers."""
    exception = event.pop("exc_info", None)
    return (_line(logger, method, event),), {"exc_info": exception}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger(LOGGER),
    processors=[structlog.stdlib.filter_by_level, _render],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
    cache_logger_on_first_use=False,
)
