"""Who keeps vacuum from cleaning up the control database, which makes the job queue slow."""

from __future__ import annotations

from dataclasses import replace

from psycopg import errors as pg

from tidegate.control.plane import ControlPlane
from tidegate.insight.vacuum_remarks import remark_on_holder, remark_on_queue
from tidegate.ledger.fences import publisher_name
from tidegate.model.vacuum_horizon import (
    HolderKind,
    QueueRows,
    VacuumHolder,
    VacuumHorizon,
    find_late,
)
from tidegate.pipeline.privileges import quoted
from tidegate.postgres.connect import Connection

_SHOWN = 10
_PUBLISHER = publisher_name("")


def read_vacuum_horizon(
    connection: Connection, plane: ControlPlane, warning_seconds: float
) -> VacuumHorizon:
    """Look once, over one session of the control database; nothing is written or waited for."""
    queue = _queue(connection, plane)
    found = _holders(connection, plane)
    holders = [holder for holder in found if not holder.only_catalogs][:_SHOWN]
    catalog_holders = [holder for holder in found if holder.only_catalogs][:_SHOWN]
    if queue is not None:
        holders = [_with_job(connection, plane, holder) for holder in holders]
    grant = _missing_grant(connection, plane)
    late = find_late(holders, warning_seconds)
    late_slot = find_late(catalog_holders, warning_seconds)
    crowded = queue is not None and queue.is_crowded
    return VacuumHorizon(
        tuple(holders),
        tuple(catalog_holders),
        queue,
        remark_on_holder(late, grant) if late else None,
        remark_on_holder(late_slot, grant) if late_slot else None,
        remark_on_queue(queue, plane.schema, holders, grant) if queue and crowded else None,
        grant,
    )


def _holders(connection: Connection, plane: ControlPlane) -> list[VacuumHolder]:
    rows = connection.execute(plane.statement("vacuum_horizon", "list_holders"))
    return [VacuumHolder(HolderKind(row[0]), *row[1:]) for row in rows]


def _missing_grant(connection: Connection, plane: ControlPlane) -> str | None:
    row = connection.execute(plane.statement("vacuum_horizon", "see_all_sessions")).fetchone()
    if row and row[0]:
        return None
    return f"GRANT pg_read_all_stats TO {quoted(connection.info.user)}"


def _queue(connection: Connection, plane: ControlPlane) -> QueueRows | None:
    row = connection.execute(
        plane.statement("vacuum_horizon", "count_queue_rows"), {"schema": plane.schema}
    ).fetchone()
    return QueueRows(*row) if row else None


def _with_job(connection: Connection, plane: ControlPlane, holder: VacuumHolder) -> VacuumHolder:
    """A publishing session carries its attempt in its name; other sessions of ours do not."""
    application = holder.application or ""
    if not holder.is_ours or not application.startswith(_PUBLISHER):
        return holder
    try:
        row = connection.execute(
            plane.statement("vacuum_horizon", "get_job_of_attempt"),
            {"attempt_id": application.removeprefix(_PUBLISHER)},
        ).fetchone()
    except pg.InsufficientPrivilege:
        return holder
    return replace(holder, job_id=row[0], job_name=row[1]) if row else holder
