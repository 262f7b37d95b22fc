"""Workers: processes that hold an advisory lock for as long as their session lives."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg.types.json import Jsonb

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection


def user_name() -> str:
    """Who runs this process; in a container that may be a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


@dataclass(frozen=True, slots=True)
class Worker:
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
    ) -> Worker:
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

    plane: ControlPlane

    def register(
        self,
        connection: Connection,
        worker: Worker,
        version: str,
        versions: dict[str, str] | None = None,
    ) -> None:
        """Lock first, announce second: nobody may ever see the row without the lock."""
        connection.execute("SELECT pg_advisory_lock(%s)", (worker.lock_key,))
        connection.execute(
            self.plane.statement("workers", "register_worker"),
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

    def rejoin(self, connection: Connection, worker: Worker) -> bool:
        """Take the lock again on a new session, if nobody reclaimed in between."""
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (worker.lock_key,)).fetchone()
        return bool(row and row[0])

    def forget(self, connection: Connection, worker: Worker) -> None:
        connection.execute(
            self.plane.statement("workers", "forget_worker"), {"worker_id": worker.worker_id}
        )
        connection.execute(self.plane.statement("workers", "prune_workers"), {})

    def list(self, connection: Connection) -> list[WorkerRecord]:
        """Every worker on the register, the oldest first."""
        rows = connection.execute(self.plane.statement("workers", "list_workers"), {})
        return [WorkerRecord(*row) for row in rows]
