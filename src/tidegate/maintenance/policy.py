"""Automatic maintenance: what policy recommends is queued, by any number of loops once."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.log import log
from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import ActionList, Policy
from tidegate.jobs.job import LockAt, Submitted
from tidegate.jobs.loop import Loop, reason
from tidegate.load.context import Context
from tidegate.maintenance.health import assess
from tidegate.maintenance.recommendation import recommend
from tidegate.maintenance.submit import submit_maintenance, table_holder
from tidegate.maintenance.table_cache import CachedTable, TableCache
from tidegate.maintenance.tables import MaintenanceJobs
from tidegate.postgres.connection import Connection

ACTOR = "policy"
PRIORITY = -10
"""whatever people or schedules want comes first"""


@dataclass(frozen=True, slots=True)
class QueuedActions:
    """What one look at all tables led to."""

    queued: int = 0
    looked_at: int = 0


class PolicyRunner:
    """Decides for each table of a project whether something is to be done to it by itself."""

    def __init__(self, context: Context) -> None:
        self._context = context
        project = context.settings.project.name
        self._tables = TableCache(context.plane, project)
        self._jobs = MaintenanceJobs(context.plane, project)

    def loop(self) -> Loop:
        """Following policy, for as long as it runs; a refresh of the table cache wakes it."""
        return Loop(
            "policy",
            lambda control: {"queued": self.run_once(control).queued},
            self._context.plane.connect,
            interval_seconds=self._context.settings.maintenance.refresh_seconds,
        )

    def run_once(self, control: Connection) -> QueuedActions:
        """Look at each table that wants it; one that cannot be decided does not stop the others."""
        queued = looked_at = 0
        if self._context.plane.draining(control) is not None:
            return QueuedActions()
        for target, policy in self._wanted(control):
            looked_at += 1
            try:
                queued += self._decide(control, target, policy)
            except Exception as error:
                if control.closed:
                    raise
                log.warning("maintenance_not_queued", table=str(target), error=reason(error))
        return QueuedActions(queued, looked_at)

    def _wanted(self, control: Connection) -> list[tuple[Endpoint, Policy]]:
        settings, context = self._context.settings.maintenance, self._context
        lakes = [one for one in context.settings.connections if context.is_lake(one)]
        found = []
        for target in self._tables.names(control, lakes):
            policy = settings.policy_of(target.connection, target.relation)
            if policy.automatic:
                found.append((target, policy))
        return found

    def _decide(self, control: Connection, target: Endpoint, policy: Policy) -> bool:
        """Queue what is recommended; whoever decides at the same moment leaves it to one."""
        with control.transaction():
            if not self._jobs.try_turn(control, target):
                return False
            # Read in our turn: another may have queued, and a worker done it, a moment ago.
            cached = self._tables.get(control, target)
            order = None if cached is None else self._order(control, cached, policy)
            if order is None:
                return False
            submitted = submit_maintenance(
                self._context,
                control,
                target,
                order,
                actor=ACTOR,
                lock_at=LockAt.CLAIM,
                priority=PRIORITY,
                unique_key=f"maintenance:{target}",
            )
        if submitted.outcome is not Submitted.QUEUED:
            return False
        log.info(
            "maintenance_queued",
            table=str(target),
            job=str(submitted.job_id),
            actions=[one.value for one in order.actions],
        )
        return True

    def _order(self, control: Connection, cached: CachedTable, policy: Policy) -> ActionList | None:
        if cached.facts is None or cached.error is not None or cached.catalog.error is not None:
            return None
        now, target = self._tables.clock(control), cached.target
        health = assess(cached.facts, policy.thresholds, now=now, orphan_estimate=cached.orphans)
        holder = table_holder(self._context, control, target)
        return recommend(
            cached.facts,
            health,
            policy,
            self._jobs.last_runs(control, target),
            now=now,
            busy=None if holder is None else str(holder.job_id),
        ).order(policy)
