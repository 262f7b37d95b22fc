"""The server process: where it listens, what runs beside it, and how it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn

from tidegate.admin.tokens import ApiTokens
from tidegate.core.errors import BusyError, UsageError
from tidegate.core.log import log
from tidegate.jobs.shutdown import PATIENCE_SECONDS, SIGNALS
from tidegate.project import Project
from tidegate.service.app import create_app
from tidegate.service.connections import Connections
from tidegate.service.middleware import LARGEST_HEAD, is_loopback

_GRACE_SECONDS = 1


class Server(uvicorn.Server):
    """uvicorn's server, which is gone within two seconds of being told, whatever it is at."""

    def __init__(
        self, project: Project, listening: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        serve = project.settings.serve
        self.connections = Connections(
            serve.max_connections, serve.max_connections_per_address, tls
        )
        super().__init__(
            uvicorn.Config(
                create_app(project),
                # h11 bounds heads and trailers alike, and ignores what trailers say.
                http=cast(Any, self.connections.protocol),
                h11_max_incomplete_event_size=LARGEST_HEAD,
                ws="none",
                log_config=None,
                # Whoever sends no HTTP must not fill the log.
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=[("X-Content-Type-Options", "nosniff")],
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._listening = listening

    def run_here(self, ready: Callable[[], None]) -> None:
        """Serve until told to stop."""
        self._ready = ready
        self.run(sockets=[self._listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(1)
        self.should_exit = True
        log.warning("told_to_stop", signal=signal.Signals(sig).name)
        # A request that sits in a database must not keep the process.
        timer = threading.Timer(PATIENCE_SECONDS - 0.1, _leave_behind)
        timer.daemon = True
        timer.start()


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes requests, or an error that says what is in the way."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except socket.gaierror:
        raise UsageError(f"there is no host {host}", "give an address of this machine") from None
    except PermissionError:
        raise UsageError(
            f"port {port} may not be used by this user", "choose one above 1023 with --port"
        ) from None
    except OSError as error:
        raise BusyError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            "choose another with --port, or 0 for any that is free",
        ) from None
    listening.setblocking(False)
    return listening


def tls_context(cert: str | None, key: str | None, folder: Path) -> ssl.SSLContext | None:
    """What HTTPS is spoken with; None where there is no certificate."""
    if cert is None:
        if key is not None:
            raise UsageError("there is a key for TLS and no certificate", "give --tls-cert too")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(folder / cert, None if key is None else folder / key, password="")
    except FileNotFoundError:
        raise UsageError(
            f"there is no file {cert if key is None else f'{cert} or {key}'}",
            "serve.tls_cert and serve.tls_key name files, from the project's folder on",
        ) from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        raise UsageError(
            f"{cert} cannot be used for TLS: {reason}",
            "a certificate and its key without a password are needed, both as PEM",
        ) from None
    return context


def address(listening: socket.socket, *, tls: bool = False) -> str:
    """Where to ask, as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http{'s' * tls}://{f'[{host}]' if ':' in host else host}:{port}"


def refuse_open_door(project: Project, host: str) -> bool:
    """Whether tokens are needed; raises where others could come in without one."""
    context = project.context
    context.control_id()
    with context.plane.connect() as control:
        needed = ApiTokens(context.plane).any_exists(control, project.name)
    if not needed and not is_loopback(host):
        raise UsageError(
            f"{host} is open to other machines, and the project has no token: anybody could enter",
            "make one first, then start again: tidegate token create NAME --scope submit",
        )
    return needed


def _leave_behind() -> None:
    log.warning("leaves_requests_behind", after_seconds=PATIENCE_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)
