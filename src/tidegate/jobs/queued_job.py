"""Watching jobs until they end; Postgres may restart meanwhile, the jobs are not touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from tidegate.core.errors import BusyError, ConnectionFailed, UsageError
from tidegate.jobs.context import JobContext
from tidegate.jobs.job import JobState
from tidegate.jobs.job_records import JobAction, JobLine, JobLists, JobRecord, JobRecords
from tidegate.postgres.connection import Connection

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class JobStep:
    """Something new about a job: another state, or a step that it has done.

    Without a job the control database has not answered, and is asked again.
    """

    job: JobLine | None
    action: JobAction | None = None


@dataclass(slots=True)
class JobFollower:
    """Polls jobs; `tick` sees them all with every poll."""

    context: JobContext
    job_ids: Sequence[UUID]
    tick: Callable[[list[JobLine]], None] = lambda _: None
    interval_seconds: float = POLL_SECONDS
    _states: dict[UUID, tuple[JobState, int]] = field(default_factory=dict)
    _positions: dict[UUID, int] = field(default_factory=dict)

    def skip(self, line: JobLine, position: int) -> None:
        """Count this state and the steps up to this one as seen."""
        self._states[line.job_id] = (line.state, line.attempt_count)
        self._positions[line.job_id] = position

    def steps(self) -> Iterator[JobStep]:
        """What happens, until every job has ended."""
        answered = True
        while True:
            try:
                with self.context.plane.connect() as connection:
                    answered = True
                    yield from self._watch(connection)
                    return
            except (psycopg.OperationalError, ConnectionFailed):
                if answered:
                    yield JobStep(None)
                answered = False
                time.sleep(self.interval_seconds)

    def _watch(self, connection: Connection) -> Iterator[JobStep]:
        lists, project = JobLists(self.context.plane), self.context.settings.project.name
        while True:
            found = lists.newest(connection, project, job_ids=self.job_ids)
            if len(found) < len(set(self.job_ids)):
                raise UsageError("a job has been removed meanwhile", "see: tidegate job list")
            for line in reversed(found):
                yield from self._news(lists, connection, line)
            self.tick(found)
            if all(line.status.is_terminal for line in found):
                return
            time.sleep(self.interval_seconds)

    def _news(self, lists: JobLists, connection: Connection, line: JobLine) -> Iterator[JobStep]:
        now, before = (line.state, line.attempt_count), self._states.get(line.job_id)
        # Steps are read after the state: those of a job that has ended are all there.
        position = self._positions.get(line.job_id, 0)
        actions = lists.actions_after(connection, line.job_id, position)
        ended = line.status.is_terminal
        if now != before and not ended:
            self._states[line.job_id] = now
            yield JobStep(line)
        for action in actions:
            self._positions[line.job_id] = action.position
            yield JobStep(line, action)
        if now != before and ended:
            self._states[line.job_id] = now
            yield JobStep(line)


def wait_for_end(context: JobContext, job_id: UUID, timeout_seconds: float | None) -> JobRecord:
    """The job when it has ended; BusyError when it has not by then."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    with context.plane.connect() as connection:
        while True:
            found = JobRecords(context.plane).get(connection, job_id)
            if found is None:
                raise UsageError(f"there is no job {job_id} any more", "see: tidegate job list")
            if found.status.is_terminal:
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise BusyError(
                    f"job {job_id} ({found.name}) is still {found.status} after "
                    f"{timeout_seconds:g} seconds",
                    f"wait longer, or see: tidegate job show {job_id}",
                )
            left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
            time.sleep(max(0.0, min(POLL_SECONDS, left)))


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that was submitted; `created` is False where one was there already.

    >>> project.submit("orders").wait(timeout=600).status            # doctest: +SKIP
    """

    context: JobContext = field(repr=False)
    job_id: UUID
    created: bool

    def state(self) -> str:
        """How it stands now, in words."""
        with self.context.plane.connect() as connection:
            lists, project = JobLists(self.context.plane), self.context.settings.project.name
            found = lists.newest(connection, project, job_ids=[self.job_id])
        return found[0].state.value if found else "gone"

    def wait(self, timeout: float | None = None) -> JobRecord:
        """The job when it has ended, whatever way; BusyError after `timeout` seconds."""
        return wait_for_end(self.context, self.job_id, timeout)
