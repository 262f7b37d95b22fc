"""Is the engine there that is to maintain the lakes?"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from tidegate.errors import TidegateError
from tidegate.lake.thrift_engine import ThriftEngine
from tidegate.model.check import Check, fail, ok
from tidegate.pipeline.context import Context
from tidegate.pipeline.maintenance_engine import engine_of

_NAME = "maintenance engine"
_SECONDS = 15.0
_CONNECT_PORT = 15002


def check_engine(context: Context) -> list[Check]:
    """Look for the engine of its own that maintenance has, if it has one."""
    address = context.settings.maintenance.engine
    if address is None:
        return []
    try:
        engine = engine_of(context)
        if isinstance(engine, ThriftEngine):
            engine.check(_SECONDS)
            return [ok(_NAME, f"{engine.address} opens sessions")]
    except TidegateError as error:
        return [fail(_NAME, error.message, error.hint or "correct maintenance.engine")]
    return [_check_connect(address)]


def _check_connect(address: str) -> Check:
    """What comes after the host may be a token."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or _CONNECT_PORT
    except ValueError:
        return fail(_NAME, "its address cannot be read", "write sc://host:15002")
    where = f"sc://{host}:{port}"
    try:
        socket.create_connection((host, port), _SECONDS).close()
    except OSError as error:
        fix = "start the Spark Connect server, or correct maintenance.engine"
        return fail(_NAME, f"{where} cannot be reached: {error.strerror or error}", fix)
    return ok(_NAME, f"{where} can be reached")
