"""What was done to a lake's table, the newest first."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidegate.control.maintenance import MaintenanceJobs, PastMaintenance
from tidegate.errors import UsageError
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection

MOST = 1_000


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some jobs; the next page starts before `next`, which is None on the last one."""

    target: Endpoint
    jobs: tuple[PastMaintenance, ...]
    next: UUID | None


def table_history(
    context: Context,
    control: Connection,
    target: Endpoint,
    *,
    before: UUID | None = None,
    limit: int = 20,
) -> HistoryPage:
    """A page of the maintenance of a table, dry runs included."""
    if not 1 <= limit <= MOST:
        raise UsageError(f"a list of {limit} jobs", f"give a number from 1 to {MOST:,}")
    jobs = MaintenanceJobs(context.plane, context.settings.project.name)
    found = jobs.history(control, target, before=before, limit=limit + 1)
    shown = tuple(found[:limit])
    return HistoryPage(target, shown, shown[-1].job_id if len(found) > limit else None)
