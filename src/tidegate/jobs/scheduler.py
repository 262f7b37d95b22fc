"""Queue what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tidegate.config.task import Step, TaskRun
from tidegate.core.cron import CatchUp
from tidegate.core.failpoints import reach
from tidegate.core.log import log
from tidegate.jobs.context import JobContext
from tidegate.jobs.dependencies import Limits, Needs
from tidegate.jobs.job import TASK
from tidegate.jobs.loop import Loop, reason
from tidegate.jobs.schedules import DisableRule, Scheduled, Schedules, TaskStates, TickOutcome
from tidegate.postgres.connection import Connection


def why_disabled(
    context: JobContext, control: Connection, one: Scheduled, now: datetime
) -> str | None:
    """Why nothing of this name is queued now; None when it is."""
    return _judge(context, control, one.name, one.kind, one.disable_after, now)


def why_runs_disabled(
    context: JobContext, control: Connection, steps: Iterable[Step], now: datetime
) -> str | None:
    """Why a graph is not queued: one of its runs failed too often; other runs are not concerned."""
    for step in steps:
        if isinstance(step, TaskRun):
            after = step.task.disable_after
            found = _judge(context, control, step.name, TASK, after, now, run=step)
            if found is not None:
                return f"{step}: {found}"
    return None


def _judge(
    context: JobContext,
    control: Connection,
    name: str,
    kind: str,
    disable_after: int | None,
    now: datetime,
    *,
    run: TaskRun | None = None,
) -> str | None:
    settings = context.settings.scheduler
    rule = DisableRule(
        disable_after or settings.disable_after,
        settings.disable_window_seconds,
        settings.disable_for_seconds,
    )
    found = TaskStates(context.plane, context.settings.project.name).judge(
        control,
        name,
        kind,
        rule,
        now,
        digest="" if run is None else run.digest,
        update_id=None if run is None else run.update_id,
    )
    if found is None:
        return None
    if found.since == now:
        log.warning(
            "disabled", name=str(run or name), failures=found.failures, until=str(found.until)
        )
    return f"{found.failures} failures; disabled until {found.until:%Y-%m-%d %H:%M:%S} UTC"


_AGAIN_AFTER = timedelta(seconds=10)
_TICKS_AT_ONCE = 100
# Others skip a schedule that is seen to; one who is stopped in it must not keep it for ever.
_PATIENCE = "SET LOCAL idle_in_transaction_session_timeout = '10s'"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What queueing for a tick came to."""

    outcome: TickOutcome
    job_id: UUID | None = None
    detail: str | None = None


Enqueue = Callable[[Connection, str], Enqueued]
"""queues for a tick, as an actor, in the transaction that notes the tick"""
Prepare = Callable[[Scheduled, datetime], Enqueue]
"""all that a tick needs of other databases, asked before that transaction"""


@dataclass(frozen=True, slots=True)
class ScheduleRound:
    """What one look at all schedules came to; `missed` ticks are those nobody catches up with."""

    queued: int = 0
    coalesced: int = 0
    complete: int = 0
    disabled: int = 0
    failed: int = 0
    missed: int = 0
    released: int = 0
    """jobs that waited for others, and need not any more"""
    given_up: int = 0
    """jobs that waited for others which failed"""

    def __add__(self, other: ScheduleRound) -> ScheduleRound:
        mine, others = asdict(self), asdict(other)
        return ScheduleRound(**{name: mine[name] + others[name] for name in mine})


class Scheduler:
    """Schedules for one project; any number may, since a tick and its job are one commit."""

    def __init__(
        self,
        context: JobContext,
        declared: Sequence[Scheduled],
        prepare: Mapping[str, Prepare],
        *,
        actor: str,
    ) -> None:
        self._context = context
        self._declared = list(declared)
        self._prepare = prepare
        self._actor = actor
        project = context.settings.project.name
        self._schedules = Schedules(context.plane, project)
        self._limits = Limits(context.plane, project)
        self._declare_at: datetime | None = None
        self._next: dict[str, tuple[datetime, datetime]] = {}
        self._not_before: dict[str, datetime] = {}

    def loop(self) -> Loop:
        """Scheduling, for as long as it runs."""
        return Loop(
            "scheduler",
            lambda control: asdict(self.run_once(control)),
            self._context.plane.connect,
            interval_seconds=self._context.settings.scheduler.poll_seconds,
        )

    def run_once(self, control: Connection, now: datetime | None = None) -> ScheduleRound:
        """One look at all schedules, as of `now`; one that cannot be queued stops no other."""
        now = now or self._schedules.clock(control)
        if self._declare_at is None or not 0 <= (now - self._declare_at).total_seconds() < 60:
            self._declare(control, now)
        settled = Needs(self._context.plane).settle_all(control, actor=self._actor)
        done = ScheduleRound(released=settled.released, given_up=settled.failed)
        if self._context.plane.draining(control) is not None:
            return done
        seen = self._schedules.seen_until(control)
        for one in self._declared:
            since = seen.get(one.name)
            if since is not None and self._is_due(one, since, now):
                done += self._try(control, one, since, now)
        return done

    def _declare(self, control: Connection, now: datetime) -> None:
        self._schedules.declare(control, self._declared, now)
        self._limits.declare(control, self._context.settings.resources)
        self._declare_at = now

    def _is_due(self, one: Scheduled, since: datetime, now: datetime) -> bool:
        """Whether a tick lies in (since, now]; the next one is worked out once."""
        if now < self._not_before.get(one.name, now):
            return False
        known = self._next.get(one.name)
        if known is None or known[0] != since:
            known = self._next[one.name] = since, one.schedule.next_after(since)
        return known[1] <= now

    def _try(
        self, control: Connection, one: Scheduled, since: datetime, now: datetime
    ) -> ScheduleRound:
        done, seen = ScheduleRound(), since
        try:
            for _ in range(_TICKS_AT_ONCE if one.kind == TASK else 1):
                some = self._see_to(control, one, seen, now)
                if some is None:
                    break
                done, seen = done + some[0], some[1]
                if seen >= now:
                    break
        except Exception as error:
            if control.closed:
                raise
            # The tick is still due; a database that is away need not be asked every second.
            self._not_before[one.name] = now + _AGAIN_AFTER
            log.warning("tick_not_queued", name=one.name, error=reason(error))
        return done

    def _see_to(
        self, control: Connection, one: Scheduled, since: datetime, now: datetime
    ) -> tuple[ScheduleRound, datetime] | None:
        """All ticks up to now, or the oldest of them where each one counts, and up to which moment.

        A task's are seen to one by one: a graph may take long to look through, and whoever is
        killed meanwhile should not have to begin with the first of them again. None when another
        sees to it.
        """
        ticks = one.schedule.due(since, now, one.catch_up)
        some = ticks[: 1 if one.kind == TASK else _TICKS_AT_ONCE]
        until = now if len(some) == len(ticks) else some[-1]
        prepared = [(tick, self._prepare[one.kind](one, tick)) for tick in some]
        outcomes: list[TickOutcome] = []
        with control.transaction():
            control.execute(_PATIENCE)
            if not self._schedules.lock(control, one.name, since):
                return None
            disabled = self._judge(control, one, now) if some else None
            for tick, enqueue in prepared:
                if self._schedules.has_tick(control, one.name, tick):
                    continue
                found = disabled or enqueue(control, self._actor)
                reach("tick.queued")
                self._schedules.note(
                    control,
                    one.name,
                    tick,
                    found.outcome,
                    actor=self._actor,
                    job_id=found.job_id,
                    detail=found.detail,
                )
                outcomes.append(found.outcome)
            self._schedules.move(control, one.name, until)
            reach("tick.noted")
        reach("tick.committed")
        missed = self._count_missed(one, since, now, len(ticks))
        if missed:
            log.info("ticks_missed", name=one.name, ticks=missed, catch_up=one.catch_up.value)
        counts = {outcome.value: outcomes.count(outcome) for outcome in TickOutcome}
        return ScheduleRound(**counts, missed=missed), until

    def _judge(self, control: Connection, one: Scheduled, now: datetime) -> Enqueued | None:
        if one.kind == TASK:
            # Each of its runs by itself, when it is known which one a tick asks for.
            return None
        why = why_disabled(self._context, control, one, now)
        return None if why is None else Enqueued(TickOutcome.DISABLED, detail=why)

    def _count_missed(self, one: Scheduled, since: datetime, now: datetime, due: int) -> int:
        if one.catch_up is CatchUp.ALL:
            return 0
        return len(one.schedule.between(since, now)) - due
