"""Workers as the control database knows them."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg.types.json import Jsonb

from tidegate.jobs.control_database import ControlDatabase
from tidegate.postgres.connection import Connection


def user_name() -> str:
    """Who runs this process; in a container that may be a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """This process, as others see it; when its lock is free, its session is gone."""

    worker_id: str
    lock_key: int
    host: str
    pid: int
    project: str = ""
    command: str = "tidegate run"
    kinds: tuple[str, ...] = ()
    concurrency: int = 1

    @classmethod
    def of_this_process(
        cls,
        project: str = "",
        command: str = "tidegate run",
        kinds: tuple[str, ...] = (),
        concurrency: int = 1,
    ) -> WorkerIdentity:
        identity = uuid.uuid4()
        return cls(
            worker_id=f"{socket.gethostname()}-{os.getpid()}-{identity.hex[:8]}",
            lock_key=identity.int >> 65,
            host=socket.gethostname(),
            pid=os.getpid(),
            project=project,
            command=command,
            kinds=kinds,
            concurrency=concurrency,
        )


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as others see it; without its session it is gone."""

    worker_id: str
    host: str
    pid: int
    project: str
    command: str
    kinds: list[str]
    concurrency: int
    version: str
    versions: dict[str, str]
    started_at: datetime
    beat_at: datetime
    silence: timedelta
    jobs: int
    is_connected: bool


@dataclass(frozen=True, slots=True)
class Workers:
    """The register of workers."""

    plane: ControlDatabase

    def register(
        self,
        connection: Connection,
        worker: WorkerIdentity,
        version: str,
        versions: dict[str, str] | None = None,
    ) -> None:
        """Lock first, announce second: nobody may ever see the row without the lock."""
        connection.execute("SELECT pg_advisory_lock(%s)", (worker.lock_key,))
        connection.execute(
            self.plane.statement("jobs/workers", "register_worker"),
            {
                "worker_id": worker.worker_id,
                "host": worker.host,
                "pid": worker.pid,
                "version": version,
                "lock_key": worker.lock_key,
                "project": worker.project,
                "command": worker.command,
                "kinds": list(worker.kinds),
                "concurrency": worker.concurrency,
                "versions": Jsonb({"python": platform.python_version()} | (versions or {})),
            },
        )

    def rejoin(self, connection: Connection, worker: WorkerIdentity) -> bool:
        """Take the lock again on a new session, if nobody reclaimed in between."""
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (worker.lock_key,)).fetchone()
        return bool(row and row[0])

    def forget(self, connection: Connection, worker: WorkerIdentity) -> None:
        connection.execute(
            self.plane.statement("jobs/workers", "forget_worker"), {"worker_id": worker.worker_id}
        )
        connection.execute(self.plane.statement("jobs/workers", "prune_workers"), {})

    def list(self, connection: Connection) -> list[WorkerRecord]:
        """Every worker on the register, the oldest first."""
        rows = connection.execute(self.plane.statement("jobs/workers", "list_workers"), {})
        return [WorkerRecord(*row) for row in rows]


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
    plane: ControlDatabase, connection: Connection, project: str | None
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
