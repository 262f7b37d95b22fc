"""Markers of tasks without a target: the rows saying that a side effect is done."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.control.plane import ControlPlane
from tidegate.model.task import TaskRun
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class TaskMarkers:
    """One row for each set of parameters that a side effect is done for."""

    plane: ControlPlane

    def exists(self, connection: Connection, run: TaskRun) -> bool:
        row = connection.execute(
            self.plane.statement("task_markers", "task_marker_exists"), _identity(run)
        ).fetchone()
        return bool(row and row[0])

    def touch(self, connection: Connection, run: TaskRun, job_id: UUID) -> bool:
        """Record it inside the caller's transaction; False when it was recorded before."""
        parameters = {"name": run.name, "parameters": Jsonb(run.parameters), "job_id": job_id}
        done = connection.execute(
            self.plane.statement("task_markers", "touch_task_marker"), _identity(run) | parameters
        )
        return done.rowcount == 1

    def forget(self, connection: Connection, run: TaskRun) -> bool:
        """Let it be done again; False when it was not recorded."""
        done = connection.execute(
            self.plane.statement("task_markers", "forget_task_marker"), _identity(run)
        )
        return done.rowcount == 1


def _identity(run: TaskRun) -> dict[str, object]:
    return {"project": run.task.project, "update_id": run.update_id}
