"""A line to a server on loopback that can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from acceptance.proxy import Listener, hang_up


class Relay(Listener):
    """Forwards to a port, and knows which connections are open."""

    def __init__(self, port: int) -> None:
        self._lines: set[socket.socket] = set()
        super().__init__(port)

    @property
    def open(self) -> int:
        with self._lock:
            return len(self._lines)

    def cut(self) -> None:
        """End all connections, as a network would."""
        with self._lock:
            lines = tuple(self._lines)
        hang_up(*lines)

    def close(self) -> None:
        super().close()
        self.cut()

    def _serve(self, client: socket.socket) -> None:
        with client, self._connect() as server:
            with self._lock:
                self._lines.add(client)
            answers = threading.Thread(target=_pump, args=(server, client), daemon=True)
            answers.start()
            _pump(client, server)
            answers.join()
            with self._lock:
                self._lines.discard(client)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    hang_up(source, target)
