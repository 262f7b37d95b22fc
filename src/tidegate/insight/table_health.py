"""Whether a lake's table is well, and what would help it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tidegate.control.jobs import Jobs
from tidegate.control.maintenance import MaintenanceJobs
from tidegate.insight.tables import TableView, cache, lakes, list_all, require_facts
from tidegate.model.health import Health, assess
from tidegate.model.maintenance import Action, Effect, Order
from tidegate.model.policy import Policy
from tidegate.model.recommendation import Recommendation, recommend
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.pipeline.table_care import foretell_cheaply
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table and what is not well with it; None where it was never read."""

    table: TableView
    health: Health | None

    @property
    def word(self) -> str:
        """good, warning, critical or unknown."""
        return "unknown" if self.health is None else self.health.status


@dataclass(frozen=True, slots=True)
class UnwellTable:
    """A table that is not well, in a few words."""

    table: str
    state: str
    issues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableRecommendation:
    """What policy would do to a table, why, and what that would change."""

    table: TableView
    health: Health
    policy: Policy
    recommendation: Recommendation
    predicted: Mapping[Action, Effect] = field(default_factory=dict)

    @property
    def order(self) -> Order | None:
        """What is to be done now; None when there is nothing."""
        return self.recommendation.order(self.policy)


def policy_of(context: Context, target: Endpoint) -> Policy:
    """What the project wants of a table."""
    return context.settings.maintenance.policy_of(target.connection, target.relation)


def table_health(context: Context, control: Connection, table: TableView) -> TableHealth:
    """Judge what is known of a table; `table_status` makes that live."""
    if table.facts is None:
        return TableHealth(table, None)
    return TableHealth(table, _assess(context, table, cache(context).clock(control)))


def list_health(
    context: Context, control: Connection, tables: tuple[TableView, ...]
) -> tuple[TableHealth, ...]:
    """The health of many tables, from what is known of each."""
    now = cache(context).clock(control)
    return tuple(
        TableHealth(one, None if one.facts is None else _assess(context, one, now))
        for one in tables
    )


def find_unwell(context: Context, control: Connection) -> tuple[UnwellTable, ...]:
    """The tables that the cache knows to be not well; nothing is asked where there is no lake."""
    if not lakes(context):
        return ()
    found = list_health(context, control, list_all(context, control).tables)
    return tuple(
        UnwellTable(str(one.table.target), one.word, tuple(i.name for i in one.health.issues))
        for one in found
        if one.health is not None and not one.health.is_good
    )


def table_recommendation(
    context: Context, control: Connection, table: TableView, *, predict: bool = False
) -> TableRecommendation:
    """What policy would run now, with evidence and cadence; `predict` adds what it would change.

    DestinationError when the table was never read.
    """
    facts, now = require_facts(table), cache(context).clock(control)
    health = _assess(context, table, now)
    policy = policy_of(context, table.target)
    resource = context.destination(table.target).identify()
    holder = Jobs(context.plane).holder(control, resource)
    found = recommend(
        facts,
        health,
        policy,
        MaintenanceJobs(context.plane, context.settings.project.name).last_runs(
            control, table.target
        ),
        now=now,
        busy=None if holder is None else str(holder.job_id),
    )
    order = found.order(policy) if predict else None
    return TableRecommendation(
        table,
        health,
        policy,
        found,
        {} if order is None else foretell_cheaply(context, table.target, order, now=now),
    )


def _assess(context: Context, table: TableView, now: datetime) -> Health:
    return assess(
        require_facts(table),
        policy_of(context, table.target).thresholds,
        now=now,
        orphan_estimate=table.orphans,
    )
