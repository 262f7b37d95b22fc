"""Cached reads over HTTP against a bare SELECT of the same row, and how many a second one does."""

from __future__ import annotations

import json
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Report
from tidegate.admin.tokens import ApiTokens
from tidegate.core.identity import Scope
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.table_actions import Amount
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.table_cache import TableCache
from tidegate.project import Project

TARGET = Endpoint("lake", Relation("raw", "orders"))
CACHED = "/tables/raw/orders/status/cached"
_TOML = """
[project]
name = "bench"
[connections]
lake = { type = "iceberg" }
[maintenance]
refresh = "1 day"
"""
_SELECT = (
    "SELECT facts, read_at, error FROM tidegate_control.lake_tables WHERE project = %s"
    " AND catalog = %s AND namespace = %s AND name = %s"
)
_NONE = Amount()
_FACTS = TableFacts(
    "u", "file:///x", "file:///x/m.json", 2, 1, None, 3, None, 1, 0, 10, 1, _NONE, _NONE,
    0, 1, 0, 0, _NONE, 0, _NONE, 0, 0, _NONE, 0, 1,
)  # fmt: skip


def run(report: Report, *, seconds: float, connections: int) -> None:
    """One service process, with a token, as it would run."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tidegate.toml").write_text(_TOML, encoding="utf-8")
        with Project.open(folder) as project:
            try:
                token = _prepare(project)
                with _serving(folder) as (host, port):
                    _measure(report, project, (host, port), token, seconds, connections)
            finally:
                project.context.databases.embedded.stop("immediate")


def _measure(
    report: Report,
    project: Project,
    address: tuple[str, int],
    token: str,
    seconds: float,
    connections: int,
) -> None:
    key = (project.name, "lake", "raw", "orders")
    with project.context.plane.connect() as control:
        bare = _median(lambda: control.execute(_SELECT, key).fetchone())
    report.note(f"bare SELECT of the row: {bare * 1e6:.0f} µs")
    for path in (CACHED, "/tables"):
        asked = _request(path, token)
        with socket.create_connection(address) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one = _median(lambda c=connection, a=asked: _ask(c, a))  # type: ignore[misc]
        report.note(f"GET {path}: {one * 1e6:.0f} µs")
        report.ratio(f"GET {path} against a bare SELECT", one / bare, at_most=3.0)
        rate = _rate(address, asked, seconds, connections)
        report.value(f"GET {path}, {connections} connections", rate, "requests/s", at_least=500)


def _prepare(project: Project) -> str:
    context = project.context
    context.control_id()
    with context.plane.connect() as control:
        tables = TableCache(context.plane, project.name)
        tables.put(control, TARGET, _FACTS, tables.clock(control))
        tables.note_refreshed(control, "lake", tables.clock(control))
        tokens = ApiTokens(context.plane)
        return tokens.create(control, project.name, "bench", Scope.READ, actor="bench")[1]


@contextmanager
def _serving(folder: str) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--json", "-C", folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        host, _, port = json.loads(text)["address"].rpartition("//")[2].rpartition(":")
        yield host, int(port)
    finally:
        process.terminate()
        process.wait(10)


def _request(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def _ask(connection: socket.socket, asked: bytes) -> None:
    connection.sendall(asked)
    found = b""
    while not _is_whole(found):
        found += connection.recv(65536)


def _is_whole(found: bytes) -> bool:
    head, separator, body = found.partition(b"\r\n\r\n")
    if not separator:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
    _, _, length = head.lower().partition(b"content-length: ")
    return len(body) >= int(length.split(b"\r\n")[0])


def _median(do: Callable[[], object], times: int = 3_000) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        do()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _rate(address: tuple[str, int], asked: bytes, seconds: float, connections: int) -> float:
    """Requests a second over connections that stay open, each with one request at a time."""
    sockets = {
        one.fileno(): one for one in (socket.create_connection(address) for _ in range(connections))
    }
    parts = dict.fromkeys(sockets, b"")
    poll = select.epoll()
    for number, one in sockets.items():
        poll.register(number, select.EPOLLIN)
        one.sendall(asked)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for number, _ in poll.poll(1):
            parts[number] += sockets[number].recv(65536)
            if _is_whole(parts[number]):
                count += 1
                parts[number] = b""
                sockets[number].sendall(asked)
    taken = time.perf_counter() - started
    for one in sockets.values():
        one.close()
    return count / taken
