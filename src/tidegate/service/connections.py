"""Connections as they come in: so many at most, and none is kept for a client that does nothing.

uvicorn's own protocol over h11 reads HTTP, bounded by its settings. This stands between it and the
socket and knows nothing of HTTP but when a request is worked on, which the door says.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import resource
import socket
import ssl
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate.service import problems as kinds
from tidegate.service.problems import PROBLEM_JSON, RETRY_SECONDS, HttpProblem, render

REQUEST_SECONDS = 10.0
"""from the connection, or the end of an answer, to the end of the next request's head"""
WRITE_SECONDS = 20.0
"""for a client to read what is waiting for it"""
_FILES_FOR_THE_REST = 100


class Connections:
    """All that are open, and how many there may be."""

    def __init__(self, most: int, per_address: int, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._most = min(most, _open_files(most + _FILES_FOR_THE_REST) - _FILES_FOR_THE_REST)
        self._per_address = per_address
        self._counts: Counter[str] = Counter()
        self._open = 0

    def protocol(self, **given: Any) -> asyncio.Protocol:
        """What a server makes for each connection."""
        connection = Connection(self, **given)
        return connection if self._tls is None else _Securing(connection, self._tls)

    def enter(self, address: str) -> bool:
        """Take a place; False when there is none."""
        if self._open >= self._most or self._counts[address] >= self._per_address:
            return False
        self._open += 1
        self._counts[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._open -= 1
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


class Connection(asyncio.Protocol):
    """One of them, with a deadline for whatever its client has to do next."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        given["app_state"] = {**given["app_state"], "connection": self}
        self._inner = H11Protocol(**given)
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._address: str | None = None
        self._transport: asyncio.Transport | None = None
        self._worked_on = 0
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def enter(self, transport: asyncio.Transport) -> bool:
        """Take a place for the client at the other end; False when there is none."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if self._connections.enter(address):
            self._address = address
            return True
        return False

    def leave(self) -> None:
        if self._address is not None:
            self._connections.leave(self._address)
            self._address = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if self._address is None and not self.enter(transport):
            transport.write(_NO_PLACE)
            self._end()
            return
        self._inner.connection_made(transport)
        # Anything unread counts as waiting, so that every write has its deadline.
        transport.set_write_buffer_limits(high=1, low=0)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        if self._address is None:
            return
        try:
            self._inner.data_received(data)
        except h11.ProtocolError:
            # What is no HTTP any more came while its answer was on the way.
            self._abort()

    def pause_writing(self) -> None:
        self._await_reader()
        if self._address is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self._address is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        if self._address is not None:
            self.leave()
            self._inner.connection_lost(exc)

    def work(self) -> None:
        """A request is worked on: its client may wait for as long as that takes."""
        self._worked_on += 1
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def rest(self) -> None:
        """It has its answer; it is the client's turn again."""
        self._worked_on -= 1
        if not self._worked_on and self._address is not None:
            self._await_request()

    def _await_request(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self._loop.call_later(REQUEST_SECONDS, self._end)

    def _await_reader(self) -> None:
        if self._writing is None:
            self._writing = self._loop.call_later(WRITE_SECONDS, self._abort)

    def _end(self) -> None:
        """Hang up, and not without what is still to be sent."""
        assert self._transport is not None
        self._await_reader()
        self._transport.close()

    def _abort(self) -> None:
        """Hang up at once; the system too forgets what was not read."""
        assert self._transport is not None
        with suppress(OSError, AttributeError):
            own = self._transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class _Securing(asyncio.Protocol):
    """A connection before its handshake: it has a place and a deadline already.

    A server that speaks TLS by itself tells of a connection only when the handshake is over.
    """

    def __init__(self, connection: Connection, tls: ssl.SSLContext) -> None:
        self._connection = connection
        self._tls = tls
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._connection.enter(transport):
            accepted = transport.get_extra_info("socket").dup()
            self._task = asyncio.create_task(self._shake_hands(accepted))
        # Nothing was read yet; the other end sees only what is done to the copy.
        transport.abort()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=REQUEST_SECONDS,
                ssl_shutdown_timeout=REQUEST_SECONDS,
            )
        except OSError:
            # Those that made no connection in the end have lost none.
            accepted.close()
            self._connection.leave()


def _open_files(wanted: int) -> int:
    """How many files this process may open; the limit is raised where that is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        return raised
    return soft


def _no_place() -> bytes:
    """The whole answer: no request is waited for."""
    kind = kinds.TOO_MANY_CONNECTIONS
    body = render(HttpProblem(kind, kind.text).document(""))
    head = (
        f"HTTP/1.1 {kind.status} {kind.title}\r\ncontent-type: {PROBLEM_JSON}\r\n"
        f"content-length: {len(body)}\r\nretry-after: {RETRY_SECONDS}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


_NO_PLACE = _no_place()


FREE = 10
SECONDS_EACH = 1.0
NOTED_SECONDS = 600.0
"""so often is an address in the audit at most"""
MOST_NOTED = 50
"""so many addresses within that time"""
_MOST = 10_000


@dataclass(slots=True)
class _Noted:
    due_at: float = 0.0
    attempts: int = 0


@dataclass(slots=True)
class Guesses:
    """The failed attempts of each address, as far as they matter still."""

    _paid_until: dict[str, float] = field(default_factory=dict)
    _noted: dict[str, _Noted] = field(default_factory=dict)
    _noted_since: float = 0.0
    _noted_count: int = 0

    def check(self, client: str | None) -> None:
        """Problem when there were too many of late."""
        paid = self._paid_until.get(_address(client), 0.0)
        wait = paid - time.monotonic() - FREE * SECONDS_EACH
        if wait > 0:
            raise HttpProblem(
                kinds.TOO_MANY_GUESSES,
                "too many requests with a wrong token came from this address",
                headers={"Retry-After": str(math.ceil(wait)), "Connection": "close"},
            )

    def charge(self, client: str | None) -> None:
        """One more."""
        now, address = time.monotonic(), _address(client)
        paid = max(self._paid_until.get(address, 0.0), now)
        if len(self._paid_until) >= _MOST:
            kept = {one: until for one, until in self._paid_until.items() if until > now}
            self._paid_until = kept if len(kept) < _MOST else {}
        self._paid_until[address] = paid + SECONDS_EACH

    def count(self, client: str | None) -> int:
        """How many failed attempts are to be written into the audit now; 0 when none is."""
        now, address = time.monotonic(), _address(client)
        if now - self._noted_since > NOTED_SECONDS:
            self._noted_since, self._noted_count = now, 0
        if len(self._noted) >= _MOST:
            self._noted.clear()
        noted = self._noted.setdefault(address, _Noted())
        noted.attempts += 1
        if now < noted.due_at or self._noted_count >= MOST_NOTED:
            return 0
        self._noted_count += 1
        attempts, noted.attempts, noted.due_at = noted.attempts, 0, now + NOTED_SECONDS
        return attempts


def _address(client: str | None) -> str:
    """Whom to count: whoever has one address of IPv6 has 2 ** 64 of them."""
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return ""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
