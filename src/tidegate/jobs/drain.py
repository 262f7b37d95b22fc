"""Take in no new jobs."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.errors import BusyError
from tidegate.jobs.context import JobContext, control_session
from tidegate.jobs.control_database import ControlDatabase, DrainState
from tidegate.postgres.connection import Connection


def refuse_draining(plane: ControlDatabase, connection: Connection) -> None:
    """Raise when no new job is taken in."""
    draining = plane.draining(connection)
    if draining is not None:
        raise BusyError(
            f"no new jobs are taken in since {draining.since:%Y-%m-%d %H:%M:%S} UTC: "
            f"{draining.by} drains this control plane; nothing was queued",
            "try again later, or let jobs in again with: tidegate drain off",
        )


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """Whether new jobs are taken in, and what is left to be done."""

    draining: DrainState | None = None
    queued: int = 0
    running: int = 0


def read_draining(context: JobContext) -> DrainStatus:
    """How it stands; changes nothing."""
    with control_session(context) as connection:
        return DrainStatus() if connection is None else draining_status(context.plane, connection)


def start_draining(context: JobContext, actor: str) -> tuple[DrainStatus, bool]:
    """Take no new jobs in; says as well whether that is new."""
    context.control_id()  # so that there is a control plane to drain
    with context.plane.connect() as connection:
        changed = context.plane.start_draining(connection, actor)
        return draining_status(context.plane, connection), changed


def stop_draining(context: JobContext) -> tuple[DrainStatus, bool]:
    """Take jobs in again; says as well whether that is new."""
    with control_session(context) as connection:
        if connection is None:
            return DrainStatus(), False
        changed = context.plane.stop_draining(connection)
        return draining_status(context.plane, connection), changed


def draining_status(plane: ControlDatabase, connection: Connection) -> DrainStatus:
    """Whether new jobs are taken in, and what is left, over a session of the caller."""
    row = connection.execute(plane.statement("jobs/job_lists", "count_unfinished"), {}).fetchone()
    assert row is not None
    return DrainStatus(plane.draining(connection), *row)
