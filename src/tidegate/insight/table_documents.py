"""Tables as documents, for programs that read `--json` or ask the service."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tidegate.insight.tables import CatalogView, TableListing, TableView


def table_document(table: TableView) -> dict[str, Any]:
    """One table: its facts, and as of when."""
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
        "facts": None if table.facts is None else table.facts.document(),
    }


def catalog_document(catalog: CatalogView) -> dict[str, Any]:
    """One lake, and when it was last looked at."""
    return {
        name: _moment(value) if name.endswith(("_at", "_since")) else value
        for name, value in asdict(catalog).items()
    }


def listing_document(listing: TableListing) -> dict[str, Any]:
    """A page of tables."""
    return {
        "tables": [table_document(one) for one in listing.tables],
        "catalogs": [catalog_document(one) for one in listing.catalogs],
        "next": None if listing.next is None else str(listing.next),
    }


def _moment(at: Any) -> str | None:
    return None if at is None else at.isoformat()
