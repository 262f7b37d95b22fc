"""Workers: processes that hold an advisory lock for as long as their session lives."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from dataclasses import dataclass

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

    @classmethod
    def of_this_process(cls) -> Worker:
        identity = uuid.uuid4()
        return cls(
            worker_id=f"{socket.gethostname()}-{os.getpid()}-{identity.hex[:8]}",
            lock_key=identity.int >> 65,
            host=socket.gethostname(),
            pid=os.getpid(),
        )


@dataclass(frozen=True, slots=True)
class Workers:
    """The register of workers."""

    plane: ControlPlane

    def register(self, connection: Connection, worker: Worker, version: str) -> None:
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
            },
        )

    def rejoin(self, connection: Connection, worker: Worker) -> bool:
        """Take the lock again on a new session, if nobody reclaimed in between."""
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (worker.lock_key,)).fetchone()
        return bool(row and row[0])

    def beat(self, connection: Connection, worker: Worker) -> None:
        connection.execute(
            self.plane.statement("workers", "beat_worker"), {"worker_id": worker.worker_id}
        )

    def forget(self, connection: Connection, worker: Worker) -> None:
        connection.execute(
            self.plane.statement("workers", "forget_worker"), {"worker_id": worker.worker_id}
        )
        connection.execute(self.plane.statement("workers", "prune_workers"), {})
