"""Who holds a destination table now, read without taking anything."""

from __future__ import annotations

from psycopg import errors as pg

from tidegate.control.dead import DeadAttempts
from tidegate.control.jobs import Jobs
from tidegate.errors import ControlMismatch
from tidegate.ledger.fences import Fence, Fences
from tidegate.model.identity import resource_name
from tidegate.model.job import JobStatus
from tidegate.model.lake import lake_resource
from tidegate.model.plan import Lock
from tidegate.model.sync import Sync
from tidegate.pipeline.sessions import Sessions
from tidegate.postgres.catalog import database_identity


def read_lock(sessions: Sessions, sync: Sync) -> Lock:
    """The lock as it stands now."""
    resource = _resource(sessions, sync)
    control = sessions.control()
    if control is None:
        return Lock(resource, free=True)
    jobs = Jobs(sessions.context.plane)
    holder = jobs.holder(control, resource)
    if holder is None:
        return Lock(resource, free=True)
    if holder.status is JobStatus.PENDING:
        note = "nobody works on it; the next run takes it up"
        return Lock(resource, free=True, holder=str(holder), note=note)
    attempts = DeadAttempts(sessions.context.plane).list(control, resource=resource)
    dead = {attempt.attempt_id for attempt in attempts}
    if holder.attempt_id in dead:
        note = "its process is gone; the next run takes over"
        return Lock(resource, free=True, holder=str(holder), note=note)
    return Lock(resource, free=False, holder=str(holder))


def refuse_other_plane(sessions: Sessions, sync: Sync) -> None:
    """Refuse a table that another control plane loads, as raising the fence would."""
    fence = _fence(sessions, sync)
    if fence is None:
        return
    control = sessions.control()
    ours = None if control is None else sessions.context.plane.identity(control)
    if fence.control_id != ours:
        raise ControlMismatch(
            f"{sync.target} is loaded by another control plane ({fence.control_id})",
            f"stop that one first, then hand the table over with: tidegate run {sync.name} "
            "--take-over",
        )


def _resource(sessions: Sessions, sync: Sync) -> str:
    """What a job would lock; told without a control plane, which the first job makes."""
    name, relation = sync.target.connection, sync.target.relation
    if sessions.context.is_lake(name):
        return lake_resource(sessions.context.catalog(name).identity, relation)
    return resource_name(database_identity(sessions.target(name)), relation)


def _fence(sessions: Sessions, sync: Sync) -> Fence | None:
    target = sessions.target(sync.target.connection)
    fences = Fences(sessions.context.ledger(sync.target.connection))
    try:
        return fences.current(target, str(sync.target.relation))
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        return None
