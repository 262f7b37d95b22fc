"""Health and recommendation of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import Action, ActionList, Effect, Policy
from tidegate.jobs.queue import Jobs
from tidegate.load.context import Context
from tidegate.maintenance.health import Health, assess
from tidegate.maintenance.recommendation import Recommendation, recommend
from tidegate.maintenance.submit import predict_cheaply
from tidegate.maintenance.tables import (
    CatalogView,
    HistoryPage,
    MaintenanceJobs,
    PastMaintenance,
    TableListing,
    TableView,
    cache,
    lakes,
    list_all,
    require_facts,
)
from tidegate.postgres.connection import Connection


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
class UnhealthyTable:
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
    def order(self) -> ActionList | None:
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


def find_unhealthy(context: Context, control: Connection) -> tuple[UnhealthyTable, ...]:
    """The tables that the cache knows to be not well; nothing is asked where there is no lake."""
    if not lakes(context):
        return ()
    found = list_health(context, control, list_all(context, control).tables)
    return tuple(
        UnhealthyTable(str(one.table.target), one.word, tuple(i.name for i in one.health.issues))
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
        {} if order is None else predict_cheaply(context, table.target, order, now=now),
    )


def _assess(context: Context, table: TableView, now: datetime) -> Health:
    return assess(
        require_facts(table),
        policy_of(context, table.target).thresholds,
        now=now,
        orphan_estimate=table.orphans,
    )


def table_document(table: TableView) -> dict[str, Any]:
    """One table: its facts, and as of when."""
    return _named(table) | {"facts": None if table.facts is None else table.facts.document()}


def health_document(found: TableHealth) -> dict[str, Any]:
    """What is not well with a table."""
    return _named(found.table) | {
        "state": found.word,
        "health": None if found.health is None else found.health.document(),
    }


def recommendation_document(found: TableRecommendation) -> dict[str, Any]:
    """What would be run now, and why."""
    order = found.order
    return _named(found.table) | {
        "automatic": found.policy.automatic,
        "order": None if order is None else order.document(),
        "recommendation": found.recommendation.document(),
        "predicted": effects_document(found.predicted),
    }


def effects_document(effects: Mapping[Action, Effect]) -> dict[str, Any]:
    """What actions would change, or have changed, by name."""
    return {action.value: asdict(effect) for action, effect in effects.items()}


def history_document(page: HistoryPage) -> dict[str, Any]:
    """A page of what was done to a table."""
    return {
        "table": str(page.target),
        "jobs": [past_document(one) for one in page.jobs],
        "next": None if page.next is None else str(page.next),
    }


def past_document(past: PastMaintenance) -> dict[str, Any]:
    """One job of maintenance and the actions it came to."""
    return {
        "job_id": str(past.job_id),
        "status": past.status.value,
        "dry_run": bool(past.payload.get("dry_run")),
        "requested_by": past.payload.get("requested_by") or past.submitted_by,
        "submitted_at": _moment(past.submitted_at),
        "started_at": _moment(past.started_at),
        "finished_at": _moment(past.finished_at),
        "error": past.error,
        "order": past.payload.get("order"),
        "predicted": (past.result or {}).get("predicted"),
        "actions": past.actions,
    }


def catalog_document(catalog: CatalogView) -> dict[str, Any]:
    """One lake, and when it was last looked at."""
    return {
        name: _moment(value) if isinstance(value, datetime) else value
        for name, value in asdict(catalog).items()
    }


def listing_document(
    listing: TableListing, health: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A page of tables; `health` is a word for each."""
    words = health or {}
    return {
        "tables": [
            table_document(one) | ({"state": words[str(one.target)]} if words else {})
            for one in listing.tables
        ],
        "catalogs": [catalog_document(one) for one in listing.catalogs],
        "next": None if listing.next is None else str(listing.next),
    }


def _named(table: TableView) -> dict[str, Any]:
    return {
        "table": str(table.target),
        "catalog": table.target.connection,
        "namespace": table.target.relation.schema,
        "name": table.target.relation.name,
        "live": table.live,
        "as_of": _moment(table.as_of),
        "stale": table.is_stale,
        "stale_since": _moment(table.stale_since),
        "stale_reason": table.stale_reason,
    }


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
