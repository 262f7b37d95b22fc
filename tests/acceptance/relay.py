"""A line to a server on loopback that can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

HOST = "127.0.0.1"


class Relay:
    """Forwards to a port, and knows which connections are open."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._lines: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def open(self) -> int:
        with self._lock:
            return len(self._lines)

    def cut(self) -> None:
        """End all connections, as a network would."""
        with self._lock:
            lines = tuple(self._lines)
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # A thread that waits in accept keeps the port open.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._upstream)) as server:
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
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
