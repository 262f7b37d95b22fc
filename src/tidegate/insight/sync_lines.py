"""The syncs of a project by what the control database knows; no source or target is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tidegate.control.job_records import JobRecords, RecentJob
from tidegate.insight.status import State
from tidegate.model.group import Group
from tidegate.model.job import SYNC, JobStatus
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class SyncLine:
    """One sync, and how its latest job went; a group stands for its tables."""

    sync: str
    source: str
    target: str
    mode: str
    is_group: bool
    state: State
    job_id: str | None
    last_run_at: datetime | None
    rows: int | None
    error: str | None
    watermark: str | None
    late_rows: int = 0
    """that the latest run found below the watermark"""
    late_farthest: float = 0.0
    """behind it, in seconds or in steps of an integer cursor"""


def list_syncs(
    context: Context, control: Connection, declared: Iterable[Sync | Group]
) -> list[SyncLine]:
    """What is declared, in order, and after each group those of its tables that ever ran."""
    jobs = JobRecords(context.plane).recent(control, context.settings.project.name, SYNC)
    found: list[SyncLine] = []
    for one in declared:
        if isinstance(one, Sync):
            found.append(_line(one, one.name, jobs.get(one.name)))
            continue
        found.append(_line(one, one.name, None))
        begins = f"{one.name}."
        ran = sorted(name for name in jobs if name.startswith(begins))
        found += [_line(one, name, jobs[name]) for name in ran]
    return found


def _line(one: Sync | Group, name: str, job: RecentJob | None) -> SyncLine:
    is_group = isinstance(one, Group) and name == one.name
    result = (job.result or {}) if job else {}
    return SyncLine(
        sync=name,
        source=one.source_name if isinstance(one, Sync) else str(one.source),
        target=str(one.target),
        mode=(one if isinstance(one, Sync) else one.template).mode.value,
        is_group=is_group,
        state=_state(job),
        job_id=None if job is None else str(job.job_id),
        last_run_at=(job.finished_at or job.submitted_at) if job else None,
        rows=result.get("rows"),
        error=job.error if job else None,
        watermark=result.get("watermark"),
        late_rows=int((result.get("late") or {}).get("rows", 0)),
        late_farthest=float((result.get("late") or {}).get("farthest", 0.0)),
    )


def _state(job: RecentJob | None) -> State:
    if job is None:
        return State.NEVER_RAN
    result = (job.result or {}) if job.status is JobStatus.DONE else {}
    if result.get("found_nothing"):
        return State.FOUND_NOTHING
    return State.ADOPTED if result.get("adopted") else State(job.status.value)
