"""What a state file holds, table by table: what is still to be done, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import LiteralString


@dataclass(frozen=True, slots=True)
class StateTable:
    """One table: which of its rows are kept, `t`, and which columns are not.

    Those that a table has beyond are kept too, so that a new one is not forgotten here.
    """

    name: str
    rows: LiteralString = "t.project = %(project)s"
    leave_out: frozenset[str] = frozenset()
    instead: dict[str, LiteralString] = field(default_factory=dict)
    """what is written for a column in place of its value"""


_UNFINISHED: LiteralString = (
    "EXISTS (SELECT FROM {schema}.job_queue q JOIN {schema}.jobs j USING (job_id)"
    " WHERE q.job_id = t.job_id AND q.project = %(project)s AND j.cancel_requested_at IS NULL)"
)

# Whoever held a job does not hold it where the file is loaded: it is pending there. A job that is
# being cancelled is left out, which ends it.
STATE_TABLES = (
    StateTable(
        "jobs",
        _UNFINISHED,
        frozenset(
            {
                "status",
                "attempt_id",
                "result",
                "progress",
                "finished_at",
                "cancel_requested_at",
                "cancel_requested_by",
            }
        ),
        # The steps that a job of maintenance has done stay behind, so it begins anew.
        {"plan": "CASE WHEN t.kind <> 'maintenance' THEN t.plan END"},
    ),
    StateTable(
        "job_queue",
        _UNFINISHED,
        frozenset({"claimed_at", "claimed_by", "attempt_id", "fence", "lease_until"}),
        # A claim puts the job off, which is over where nobody holds it.
        {"visible_at": "coalesce(t.claimed_at, t.visible_at)"},
    ),
    # A need that is met already is none; one that cannot be met any more must stay one.
    StateTable(
        "job_needs",
        _UNFINISHED + " AND NOT EXISTS (SELECT FROM {schema}.jobs done"
        " WHERE done.job_id = t.needs AND done.status = 'done')",
    ),
    StateTable("schedules"),
    StateTable("schedule_ticks"),
    StateTable("task_states"),
    StateTable("task_markers"),
)
REPLACED = frozenset({"schedules", "schedule_ticks", "task_states", "task_markers"})
"""where the file's row wins over one that is there already"""
