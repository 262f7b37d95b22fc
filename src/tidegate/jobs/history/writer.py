"""Write the history, month by month."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from tidegate.core.errors import safe_traceback
from tidegate.core.log import log
from tidegate.jobs.context import JobContext
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import NOTHING, Claim
from tidegate.postgres.connection import Connection
from tidegate.spark.tags import spark_measures

_MOST_STEPS = 200
_MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class TaskRecords:
    """Keeps attempts in the history; the same attempt may be written any number of times."""

    plane: ControlDatabase

    def write(
        self,
        connection: Connection,
        attempt_ids: Sequence[str],
        *,
        traceback: str | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        """Write down how these attempts stand; one that has ended stays as it was written."""
        connection.execute(
            self.plane.statement("jobs/history", "record_attempts"),
            {
                "attempt_ids": list(attempt_ids),
                "traceback": traceback,
                "metrics": None if metrics is None else Jsonb(metrics),
                "most_steps": _MOST_STEPS,
            },
        )

    def unsettled(self, connection: Connection, project: str) -> list[str]:
        """Attempts that ended without the history knowing: who held them died, or was replaced."""
        rows = connection.execute(
            self.plane.statement("jobs/history", "list_unsettled"),
            {"project": project, "limit": _MOST_AT_ONCE},
        )
        return [row[0] for row in rows]

    def unsettled_of_job(self, connection: Connection, job_id: UUID) -> list[str]:
        """The same, of one job."""
        rows = connection.execute(
            self.plane.statement("jobs/history", "list_unsettled_of_job"), {"job_id": job_id}
        )
        return [row[0] for row in rows]


_NAME = re.compile(r"_(\d{4})_(\d{2})\Z")


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """One month of UTC.

    >>> Month(2026, 12).next
    Month(year=2027, number=1)
    """

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """The month that a moment lies in."""
        at = moment.astimezone(UTC)
        return cls(at.year, at.month)

    @classmethod
    def of_partition(cls, name: str) -> Month | None:
        """The month in the name of a partition; None for a name of another making."""
        found = _NAME.search(name)
        if found is None or not 1 <= int(found[2]) <= 12:
            return None
        return cls(int(found[1]), int(found[2]))

    @property
    def next(self) -> Month:
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def start(self) -> datetime:
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment after it."""
        return self.next.start

    def partition(self, table: str) -> str:
        """The name of a table's part for this month."""
        return f"{table}_{self.year:04}_{self.number:02}"


TABLES = ("tasks", "task_events", "task_parameters")
_LOCK = "tidegate:history:"


@dataclass(frozen=True, slots=True)
class TaskMonths:
    """Makes and drops the months of the history."""

    plane: ControlDatabase

    def make(self, connection: Connection, now: datetime, ahead: int = 1) -> int:
        """Make the month that a moment lies in and so many more; returns how many were missing."""
        wanted = [Month.of(now)]
        for _ in range(ahead):
            wanted.append(wanted[-1].next)
        if not any(self._missing(connection, table, wanted) for table in TABLES):
            return 0
        with connection.transaction():
            # One at a time; who was slower finds them made.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0::bigint))",
                (_LOCK + self.plane.schema,),
            )
            made = 0
            for table in TABLES:
                for month in self._missing(connection, table, wanted):
                    self._attach(connection, table, month)
                    made += 1
        return made

    def drop(self, connection: Connection, now: datetime, keep_seconds: float) -> int:
        """Drop the months that ended before all that is kept; returns how many tables that were."""
        oldest = now - timedelta(seconds=keep_seconds)
        dropped = 0
        for table in TABLES:
            for month in sorted(self._months(connection, table)):
                if month.end <= oldest:
                    connection.execute(
                        sql.SQL("DROP TABLE {}").format(self._name(month.partition(table)))
                    )
                    dropped += 1
        return dropped

    def _attach(self, connection: Connection, table: str, month: Month) -> None:
        """CREATE and ATTACH; PARTITION OF would lock readers out."""
        parent, part = self._name(table), self._name(month.partition(table))
        connection.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(part, parent))
        connection.execute(
            sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                parent, part, month.start.isoformat(), month.end.isoformat()
            )
        )

    def _missing(self, connection: Connection, table: str, wanted: list[Month]) -> list[Month]:
        there = self._months(connection, table)
        return [month for month in wanted if month not in there]

    def _months(self, connection: Connection, table: str) -> set[Month]:
        rows = connection.execute(
            self.plane.statement("jobs/history", "list_partitions"),
            {"table": self._name(table).as_string(None)},
        )
        found = (Month.of_partition(row[0]) for row in rows)
        return {month for month in found if month is not None}

    def _name(self, table: str) -> sql.Identifier:
        return sql.Identifier(self.plane.schema, table)


_LONGEST_TRACEBACK = 20_000
_LARGEST_LOG = 10_000_000
_SOON: LiteralString = "SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '3s'"
_QUICKLY: LiteralString = _SOON + "; SET LOCAL synchronous_commit = off"


def record_start(context: JobContext, connection: Connection, claim: Claim) -> None:
    """Tell that an attempt is at work; and how those before it ended, if nobody has."""
    if not _is_recorded(context, claim):
        return
    records = TaskRecords(context.plane)

    def write() -> None:
        before = claim.attempt_count > 1
        left = records.unsettled_of_job(connection, claim.job_id) if before else []
        records.write(connection, [*left, claim.attempt_id])

    # Should the server crash, the end of the attempt writes this once more.
    _try(context.plane, connection, write, _QUICKLY)


def record_end(
    context: JobContext, connection: Connection, claim: Claim, error: BaseException | None = None
) -> None:
    """Tell how an attempt ended, after its job knows."""
    if error is not None:
        _log_failure(context, claim, error)
    if not _is_recorded(context, claim):
        return
    text = None
    if error is not None:
        text = safe_traceback(error)[-_LONGEST_TRACEBACK:]
    records = TaskRecords(context.plane)
    measures = spark_measures(claim.attempt_id)
    metrics = None if measures is None else {"spark": measures}
    _try(
        context.plane,
        connection,
        lambda: records.write(connection, [claim.attempt_id], traceback=text, metrics=metrics),
        # Should the server crash, a sweeper writes it again, but for the traceback and what Spark
        # told.
        _QUICKLY if text is None else _SOON,
    )


def _log_failure(context: JobContext, claim: Claim, error: BaseException) -> None:
    """All that is known goes into the log of this machine, for its owner alone: rows may show."""
    folder = context.settings.state_directory / "logs"
    whole = "".join(traceback.format_exception(error))
    detail = getattr(error, "detail", None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "failures.log"
        with suppress(FileNotFoundError):
            if path.stat().st_size > _LARGEST_LOG:
                path.replace(path.with_suffix(".log.1"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(
                f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {claim.kind} {claim.name}"
                f" job={claim.job_id} attempt={claim.attempt_id}\n{whole}"
                + (f"{detail}\n" if detail and detail not in whole else "")
            )
    except OSError as problem:
        log.warning("failure_not_logged", error=str(problem))


def record_lost_attempts(plane: ControlDatabase, connection: Connection, job_id: UUID) -> None:
    """Tell how the attempts at a job ended that could not tell it themselves."""
    records = TaskRecords(plane)

    def write() -> None:
        left = records.unsettled_of_job(connection, job_id)
        if left:
            records.write(connection, left)

    _try(plane, connection, write)


def record_all_lost(plane: ControlDatabase, connection: Connection, project: str) -> int:
    """The same for every job of a project; returns how many attempts that were."""
    records = TaskRecords(plane)
    left: list[str] = []

    def write() -> None:
        left.extend(records.unsettled(connection, project))
        if left:
            records.write(connection, left)

    return len(left) if _try(plane, connection, write) else 0


def prune_history(plane: ControlDatabase, connection: Connection, keep_seconds: float) -> int:
    """Make the months to come, drop those that are over; returns how many tables were dropped."""
    months, now = TaskMonths(plane), datetime.now(UTC)
    dropped: list[int] = []
    _try(plane, connection, lambda: months.make(connection, now))
    _try(plane, connection, lambda: dropped.append(months.drop(connection, now, keep_seconds)))
    return sum(dropped)


def _is_recorded(context: JobContext, claim: Claim) -> bool:
    """What does nothing leaves no trace: such jobs are many, and only their number matters."""
    return context.settings.history.record_task_history and claim.kind != NOTHING


def _try(
    plane: ControlDatabase,
    connection: Connection,
    write: Callable[[], object],
    limits: LiteralString = _SOON,
) -> bool:
    """Write within a second or two; whatever goes wrong is logged, and False is returned."""
    try:
        try:
            _write_soon(connection, write, limits)
        except pg.CheckViolation:
            # There is no part for this month yet.
            TaskMonths(plane).make(connection, datetime.now(UTC))
            _write_soon(connection, write, limits)
    except Exception as error:
        log.warning("history_not_written", error=str(error).partition("\n")[0])
        return False
    return True


def _write_soon(connection: Connection, write: Callable[[], object], limits: LiteralString) -> None:
    with connection.transaction():
        connection.execute(limits)
        write()
