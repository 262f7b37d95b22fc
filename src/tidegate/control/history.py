"""The history, read: by id, name, parameters, job, status and time; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import sql

from tidegate.control.plane import ControlPlane
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
from tidegate.sql import statements

_COLUMNS = """t.id, t.recorded_at, t.job_id, t.attempt_id, t.attempt, t.project, t.kind, t.name,
       t.parameters_digest, t.host, t.worker_id, t.status, t.submitted_at, t.started_at,
       t.finished_at, t.rows, t.bytes, t.metrics, t.error, {traceback},
       (SELECT jsonb_object_agg(a.name, a.value) FROM {schema}.task_parameters a
        WHERE a.recorded_at = t.recorded_at AND a.task_id = t.id)"""
# An index holds no more of a value than this.
_INDEXED = 200
# A job's id tells the time of whoever submitted it, which may be ahead of the database's.
_CLOCKS_APART = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks are asked for; what is None or empty does not matter."""

    names: Sequence[str] = ()
    kinds: Sequence[str] = ()
    statuses: Sequence[TaskStatus] = ()
    parameters: Mapping[str, str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    job_id: UUID | None = None
    ids: tuple[UUID, UUID] | None = None
    """the lowest and the highest"""


@dataclass(frozen=True, slots=True)
class History:
    """Reads the tables of the history, each statement over an index or within a few months."""

    plane: ControlPlane

    def newest(
        self,
        connection: Connection,
        project: str,
        wanted: Wanted,
        *,
        before: tuple[datetime, UUID] | None = None,
        limit: int,
    ) -> list[TaskRecord]:
        """The newest first, without tracebacks; `before` is the last one of the list so far."""
        statement, values = self.statement_for(project, wanted, before)
        rows = connection.execute(statement, values | {"limit": limit})
        return [_record(row) for row in rows]

    def get(self, connection: Connection, project: str, task_id: UUID) -> TaskRecord | None:
        """One task, whole."""
        conditions = [
            sql.SQL("t.recorded_at = %(recorded_at)s AND t.id = %(id)s AND t.project = %(project)s")
        ]
        row = connection.execute(
            self._statement("list_tasks", conditions, traceback="t.traceback"),
            {**_place(task_id), "project": project, "limit": 1},
        ).fetchone()
        return None if row is None else _record(row)

    def events(self, connection: Connection, task_id: UUID) -> list[TaskEvent]:
        """What happened to a task, in order."""
        rows = connection.execute(
            self.plane.statement("tasks", "list_task_events"), _place(task_id)
        )
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
            self.statement_for_trends(names),
            {
                "project": project,
                "kinds": sorted(KINDS),
                "names": list(names),
                "statuses": [status.value for status in TaskStatus],
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

    def statement_for(
        self, project: str, wanted: Wanted, before: tuple[datetime, UUID] | None = None
    ) -> tuple[sql.Composed, dict[str, Any]]:
        """The statement that finds what is wanted, made of no more than is asked for."""
        values: dict[str, Any] = {"project": project}
        given = dict(wanted.parameters or {})
        # Equal to the task's, and what the index that leads there is ordered by.
        side, key = ("p", "task_id") if given else ("t", "id")
        conditions = [f"{side}.project = %(project)s"]

        def add(condition: str, **more: Any) -> None:
            conditions.append(condition)
            values.update(more)

        if given:
            name, value = given.popitem()
            add(
                "p.name = %(parameter)s AND p.value = %(value)s"
                f" AND left(p.value, {_INDEXED}) = left(%(value)s, {_INDEXED})",
                parameter=name,
                value=value,
            )
        for number, (name, value) in enumerate(given.items()):
            add(
                "EXISTS (SELECT FROM {schema}.task_parameters o WHERE o.recorded_at ="
                " p.recorded_at AND o.task_id = p.task_id"
                f" AND o.name = %(parameter{number})s AND o.value = %(value{number})s)",
                **{f"parameter{number}": name, f"value{number}": value},
            )
        if wanted.names:
            column = "p.task" if side == "p" else "t.name"
            one = len(wanted.names) == 1
            add(
                f"{column} = %(name)s" if one else f"{column} = ANY(%(name)s)",
                name=wanted.names[0] if one else list(wanted.names),
            )
        if wanted.statuses:
            found = [status.value for status in wanted.statuses]
            one = len(found) == 1
            add(
                "t.status = %(status)s" if one else "t.status = ANY(%(status)s)",
                status=found[0] if one else found,
            )
        if wanted.kinds:
            add("t.kind = ANY(%(kinds)s)", kinds=list(wanted.kinds))
        if wanted.since is not None:
            add(f"{side}.recorded_at >= %(since)s", since=wanted.since)
        if wanted.until is not None:
            add(f"{side}.recorded_at < %(until)s", until=wanted.until)
        if wanted.job_id is not None:
            add(
                f"t.job_id = %(job_id)s AND {side}.recorded_at >= %(submitted)s",
                job_id=wanted.job_id,
                submitted=_before(wanted.job_id),
            )
        if wanted.ids is not None:
            lowest, highest = wanted.ids
            add(
                f"{side}.{key} BETWEEN %(lowest)s AND %(highest)s"
                f" AND {side}.recorded_at BETWEEN %(first)s AND %(last)s",
                lowest=lowest,
                highest=highest,
                first=moment_of(lowest),
                last=moment_of(highest),
            )
        if before is not None:
            add(
                f"({side}.recorded_at, {side}.{key}) < (%(before_at)s, %(before_id)s)",
                before_at=before[0],
                before_id=before[1],
            )
        name = "list_by_parameter" if side == "p" else "list_tasks"
        return self._statement(name, [sql.SQL(one) for one in conditions]), values

    def statement_for_trends(self, names: Sequence[str]) -> sql.Composed:
        """The statement that tells of these names, or of all."""
        part = "known_by_name" if names else "known_by_walking"
        known = sql.SQL(statements("control/tasks")[part]).format(schema=self._schema)
        return sql.SQL(statements("control/tasks")["list_trends"]).format(
            schema=self._schema, known=known
        )

    @property
    def _schema(self) -> sql.SQL:
        # Next to parameters a percent sign is written twice, and a schema's name may hold one.
        quoted = sql.Identifier(self.plane.schema).as_string(None).replace("%", "%%")
        return sql.SQL(quoted)

    def _statement(
        self, name: str, conditions: Sequence[sql.SQL], *, traceback: str = "NULL"
    ) -> sql.Composed:
        schema = self._schema
        return sql.SQL(statements("control/tasks")[name]).format(
            schema=schema,
            columns=sql.SQL(_COLUMNS).format(schema=schema, traceback=sql.SQL(traceback)),
            conditions=sql.SQL("\n  AND ").join(one.format(schema=schema) for one in conditions),
        )


def _place(task_id: UUID) -> dict[str, Any]:
    return {"recorded_at": moment_of(task_id), "id": task_id}


def _before(job_id: UUID) -> datetime:
    """No attempt at a job is older than this."""
    try:
        return moment_of(job_id) - _CLOCKS_APART
    except OverflowError:
        return moment_of(job_id)


def _record(row: Sequence[Any]) -> TaskRecord:
    found = [*row]
    found[11] = TaskStatus(found[11])
    found[-1] = dict(sorted((found[-1] or {}).items()))
    return TaskRecord(*found)
