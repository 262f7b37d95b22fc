"""procrastinate and pgqueuer beside us, each in a database of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers import Peer, url
from benchmarks.queue_side import Stamps, span_of
from tidegate.postgres.connection import Connection

PACKAGES = {
    "procrastinate": (
        "procrastinate>=3.10,<4",
        "psycopg[binary,pool]>=3.2,<4",
        "uvloop>=0.21,<1",
    ),
    "pgqueuer": ("pgqueuer[asyncpg]>=1.6,<2", "uvloop>=0.21,<1"),
}
# What each calls its log of events, and there the job, the moment, the start and the end.
_EVENTS = {
    "procrastinate": ("procrastinate_events", "job_id", "at", "type", "started", "succeeded"),
    "pgqueuer": ("pgqueuer_log", "job_id", "created", "status", "picked", "successful"),
}
_TABLES = {
    "procrastinate": "procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers",
    "pgqueuer": "pgqueuer, pgqueuer_log, pgqueuer_statistics",
}
_SPAN = """
SELECT count(*) FILTER (WHERE {type}::text = '{end}'),
       extract(epoch FROM max({at}) FILTER (WHERE {type}::text = '{end}')
                          - min({at}) FILTER (WHERE {type}::text = '{start}'))::float8
FROM {table}
"""
_STAMPS = """
SELECT {job}::text, extract(epoch FROM min({at}) FILTER (WHERE {type}::text = '{start}'))::float8,
       extract(epoch FROM max({at}) FILTER (WHERE {type}::text = '{end}'))::float8
FROM {table} GROUP BY {job} HAVING bool_or({type}::text = '{end}')
"""


class PeerQueue:
    """Another tool's queue; its worker is a process of its own for every run."""

    def __init__(
        self, name: str, conninfo: str, connection: Connection, options: dict[str, Any]
    ) -> None:
        self.connection = connection
        self._name = name
        self._conninfo = conninfo
        self._options = options
        self._submitter = start(name, conninfo)
        self._worker: Peer | None = None
        table, job, at, kind, begin, end = _EVENTS[name]
        self._names = {
            "table": table, "job": job, "at": at, "type": kind, "start": begin, "end": end
        }  # fmt: skip

    def empty(self) -> None:
        self.connection.execute(f"TRUNCATE {_TABLES[self._name]}")

    def enqueue(self, count: int) -> None:
        self._submitter.ask(["enqueue", {"count": count}])

    def work(self) -> None:
        with start(self._name, self._conninfo) as worker:
            worker.ask(["work", self._options])

    def span(self, count: int) -> float:
        return span_of(self.connection, _SPAN.format(**self._names), count)

    def wait(self) -> None:
        """Start a worker that waits for jobs."""
        self._worker = start(self._name, self._conninfo)
        self._worker.tell(["work", self._options | {"wait": True}])

    def submit(self) -> tuple[str, float]:
        job_id, committed_at = self._submitter.ask(["submit", {}])
        return job_id, committed_at

    def stamps(self) -> dict[str, Stamps]:
        rows = self.connection.execute(_STAMPS.format(**self._names))
        return {row[0]: Stamps(row[1], row[2]) for row in rows}

    def close(self) -> None:
        self._submitter.close()
        if self._worker is not None:
            self._worker.close()


def start(name: str, conninfo: str) -> Peer:
    """A process of a tool; `settings` is its version."""
    script = Path(__file__).with_name(f"queue_{name}.py")
    return Peer(name, PACKAGES[name], script, url(conninfo))


def install(name: str, conninfo: str) -> str:
    """Let a tool make its own tables; returns its version."""
    with start(name, conninfo) as peer:
        peer.ask(["install", {}])
        return str(peer.settings)
