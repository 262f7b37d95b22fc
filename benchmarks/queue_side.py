"""What every queue beside the others can be told to do, and how its time is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from benchmarks.shop import checkpoint
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class Stamps:
    """The moments of one job by the clock of the database, in seconds since the epoch."""

    started: float
    finished: float


class Queue(Protocol):
    """A queue in a database of its own, on the server that all share."""

    connection: Connection

    def empty(self) -> None:
        """Forget every job."""

    def enqueue(self, count: int) -> None:
        """Queue many jobs."""

    def work(self) -> None:
        """Let one worker process do all that waits, and leave."""

    def span(self, count: int) -> float:
        """Seconds from the first claim to the last finish, of so many jobs, all done."""


def measure(queue: Queue, count: int) -> float:
    """Jobs a second, from the first claim to the last finish by the database's own clock.

    Neither the start of an interpreter nor of an event loop counts, for nobody.
    """
    queue.empty()
    queue.enqueue(count)
    settle(queue.connection)
    queue.work()
    return count / queue.span(count)


def settle(connection: Connection) -> None:
    """Let nothing of what came before run into what is measured next."""
    connection.execute("VACUUM (ANALYZE)")
    checkpoint(connection)


def span_of(connection: Connection, query: str, count: int) -> float:
    """Run a query that returns how many jobs are done and how long they took together."""
    row = connection.execute(query).fetchone()
    assert row is not None
    if row[0] != count:
        raise RuntimeError(f"{row[0]} of {count} jobs are done")
    return float(row[1])
