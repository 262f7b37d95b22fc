"""The history of a project's tasks, asked as Luigi's is: by name, id, parameters and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tidegate.control.history import History
from tidegate.control.task_questions import Wanted
from tidegate.errors import UsageError
from tidegate.insight.control_session import control_session
from tidegate.insight.job_ids import id_range
from tidegate.model.task_history import TaskEvent, TaskRecord, parameter_text
from tidegate.model.trend import Trend
from tidegate.runtime.job_context import JobContext

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
        return self.find(Wanted(names=(name,)))

    def find_all_by_parameters(self, name: str, /, **parameters: object) -> Iterator[TaskRecord]:
        """Every run that was called with these, whatever else it was called with."""
        texts = {key: parameter_text(value) for key, value in parameters.items()}
        return self.find(Wanted(names=(name,), parameters=texts))

    def find_task_by_id(self, task_id: UUID | str) -> TaskRecord | None:
        """One run, with its traceback; None when it is not known, or not any more."""
        wanted = task_id if isinstance(task_id, UUID) else UUID(task_id)
        with control_session(self.context) as connection:
            if connection is None:
                return None
            return self._history.get(connection, self._project, wanted)

    def find_latest_runs(self) -> list[TaskRecord]:
        """Every run of the last 24 hours."""
        return list(self.find(Wanted(since=datetime.now(UTC) - _LATEST)))

    def find_all_runs(self) -> Iterator[TaskRecord]:
        """Every run that is remembered."""
        return self.find(Wanted())

    def find_all_events(self, task_id: UUID | str) -> list[TaskEvent]:
        """What happened to one run, in order."""
        wanted = task_id if isinstance(task_id, UUID) else UUID(task_id)
        with control_session(self.context) as connection:
            if connection is None:
                return []
            if self._history.get(connection, self._project, wanted) is None:
                return []
            return self._history.events(connection, wanted)

    def find(self, wanted: Wanted) -> Iterator[TaskRecord]:
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

    def newest(self, wanted: Wanted, limit: int) -> list[TaskRecord]:
        """So many of the runs that fit."""
        with control_session(self.context) as connection:
            if connection is None:
                return []
            return self._history.newest(connection, self._project, wanted, limit=limit)

    def find_by_text(self, text: str) -> list[TaskRecord]:
        """The run that an id, or the beginning of one, means; the id of a job means its runs."""
        lowest, highest = id_range(text)
        found = self.newest(Wanted(ids=(lowest, highest)), 10)
        if not found and lowest == highest:
            found = self.newest(Wanted(job_id=lowest), _PAGE)
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
