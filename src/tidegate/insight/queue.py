"""The queue of a project: how much waits, for what, and whether anybody takes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.control.job_lists import JobLists
from tidegate.control.plane import ControlPlane, Draining
from tidegate.insight.workers import WorkerStatus, kinds_taken, read_workers
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How many jobs wait and run; `unserved` are those that could start if a worker took them."""

    ready: int = 0
    later: int = 0
    next_at: datetime | None = None
    running: int = 0
    failed_lately: int = 0
    unserved: tuple[tuple[str, int], ...] = ()
    draining: Draining | None = None
    workers: tuple[WorkerStatus, ...] = ()

    @property
    def is_worth_a_line(self) -> bool:
        return bool(self.ready or self.later or self.failed_lately or self.draining)

    def lines(self) -> list[str]:
        """What a person should know, most urgent last."""
        parts = [f"{self.ready} waiting"]
        if self.later:
            when = f", the next at {self.next_at:%Y-%m-%d %H:%M:%S} UTC" if self.next_at else ""
            parts.append(f"{self.later} waiting for a later time{when}")
        parts.append(f"{self.running} running")
        if self.failed_lately:
            parts.append(
                f"{self.failed_lately} failed in the last day and not made good since "
                "(tidegate job list --status failed)"
            )
        found = ["; ".join(parts)]
        if self.draining is not None:
            found.append(
                f"draining since {self.draining.since:%Y-%m-%d %H:%M:%S} UTC by "
                f"{self.draining.by}: no new jobs are taken in; let them in again with: "
                "tidegate drain off"
            )
        for kind, count in self.unserved:
            found.append(
                f"{count} {'job waits' if count == 1 else 'jobs wait'} and no worker takes "
                f"{kind}: start one with: tidegate worker"
            )
        return found


def read_queue(plane: ControlPlane, connection: Connection, project: str) -> QueueStatus:
    """Count what is unfinished, and look who is there to do it."""
    lists = JobLists(plane)
    counts = lists.count_queue(connection, project)
    workers = read_workers(plane, connection, project)
    taken = kinds_taken(workers)
    return QueueStatus(
        ready=sum(one.ready for one in counts),
        later=sum(one.later for one in counts),
        next_at=min((one.next_at for one in counts if one.next_at is not None), default=None),
        running=sum(one.running for one in counts),
        failed_lately=lists.count_failed(connection, project),
        unserved=tuple(
            (one.kind, one.ready) for one in counts if one.ready and one.kind not in taken
        ),
        draining=plane.draining(connection),
        workers=workers,
    )
