"""Ask the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, LiteralString
from uuid import UUID

from psycopg import sql

from tidegate.core.errors import UsageError
from tidegate.jobs.context import JobContext, control_session
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.history.record import (
    RunStatus,
    TaskEvent,
    TaskEventKind,
    TaskRecord,
    Trend,
    moment_of,
    parameter_text,
)
from tidegate.jobs.job import KINDS
from tidegate.jobs.job_view import id_range
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import statements

_COLUMNS: LiteralString = """t.id, t.recorded_at, t.job_id, t.attempt_id, t.attempt, t.project,
       t.kind, t.name, t.parameters, t.parameters_digest, t.host, t.worker_id, t.status,
       t.submitted_at, t.started_at, t.finished_at, t.rows, t.bytes, t.metrics, t.error"""
# An index holds no more of a value than this.
_INDEXED = 200
# A job's id tells the time of whoever submitted it, which may be ahead of the database's.
_CLOCKS_APART = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which tasks are asked for; what is None or empty does not matter."""

    names: Sequence[str] = ()
    kinds: Sequence[str] = ()
    statuses: Sequence[RunStatus] = ()
    parameters: Mapping[str, str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    job_id: UUID | None = None
    ids: tuple[UUID, UUID] | None = None
    """the lowest and the highest"""
    before: tuple[datetime, UUID] | None = None
    """the last one of the list so far"""


@dataclass(slots=True)
class HistoryQuery:
    """A statement in the making: its conditions and their values.

    Each parameter is a table `p`, `p1` and so on beside the tasks, `t`. What is known of the tasks
    is said of each, so that only the months that matter are looked into. Where an id says which
    tasks can be meant, they are asked themselves what they were called with.
    """

    parameters: tuple[tuple[str, str], ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    conditions: list[LiteralString] = field(default_factory=list)

    @classmethod
    def of(cls, project: str, wanted: HistoryFilter) -> HistoryQuery:
        """The question that finds what is wanted, in one project."""
        asked = tuple((wanted.parameters or {}).items())
        made = cls(asked if wanted.job_id is None and wanted.ids is None else ())
        for side in made._sides:
            made.add(f"{side}.project = %(project)s", project=project)
        if made.parameters:
            made._add_parameters()
        else:
            made._add_called(asked)
        made._add_names(wanted.names)
        made._add_statuses(wanted.statuses)
        if wanted.kinds:
            made.add("t.kind = ANY(%(kinds)s)", kinds=list(wanted.kinds))
        made._add_times(wanted)
        made._add_ids(wanted)
        return made

    def add(self, condition: LiteralString, **values: Any) -> None:
        self.conditions.append(condition)
        self.values.update(values)

    def statement(self, schema: str, limit: int, *, traceback: bool = False) -> sql.SQL:
        """The statement, to be run with the values."""
        conditions = tuple(self.conditions)
        return _written(schema, conditions, len(self.parameters), limit, traceback)

    @property
    def _sides(self) -> list[LiteralString]:
        """Every table of the question."""
        return [*_aliases(len(self.parameters)), "t"]

    def _add_parameters(self) -> None:
        aliases = _aliases(len(self.parameters))
        for side, (name, value) in zip(aliases, self.parameters, strict=True):
            self.add(
                f"{side}.name = %({side}_name)s"
                f" AND left({side}.value, {_INDEXED}) = left(%({side}_value)s, {_INDEXED})",
                **{f"{side}_name": name, f"{side}_value": value},
            )
            # A shorter one is told apart by the index alone; to say it twice would mislead the
            # planner.
            if len(value) >= _INDEXED:
                self.conditions.append(f"{side}.value = %({side}_value)s")

    def _add_called(self, given: Sequence[tuple[str, str]]) -> None:
        """What the tasks themselves say that they were called with."""
        names, values = [name for name, _ in given], [value for _, value in given]
        if given:
            self.add(
                "t.parameters ?& %(p_names)s::text[] AND NOT EXISTS (SELECT FROM"
                " unnest(%(p_names)s::text[], %(p_values)s::text[]) AS asked(name, value)"
                " WHERE coalesce(t.parameters ->> asked.name, 'null') <> asked.value)",
                p_names=names,
                p_values=values,
            )

    def _add_names(self, given: Sequence[str]) -> None:
        for side in self._sides if given else ():
            column: LiteralString = "name" if side == "t" else "task"
            # One alone is told as such: then an index is in the order that is wanted.
            if len(given) == 1:
                self.add(f"{side}.{column} = %(name)s", name=given[0])
            else:
                self.add(f"{side}.{column} = ANY(%(name)s)", name=list(given))

    def _add_statuses(self, given: Sequence[RunStatus]) -> None:
        """Written out, so that the index of what is not done can be seen to hold them."""
        if given:
            words = ", ".join(f"'{one.value}'" for one in sorted(set(given)))
            self.conditions.append(f"t.status IN ({words})")

    def _add_times(self, wanted: HistoryFilter) -> None:
        if wanted.since is not None:
            self._add_time(">= %(since)s", since=wanted.since)
        if wanted.until is not None:
            self._add_time("< %(until)s", until=wanted.until)
        if wanted.before is not None:
            at, task_id = wanted.before
            self._add_time("<= %(before_at)s", before_at=at)
            self.add("(t.recorded_at, t.id) < (%(before_at)s, %(before_id)s)", before_id=task_id)

    def _add_ids(self, wanted: HistoryFilter) -> None:
        if wanted.job_id is not None:
            self.add("t.job_id = %(job_id)s", job_id=wanted.job_id)
            self._add_time(">= %(submitted)s", submitted=_submitted(wanted.job_id))
        if wanted.ids is not None:
            lowest, highest = wanted.ids
            self.add("t.id BETWEEN %(lowest)s AND %(highest)s", lowest=lowest, highest=highest)
            first, last = moment_of(lowest), moment_of(highest)
            self._add_time("BETWEEN %(first)s AND %(last)s", first=first, last=last)

    def _add_time(self, condition: LiteralString, **values: datetime) -> None:
        for side in self._sides:
            self.add(f"{side}.recorded_at {condition}", **values)


def trends_statement(schema: str, *, named: bool) -> sql.SQL:
    """The trends of some names, or of all."""
    return _trends(schema, "known_by_name" if named else "known_by_walking")


@lru_cache(maxsize=256)
def _written(
    schema: str,
    conditions: tuple[LiteralString, ...],
    parameters: int,
    limit: int,
    traceback: bool,
) -> sql.SQL:
    """Text instead of pieces; with its limit written out, so that one plan serves all values."""
    quoted, texts = _quoted(schema), statements("jobs/history")
    sides = [*_aliases(parameters), "t"]
    told = {
        side: sql.SQL("\n  AND ").join(
            sql.SQL(one) for one in conditions if one.startswith((f"{side}.", f"({side}."))
        )
        for side in sides
    }
    steps = [
        sql.SQL(texts["step_back_to_task" if side == "t" else "step_back_to_parameter"]).format(
            schema=quoted, side=sql.SQL(side), before=sql.SQL(before), conditions=told[side]
        )
        for before, side in pairwise(["w", *sides])
    ]
    composed = sql.SQL(texts["list_by_parameters" if parameters else "list_tasks"]).format(
        schema=quoted,
        columns=sql.SQL(_COLUMNS + (", t.traceback" if traceback else ", NULL")),
        steps=sql.SQL("\n").join(steps),
        conditions=told["t"],
        limit=sql.Literal(limit),
    )
    return sql.SQL(composed.as_string(None))


@lru_cache(maxsize=16)
def _trends(schema: str, part: str) -> sql.SQL:
    texts, quoted = statements("jobs/history"), _quoted(schema)
    known = sql.SQL(texts[part]).format(schema=quoted)
    composed = sql.SQL(texts["list_trends"]).format(schema=quoted, known=known)
    return sql.SQL(composed.as_string(None))


def _aliases(count: int) -> list[LiteralString]:
    """The names of so many tables of parameters within a statement."""
    return ["p" if number == 0 else f"p{number}" for number in range(count)]


def _quoted(schema: str) -> sql.SQL:
    # Next to parameters a percent sign is written twice, and a name may hold one.
    text = sql.Identifier(schema).as_string(None).replace("%", "%%")
    return sql.SQL(text)


def _submitted(job_id: UUID) -> datetime:
    """No attempt at a job is older than this."""
    moment = moment_of(job_id)
    return moment - _CLOCKS_APART if moment.year > 1970 else moment


@dataclass(frozen=True, slots=True)
class History:
    """Reads the tables of the history, each statement over an index or within a few months."""

    plane: ControlDatabase

    def newest(
        self, connection: Connection, project: str, wanted: HistoryFilter, *, limit: int
    ) -> list[TaskRecord]:
        """The newest first, without tracebacks."""
        question = HistoryQuery.of(project, wanted)
        statement = question.statement(self.plane.schema, limit)
        return [_record(row) for row in connection.execute(statement, question.values)]

    def get(self, connection: Connection, project: str, task_id: UUID) -> TaskRecord | None:
        """One task, whole."""
        question = HistoryQuery()
        question.add("t.recorded_at = %(recorded_at)s AND t.id = %(id)s", **_place(task_id))
        question.add("t.project = %(project)s", project=project)
        statement = question.statement(self.plane.schema, 1, traceback=True)
        row = connection.execute(statement, question.values).fetchone()
        return None if row is None else _record(row)

    def events(self, connection: Connection, task_id: UUID) -> list[TaskEvent]:
        """What happened to a task, in order."""
        statement = self.plane.statement("jobs/history", "list_task_events")
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
    found[12] = RunStatus(found[12])
    return TaskRecord(*found)


_PAGE = 1_000
_LATEST = timedelta(hours=24)
TREND_RUNS = 200
TREND_WEEKS = 8


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """What ran in a project, the newest first.

    >>> for run in tg.open(".").history.find_all_by_name("orders"):  # doctest: +SKIP
    ...     print(run.started_at, run.status, run.seconds)
    """

    context: JobContext

    def find_all_by_name(self, name: str) -> Iterator[TaskRecord]:
        """Every run of a sync or a task."""
        return self.find(HistoryFilter(names=(name,)))

    def find_all_by_parameters(self, name: str, /, **parameters: object) -> Iterator[TaskRecord]:
        """Every run that was called with these, whatever else it was called with."""
        texts = {key: parameter_text(value) for key, value in parameters.items()}
        return self.find(HistoryFilter(names=(name,), parameters=texts))

    def find_task_by_id(self, task_id: UUID | str) -> TaskRecord | None:
        """One run, with its traceback; None when it is not known, or not any more."""
        wanted = task_id if isinstance(task_id, UUID) else UUID(task_id)
        with control_session(self.context) as connection:
            if connection is None:
                return None
            return self._history.get(connection, self._project, wanted)

    def find_latest_runs(self) -> list[TaskRecord]:
        """Every run of the last 24 hours."""
        return list(self.find(HistoryFilter(since=datetime.now(UTC) - _LATEST)))

    def find_all_runs(self) -> Iterator[TaskRecord]:
        """Every run that is remembered."""
        return self.find(HistoryFilter())

    def find_all_events(self, task_id: UUID | str) -> list[TaskEvent]:
        """What happened to one run, in order."""
        wanted = task_id if isinstance(task_id, UUID) else UUID(task_id)
        with control_session(self.context) as connection:
            if connection is None:
                return []
            if self._history.get(connection, self._project, wanted) is None:
                return []
            return self._history.events(connection, wanted)

    def find(self, wanted: HistoryFilter) -> Iterator[TaskRecord]:
        """Every run that fits, read in pages."""
        with control_session(self.context) as connection:
            if connection is None:
                return
            while True:
                page = self._history.newest(connection, self._project, wanted, limit=_PAGE)
                yield from page
                if len(page) < _PAGE:
                    return
                wanted = replace(wanted, before=(page[-1].recorded_at, page[-1].id))

    def newest(self, wanted: HistoryFilter, limit: int) -> list[TaskRecord]:
        """So many of the runs that fit."""
        with control_session(self.context) as connection:
            if connection is None:
                return []
            return self._history.newest(connection, self._project, wanted, limit=limit)

    def find_by_text(self, text: str) -> list[TaskRecord]:
        """The run that an id, or the beginning of one, means; the id of a job means its runs."""
        lowest, highest = id_range(text)
        found = self.newest(HistoryFilter(ids=(lowest, highest)), 10)
        if not found and lowest == highest:
            found = self.newest(HistoryFilter(job_id=lowest), _PAGE)
        if not found:
            raise UsageError(
                f"there is no run {text} in the history of project {self._project}",
                "see the ids with: tidegate history",
            )
        return found

    def trends(self, names: tuple[str, ...] = (), now: datetime | None = None) -> list[Trend]:
        """How long everything takes that ran in the last weeks, and how often it fails."""
        moment = now or datetime.now(UTC)
        with control_session(self.context) as connection:
            if connection is None:
                return []
            return self._history.trends(
                connection,
                self._project,
                names=names,
                now=moment,
                since=moment - timedelta(weeks=TREND_WEEKS),
                runs=TREND_RUNS,
                weeks=TREND_WEEKS,
            )

    @property
    def _history(self) -> History:
        return History(self.context.plane)

    @property
    def _project(self) -> str:
        return self.context.settings.project.name
