"""The workers of a project: who is there, what each takes and holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tidegate.control.plane import ControlPlane
from tidegate.control.workers import WorkerRecord, Workers
from tidegate.postgres.connect import Connection

_SILENT_SHOWN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One process that works jobs; without its session it is silent, and its jobs are free."""

    worker_id: str
    host: str
    pid: int
    command: str
    kinds: tuple[str, ...]
    concurrency: int
    version: str
    versions: dict[str, str]
    jobs: int
    started_at: datetime
    beat_at: datetime
    silent_seconds: float
    is_connected: bool

    @property
    def takes_jobs(self) -> bool:
        """Whether it takes jobs from the queue; a `tidegate run` works its own alone."""
        return self.is_connected and bool(self.kinds)

    @property
    def is_worth_a_line(self) -> bool:
        """A silent one is news for a while, and as long as it holds jobs."""
        return self.is_connected or self.jobs > 0 or self.silent_seconds < _SILENT_SHOWN_SECONDS

    def __str__(self) -> str:
        return f"{self.command}, process {self.pid} on {self.host}"


def read_workers(
    plane: ControlPlane, connection: Connection, project: str | None
) -> tuple[WorkerStatus, ...]:
    """The workers of a project, or of all, the oldest first."""
    found = Workers(plane).list(connection)
    return tuple(_status(one) for one in found if project is None or one.project == project)


def kinds_taken(workers: Iterable[WorkerStatus]) -> set[str]:
    """The kinds of job that some live worker takes from the queue."""
    return {kind for one in workers if one.takes_jobs for kind in one.kinds}


def _status(record: WorkerRecord) -> WorkerStatus:
    return WorkerStatus(
        worker_id=record.worker_id,
        host=record.host,
        pid=record.pid,
        command=record.command,
        kinds=tuple(record.kinds),
        concurrency=record.concurrency,
        version=record.version,
        versions=record.versions,
        jobs=record.jobs,
        started_at=record.started_at,
        beat_at=record.beat_at,
        silent_seconds=record.silence.total_seconds(),
        is_connected=record.is_connected,
    )
