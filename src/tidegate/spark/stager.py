"""Small batches that are staged at the same time share one Spark job.

A Spark job costs about as much as copying ten thousand rows. Whoever comes while a job is running
waits for it, and all who wait then go together in the next one: nobody waits for company, and the
busier it is, the more share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import TidegateError
from tidegate.spark.binary_copy import Copy, stage_copies, stage_copy
from tidegate.spark.session import SparkSessions
from tidegate.spark.tags import shared, tagged, work_tag

Outcome = tuple[StagedWrite, ...] | TidegateError
_MOST_COPIES = 64


@dataclass(slots=True, eq=False)
class _Waiting:
    copy: Copy
    outcome: tuple[StagedWrite, ...] | BaseException | None = None


@dataclass(slots=True)
class Groups:
    """Gathers the batches of any number of threads; `run` stages those of one group."""

    run: Callable[[list[Copy]], list[Outcome]]
    _waiting: list[_Waiting] = field(default_factory=list)
    _busy: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def stage(self, copy: Copy) -> tuple[StagedWrite, ...]:
        """Stage one batch, alone or with others; its failure is raised, those of others not."""
        mine = _Waiting(copy)
        with self._changed:
            self._waiting.append(mine)
            self._changed.notify_all()
            while self._busy and mine.outcome is None:
                self._changed.wait()
            if mine.outcome is not None:
                return _result(mine.outcome)
            self._busy = True
            group = self._take(mine)
        try:
            self._run(group)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        return _result(mine.outcome)

    def wait_for(self, count: int) -> None:
        """Return when so many wait for the job under way to end."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= count)

    def _take(self, mine: _Waiting) -> list[_Waiting]:
        others = [one for one in self._waiting if one is not mine]
        self._waiting = others[_MOST_COPIES - 1 :]
        return [mine, *others[: _MOST_COPIES - 1]]

    def _run(self, group: list[_Waiting]) -> None:
        outcomes: list[tuple[StagedWrite, ...] | BaseException]
        try:
            outcomes = list(self.run([one.copy for one in group]))
        except BaseException as error:
            outcomes = [error] * len(group)
        with self._changed:
            for one, outcome in zip(group, outcomes, strict=True):
                one.outcome = outcome


def _result(outcome: tuple[StagedWrite, ...] | BaseException | None) -> tuple[StagedWrite, ...]:
    assert outcome is not None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


class Stager:
    """Stages batches in one Spark session: large ones each in a job, small ones together."""

    def __init__(self, sessions: Callable[[], SparkSessions]) -> None:
        self._sessions = sessions
        self._small = Groups(self._stage_small)

    def stage(self, copy: Copy) -> tuple[StagedWrite, ...]:
        if len(copy.reader.statements) == 1:
            return self._small.stage(copy)
        session = self._sessions().get()
        with tagged(session, work_tag(copy.place.attempt_id)):
            return stage_copy(session, copy.reader, copy.place)

    def _stage_small(self, copies: list[Copy]) -> list[Outcome]:
        sessions = self._sessions()
        session, tasks = sessions.get(), min(len(copies), sessions.parallelism())
        with shared(session, (one.place.attempt_id for one in copies)):
            return stage_copies(session, copies, tasks=tasks)
