"""The history, read: by id, name, parameters, job, status and time; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.control.task_questions import Question, Wanted, trends_statement
from tidegate.model.job import KINDS
from tidegate.model.task_history import (
    TaskEvent,
    TaskEventKind,
    TaskRecord,
    TaskStatus,
    moment_of,
)
from tidegate.model.trend import Trend
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class History:
    """Reads the tables of the history, each statement over an index or within a few months."""

    plane: ControlPlane

    def newest(
        self, connection: Connection, project: str, wanted: Wanted, *, limit: int
    ) -> list[TaskRecord]:
        """The newest first, without tracebacks."""
        question = Question.of(project, wanted)
        statement = question.statement(self.plane.schema, limit)
        return [_record(row) for row in connection.execute(statement, question.values)]

    def get(self, connection: Connection, project: str, task_id: UUID) -> TaskRecord | None:
        """One task, whole."""
        question = Question()
        question.add("t.recorded_at = %(recorded_at)s AND t.id = %(id)s", **_place(task_id))
        question.add("t.project = %(project)s", project=project)
        statement = question.statement(self.plane.schema, 1, traceback=True)
        row = connection.execute(statement, question.values).fetchone()
        return None if row is None else _record(row)

    def events(self, connection: Connection, task_id: UUID) -> list[TaskEvent]:
        """What happened to a task, in order."""
        statement = self.plane.statement("tasks", "list_task_events")
        rows = connection.execute(statement, _place(task_id))
        return [TaskEvent(at, TaskEventKind(event), detail) for at, event, detail in rows]

    def trends(
        self,
        connection: Connection,
        project: str,
        *,
        names: Sequence[str] = (),
        now: datetime,
        since: datetime,
        runs: int,
        weeks: int,
    ) -> list[Trend]:
        """What ran since a moment, by kind and name."""
        rows = connection.execute(
            trends_statement(self.plane.schema, named=bool(names)),
            {
                "project": project,
                "kinds": sorted(KINDS),
                "names": list(names),
                "now": now,
                "since": since,
                "runs": runs,
                "weeks": weeks,
            },
        )
        return [
            Trend(kind, name, tuple(reversed(seconds)), tuple(failures), status, at)
            for kind, name, seconds, failures, status, at in rows
        ]


def _place(task_id: UUID) -> dict[str, Any]:
    return {"recorded_at": moment_of(task_id), "id": task_id}


def _record(row: Sequence[Any]) -> TaskRecord:
    found = [*row]
    found[8] = dict(sorted(found[8].items()))
    found[12] = TaskStatus(found[12])
    return TaskRecord(*found)
