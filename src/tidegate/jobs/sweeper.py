"""Reclaim, end cancels, remove leftovers, forget old jobs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

from tidegate.core.errors import UsageError
from tidegate.core.log import log
from tidegate.core.relation import Endpoint
from tidegate.jobs.access_audit import AccessAudit
from tidegate.jobs.cancel import Cancels, PendingCancel, end_cancel
from tidegate.jobs.context import JobContext
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.dependencies import Needs
from tidegate.jobs.history.writer import prune_history, record_all_lost
from tidegate.jobs.lease import now
from tidegate.jobs.loop import Loop, reason
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempt, LostAttempts, reclaim_attempt, target_of_job
from tidegate.jobs.schedules import Schedules
from tidegate.postgres.connection import Connection

_APART_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """The newest sweep, and its age by the database's clock."""

    swept_at: datetime
    swept_by: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Sweeps:
    """One row a project."""

    plane: ControlDatabase

    def note(self, connection: Connection, project: str, actor: str) -> bool:
        """Write it down; False when another did so just now, which is as good."""
        noted = connection.execute(
            self.plane.statement("jobs/sweeps", "note_sweep"),
            {"project": project, "swept_by": actor, "apart": _APART_SECONDS},
        )
        return noted.rowcount == 1

    def last(self, connection: Connection, project: str) -> Sweep | None:
        """The newest sweep; None when there never was one."""
        row = connection.execute(
            self.plane.statement("jobs/sweeps", "last_sweep"), {"project": project}
        ).fetchone()
        return None if row is None else Sweep(*row)


def prune(
    connection: Connection, plane: ControlDatabase, older_than_seconds: float, limit: int = 1_000
) -> int:
    """Forget at most `limit` of them, in one transaction; 0 when there is nothing left to do.

    The newest job that is done stays for each sync, however old: the next run goes by its result.
    """
    if older_than_seconds <= 0 or limit < 1:
        raise UsageError(
            f"cannot forget {limit} jobs older than {older_than_seconds:g} seconds",
            "give a positive number and a positive age",
        )
    done = connection.execute(
        plane.statement("jobs/jobs", "prune_jobs"),
        {"older_than": older_than_seconds, "limit": limit},
    )
    return done.rowcount


_TIDY_SECONDS = 600.0
_MOST_CHUNKS = 20


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did."""

    reclaimed: int = 0
    cancelled: int = 0
    staging: int = 0
    forgotten: int = 0


class Sweeper:
    """Sweeps for one project; any number may, at the same time, since each row is taken singly."""

    def __init__(
        self, context: JobContext, *, actor: str, targets: Callable[[], Iterable[Endpoint]]
    ) -> None:
        self._context = context
        self._actor = actor
        self._targets = targets
        self._tidy_at = now() + _TIDY_SECONDS * random.random()

    def loop(self) -> Loop:
        """Sweeping, for as long as it runs."""
        return Loop(
            "sweeper",
            lambda control: asdict(self.run_once(control)),
            self._context.plane.connect,
            interval_seconds=self._context.settings.worker.sweep_seconds,
        )

    def run_once(self, control: Connection, *, tidy: bool = False) -> Swept:
        """One sweep; a job that cannot be swept is told and does not stop the others.

        What has no hurry, staging tables and old jobs, is tidied up every ten minutes.
        """
        project = self._context.settings.project.name
        dead = LostAttempts(self._context.plane).list(control, project=project)
        half = Cancels(self._context.plane).list_half_done(control, project)
        reclaimed = sum(
            self._try(control, one, partial(self._reclaim, control, one)) for one in dead
        )
        cancelled = sum(
            self._try(control, one, partial(self._end_cancel, control, one)) for one in half
        )
        Needs(self._context.plane).settle_all(control, actor=self._actor)
        record_all_lost(self._context.plane, control, project)
        Sweeps(self._context.plane).note(control, project, self._actor)
        if now() < self._tidy_at and not tidy:
            return Swept(reclaimed, cancelled)
        self._tidy_at = now() + _TIDY_SECONDS
        prune_history(self._context.plane, control, self._context.settings.history.keep_seconds)
        return Swept(reclaimed, cancelled, self._drop_staging(control), self._forget(control))

    def _reclaim(self, control: Connection, dead: LostAttempt) -> bool:
        context = self._context
        destination = target_of_job(context, dead.kind, dead.payload)
        if destination is None:
            return LostAttempts(context.plane).reclaim(control, dead, self._actor)
        return reclaim_attempt(
            context.plane,
            control,
            context.control_id(),
            destination,
            dead,
            self._actor,
            context.settings.worker.backoff,
        )

    def _end_cancel(self, control: Connection, half: PendingCancel) -> bool:
        end_cancel(self._context, control, half, actor=self._actor)
        return True

    def _try(
        self, control: Connection, one: LostAttempt | PendingCancel, sweep: Callable[[], bool]
    ) -> bool:
        try:
            return sweep()
        except Exception as error:
            if control.closed:
                raise
            log.warning("job_not_swept", job=str(one.job_id), error=reason(error))
            return False

    def _forget(self, control: Connection) -> int:
        """Forget jobs that ended long ago, and old lines of the audit, some at a time."""
        keep = self._context.settings.worker.keep_jobs_seconds
        Schedules(self._context.plane, self._context.settings.project.name).prune(control, keep)
        audit = AccessAudit(self._context.plane, self._context.settings.project.name)
        keep_audit = self._context.settings.serve.keep_audit_seconds
        _in_chunks(lambda: audit.prune(control, keep_audit))
        return _in_chunks(lambda: prune(control, self._context.plane, keep))

    def _drop_staging(self, control: Connection) -> int:
        """Drop what this control plane's dead attempts staged."""
        jobs, dropped = Jobs(self._context.plane), 0
        swept: set[Endpoint | str] = set()
        for target in self._targets():
            try:
                # A database is swept as a whole, a lake table by table.
                lake = self._context.is_lake(target.connection)
                place: Endpoint | str = target if lake else target.connection
                if place in swept:
                    continue
                swept.add(place)
                destination = self._context.destination(target)
                dropped += destination.sweep(lambda: jobs.live_attempts(control))
            except Exception as error:
                if control.closed:
                    raise
                log.warning("staging_not_swept", connection=target.connection, error=reason(error))
        return dropped


def _in_chunks(forget: Callable[[], int]) -> int:
    """Repeat it while it does something, within bounds; returns how much was done."""
    forgotten = 0
    for _ in range(_MOST_CHUNKS):
        chunk = forget()
        forgotten += chunk
        if not chunk:
            break
    return forgotten
