"""What answers about tables look like, for the description of the routes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from tidegate.model.job import JobStatus
from tidegate.model.maintenance import Action
from tidegate.model.table_facts import TableFacts


class _Named(BaseModel):
    model_config = ConfigDict(extra="allow")

    table: str = Field(description="As commands write it: lake:raw.orders.")
    catalog: str
    namespace: str
    name: str
    live: bool = Field(description="Read at this moment, as opposed to cached.")
    as_of: datetime | None = Field(description="For when this is known to be right.")
    stale: bool
    stale_since: datetime | None
    stale_reason: str | None


class ApiTable(_Named):
    """One table and what it is made of; `facts` is null while it was seen but never read."""

    facts: TableFacts | None


class ListedTable(ApiTable):
    """One table of a list."""

    state: Literal["good", "warning", "critical", "unknown"]


class ApiCatalog(BaseModel):
    """One lake, and when its tables were last looked at."""

    catalog: str
    refreshed_at: datetime | None
    tried_at: datetime | None
    error: str | None
    stale_since: datetime | None
    stale_reason: str | None


class TablePage(BaseModel):
    """Some tables in order, and how it stands with each lake."""

    tables: list[ListedTable]
    catalogs: list[ApiCatalog]
    next_cursor: str | None
    next: str | None = Field(description="The address of the next page.")


class Refresh(BaseModel):
    """What one look at all lakes found."""

    catalogs: int
    read: int
    unchanged: int
    removed: int
    unreadable: int
    failed: int = Field(description="Lakes that did not answer; what is cached of them stays.")
    skipped: int = Field(description="Lakes that another process looks at.")


class ApiHealth(_Named):
    """What is not well with a table; `health` is null while it was never read."""

    state: Literal["good", "warning", "critical", "unknown"]
    health: dict[str, Any] | None


class ApiRecommendation(_Named):
    """What would be run now, and why."""

    automatic: bool = Field(description="Whether the project runs it by itself.")
    order: dict[Action, dict[str, Any]] | None
    recommendation: dict[str, Any]
    predicted: dict[Action, dict[str, Any]]


class PastJob(BaseModel):
    """One job of maintenance, and what it came to."""

    model_config = ConfigDict(extra="allow")

    job_id: UUID
    status: JobStatus
    dry_run: bool
    requested_by: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    order: dict[str, Any] | None
    predicted: dict[str, Any] | None
    actions: list[dict[str, Any]]


class HistoryPage(BaseModel):
    """What was done to a table, the newest first."""

    table: str
    jobs: list[PastJob]
    next_cursor: str | None
    next: str | None = Field(description="The address of the next page.")


_FACTS: dict[str, Any] = {
    "uuid": "0c6f…",
    "location": "file:///lake/raw/orders",
    "metadata_location": "file:///lake/raw/orders/metadata/00042.metadata.json",
    "format_version": 2,
    "snapshot_id": 8031,
    "snapshot_at": "2026-11-02T03:00:00+00:00",
    "snapshots": 120,
    "oldest_snapshot_at": "2026-10-20T03:00:00+00:00",
    "branches": 1,
    "tags": 0,
    "records": 4_200_000,
    "target_file_bytes": 536_870_912,
    "data": {"files": 240, "bytes": 96_000_000},
    "small": {"files": 240, "bytes": 96_000_000},
    "small_after": 1,
    "partitions": 1,
    "largest_partition_bytes": 96_000_000,
    "median_partition_bytes": 96_000_000,
    "position_deletes": {"files": 0, "bytes": 0},
    "position_deleted_rows": 0,
    "equality_deletes": {"files": 0, "bytes": 0},
    "equality_deleted_rows": 0,
    "dangling_delete_files": 0,
    "manifests": {"files": 120, "bytes": 900_000},
    "small_manifests": 120,
    "metadata_files": 42,
}
_NAMES = {
    "table": "lake:raw.orders",
    "catalog": "lake",
    "namespace": "raw",
    "name": "orders",
    "live": False,
    "as_of": "2026-11-02T03:09:00+00:00",
    "stale": False,
    "stale_since": None,
    "stale_reason": None,
}
# Through the model, so that what is added there is shown here.
EXAMPLE: dict[str, Any] = _NAMES | {"facts": TableFacts.read(_FACTS).document()}
PAGE_EXAMPLE = {
    "tables": [EXAMPLE | {"state": "warning"}],
    "catalogs": [
        {
            "catalog": "lake",
            "refreshed_at": "2026-11-02T03:09:00+00:00",
            "tried_at": "2026-11-02T03:09:00+00:00",
            "error": None,
            "stale_since": None,
            "stale_reason": None,
        }
    ],
    "next_cursor": None,
    "next": None,
}
REFRESHED = {
    "catalogs": 1,
    "read": 3,
    "unchanged": 12,
    "removed": 0,
    "unreadable": 0,
    "failed": 0,
    "skipped": 0,
}
HEALTH_EXAMPLE = _NAMES | {
    "state": "warning",
    "health": {
        "is_good": False,
        "issues": [
            {
                "name": "small_files",
                "severity": "warning",
                "message": "240 of 240 data files are small",
                "evidence": {"files": 240, "limit": 20},
                "action": "rewrite_data_files",
            }
        ],
    },
}
_EFFECT = {
    "of": "data files",
    "before": {"files": 240, "bytes": 96_000_000},
    "after": {"files": 1, "bytes": 95_000_000},
    "snapshots": None,
}
RECOMMENDATION_EXAMPLE = _NAMES | {
    "automatic": False,
    "order": {"rewrite_data_files": {"min_input_files": 5}},
    "recommendation": {
        "actions": [
            {
                "action": "rewrite_data_files",
                "run": True,
                "reason": "240 of 240 data files are small",
                "every_seconds": 3600.0,
                "skip": None,
            }
        ]
    },
    "predicted": {"rewrite_data_files": _EFFECT},
}
HISTORY_EXAMPLE = {
    "table": "lake:raw.orders",
    "jobs": [
        {
            "job_id": "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f",
            "status": "done",
            "dry_run": False,
            "requested_by": "token nightly (HTTP)",
            "submitted_at": "2026-11-02T03:10:00+00:00",
            "started_at": "2026-11-02T03:10:00.120000+00:00",
            "finished_at": "2026-11-02T03:10:21.480000+00:00",
            "error": None,
            "order": {"rewrite_data_files": {"min_input_files": 5}},
            "predicted": None,
            "actions": [{"action": "rewrite_data_files", "status": "done", "seconds": 18.1}],
        }
    ],
    "next_cursor": None,
    "next": None,
}
PREDICTED_EXAMPLE = {"rewrite_data_files": _EFFECT}
