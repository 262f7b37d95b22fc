"""TCP proxies on loopback that cut, or swallow, what goes to a Postgres server."""

from __future__ import annotations

import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

HOST = "127.0.0.1"
_REFUSABLE = {80877103: b"N", 80877104: b"N"}  # SSLRequest, GSSENCRequest
_SIZE = 65536


class Listener(ABC):
    """Accepts connections to a port of its own, and serves each in a thread."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # A thread that waits in accept keeps the port open.
        hang_up(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _connect(self) -> socket.socket:
        return socket.create_connection((HOST, self._upstream_port))

    @abstractmethod
    def _serve(self, client: socket.socket) -> None:
        """Pass on what one client says."""


class Cut(StrEnum):
    """Where the line breaks: the server never sees the commit, or the client never its answer."""

    BEFORE_COMMIT = "before"
    BEFORE_ANSWER = "after"


def is_commit(message: bytes) -> bool:
    """A simple query that is COMMIT, or a statement parsed as that."""
    kind, body = message[:1], message[5:]
    if kind == b"Q":
        return body.rstrip(b"\0; ").strip().upper() == b"COMMIT"
    if kind == b"P":
        return body.split(b"\0")[1].strip(b"; ").upper() == b"COMMIT"
    return False


class Proxy(Listener):
    """Forwards to a Postgres server; cuts the first `times` commits of sessions of one name.

    `skip` of each session's commits are let through before.
    """

    def __init__(
        self,
        port: int,
        cut: Cut,
        application: str,
        times: int = 1,
        *,
        commits: Callable[[bytes], bool] = is_commit,
        skip: int = 0,
    ) -> None:
        self.cuts = 0
        self._commits = commits
        self._skip = skip
        self._cut = cut
        self._application = application.encode()
        self._times = times
        super().__init__(port)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            startup = _read_startup(client)
            with self._connect() as server:
                server.sendall(startup)
                silenced = threading.Event()
                answers = threading.Thread(
                    target=_pump, args=(server, client, silenced), daemon=True
                )
                answers.start()
                try:
                    self._forward(client, server, self._application in startup, silenced)
                finally:
                    hang_up(client, server)
                answers.join()

    def _forward(
        self,
        client: socket.socket,
        server: socket.socket,
        watched: bool,
        silenced: threading.Event,
    ) -> None:
        """Pass messages on, one by one, until the client leaves or its commit is to be cut."""
        skip = self._skip
        while True:
            message = _read_message(client)
            is_due = watched and self._commits(message)
            if is_due and skip:
                skip, is_due = skip - 1, False
            if is_due and self._take_cut():
                break
            server.sendall(message)
        if self._cut is Cut.BEFORE_ANSWER:
            silenced.set()
            server.sendall(message)
            # What is parsed is executed by what follows, up to Sync.
            while message[:1] not in (b"Q", b"S"):
                message = _read_message(client)
                server.sendall(message)
            # The server has answered, to nobody; only then is the line cut.
            server.shutdown(socket.SHUT_WR)
            while server.recv(_SIZE):
                pass

    def _take_cut(self) -> bool:
        with self._lock:
            if self.cuts >= self._times:
                return False
            self.cuts += 1
            return True


class SilentProxy(Listener):
    """Forwards to a Postgres server until it falls silent: it swallows all, and closes nothing.

    To its client such a line looks like a half-open one: what it sends is taken, no answer comes.
    """

    def __init__(self, port: int) -> None:
        self._swallowing = False
        self._lines: list[threading.Event] = []
        super().__init__(port)

    def fall_silent(self, *, for_new_lines: bool) -> None:
        """Swallow what the lines there are carry, and perhaps what later ones will."""
        with self._lock:
            self._swallowing = for_new_lines
            for silenced in self._lines:
                silenced.set()

    def speak_again(self) -> None:
        """New lines are forwarded; those that fell silent stay so."""
        with self._lock:
            self._swallowing = False

    def _serve(self, client: socket.socket) -> None:
        silenced = threading.Event()
        with self._lock:
            self._lines.append(silenced)
            if self._swallowing:
                silenced.set()
        server = self._connect()
        for source, sink in ((client, server), (server, client)):
            threading.Thread(
                target=_forward_until, args=(source, sink, silenced), daemon=True
            ).start()


def hang_up(*lines: socket.socket) -> None:
    for line in lines:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def _pump(server: socket.socket, client: socket.socket, silenced: threading.Event) -> None:
    with suppress(OSError):
        while (block := server.recv(_SIZE)) and not silenced.is_set():
            client.sendall(block)


def _forward_until(source: socket.socket, sink: socket.socket, silenced: threading.Event) -> None:
    """Pass on what comes, or swallow it; a line that is closed is closed on both sides."""
    with suppress(OSError):
        while block := source.recv(_SIZE):
            if not silenced.is_set():
                sink.sendall(block)
    if not silenced.is_set():
        hang_up(source, sink)


def _read_startup(client: socket.socket) -> bytes:
    while True:
        head = _read(client, 8)
        length, code = struct.unpack("!ii", head)
        if code in _REFUSABLE:
            client.sendall(_REFUSABLE[code])
            continue
        return head + _read(client, length - 8)


def _read_message(client: socket.socket) -> bytes:
    head = _read(client, 5)
    (length,) = struct.unpack("!i", head[1:])
    return head + _read(client, length - 4)


def _read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        block = line.recv(size - len(data))
        if not block:
            raise EOFError
        data += block
    return data
