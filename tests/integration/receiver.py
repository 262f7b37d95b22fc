"""A webhook's other end: it answers as it is told to, and remembers what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "Hunter2Zebra"


@dataclass
class Receiver:
    """What is to be answered, in this order, then always 200; and what came."""

    answers: list[str | int] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    letting_go: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/{SECRET}"

    @property
    def texts(self) -> list[str]:
        return [one["text"] for one in self.messages]


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.paths.append(self.path)
            receiver.keys.append(self.headers["Idempotency-Key"])
            answer = receiver.answers.pop(0) if receiver.answers else 200
            if answer == "hang":
                receiver.letting_go.wait(60)
            elif answer == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not receiver.letting_go.wait(0.02):
                    try:
                        self.wfile.write(b"X-More: 1\r\n")
                    except OSError:
                        return
            elif answer == "close":
                self.close_connection = True
            else:
                if answer == 200:
                    receiver.messages.append(json.loads(body))
                self.send_response(int(answer))
                if answer == 429:
                    self.send_header("Retry-After", "7")
                if answer == 302:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
            receiver.arrived.release()

        def do_GET(self) -> None:
            receiver.paths.append(f"GET {self.path}")
            self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a port of its own."""
    receiver = Receiver()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(receiver))
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.letting_go.set()
        server.shutdown()
        server.server_close()
