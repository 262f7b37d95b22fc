"""Recording: every attempt is told to the history, and none fails because that did."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import LiteralString
from uuid import UUID

from psycopg import errors as pg

from tidegate.control.plane import ControlPlane
from tidegate.control.task_months import TaskMonths
from tidegate.control.task_records import TaskRecords
from tidegate.errors import safe_traceback
from tidegate.log import log
from tidegate.model.job import NOTHING, Claim
from tidegate.postgres.connect import Connection
from tidegate.runtime.job_context import JobContext
from tidegate.spark.measures import spark_measures

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


def settle_job(plane: ControlPlane, connection: Connection, job_id: UUID) -> None:
    """Tell how the attempts at a job ended that could not tell it themselves."""
    records = TaskRecords(plane)

    def write() -> None:
        left = records.unsettled_of_job(connection, job_id)
        if left:
            records.write(connection, left)

    _try(plane, connection, write)


def settle_all(plane: ControlPlane, connection: Connection, project: str) -> int:
    """The same for every job of a project; returns how many attempts that were."""
    records = TaskRecords(plane)
    left: list[str] = []

    def write() -> None:
        left.extend(records.unsettled(connection, project))
        if left:
            records.write(connection, left)

    return len(left) if _try(plane, connection, write) else 0


def tidy_history(plane: ControlPlane, connection: Connection, keep_seconds: float) -> int:
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
    plane: ControlPlane,
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
