"""How the events of a project stand, as the service describes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

STATUS_EXAMPLE: dict[str, Any] = {
    "connection": "warehouse",
    "raw": "public.raw_events",
    "facts": "warehouse.fact_events",
    "is_provisioned": True,
    "pending": 1200,
    "oldest_pending_at": "2026-11-02T03:08:11+00:00",
    "lag_seconds": 109.2,
    "failed": 1,
    "reasons": [
        {
            "error": "occurred_at is missing ($.occurred_at)",
            "events": 1,
            "last_at": "2026-11-02T03:05:02+00:00",
            "example": "5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e7f",
        }
    ],
    "last_hour": {
        "batches": 3,
        "done": 58211,
        "failed": 1,
        "facts": 58002,
        "busy_seconds": 9.7,
        "last_committed_at": "2026-11-02T03:05:02+00:00",
        "per_second": 6001.2,
    },
    "partitions": 4,
    "first_partition": "fact_events_2026_10",
    "last_partition": "fact_events_2027_01",
    "facts_bytes": 48234496,
    "views": [
        {
            "view": "analytics.mv_revenue_summary",
            "refreshed_at": "2026-11-02T03:05:04+00:00",
            "seconds": 0.8,
            "rows": 410,
            "is_current": True,
            "failed_at": None,
            "error": None,
        }
    ],
}


class ApiReason(BaseModel):
    """Why events failed."""

    error: str
    events: int
    last_at: datetime | None
    example: UUID = Field(description="The id of one of them.")


class ApiThroughput(BaseModel):
    """What was committed in the last hour."""

    batches: int
    done: int
    failed: int
    facts: int
    busy_seconds: float
    last_committed_at: datetime | None
    per_second: float | None = Field(description="Events in a second of work.")


class ApiView(BaseModel):
    """One view over the facts."""

    view: str
    refreshed_at: datetime | None
    seconds: float | None
    rows: int | None
    is_current: bool = Field(description="Whether it shows every change that is committed.")
    failed_at: datetime | None
    error: str | None


class ApiEventStatus(BaseModel):
    """Backlog, lag, throughput, failures and views."""

    connection: str
    raw: str
    facts: str
    is_provisioned: bool = Field(description="Whether the tables are there.")
    pending: int = Field(description="Events that wait; counted up to a million.")
    oldest_pending_at: datetime | None
    lag_seconds: float | None = Field(description="How long the oldest of them has waited.")
    failed: int
    reasons: list[ApiReason] = Field(description="The most frequent ones.")
    last_hour: ApiThroughput
    partitions: int = Field(description="Months of facts.")
    first_partition: str | None
    last_partition: str | None
    facts_bytes: int
    views: list[ApiView]
