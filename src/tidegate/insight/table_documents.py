"""Tables as documents, for programs that read `--json` or ask the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from tidegate.control.maintenance import PastMaintenance
from tidegate.insight.table_health import TableHealth, TableRecommendation
from tidegate.insight.table_history import HistoryPage
from tidegate.insight.tables import CatalogView, TableListing, TableView
from tidegate.model.maintenance import Action, Effect


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
