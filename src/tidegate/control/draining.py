"""While the control plane drains, no new job is taken in."""

from __future__ import annotations

from tidegate.control.plane import ControlPlane
from tidegate.errors import BusyError
from tidegate.postgres.connect import Connection


def refuse_draining(plane: ControlPlane, connection: Connection) -> None:
    """Raise when no new job is taken in."""
    draining = plane.draining(connection)
    if draining is not None:
        raise BusyError(
            f"no new jobs are taken in since {draining.since:%Y-%m-%d %H:%M:%S} UTC: "
            f"{draining.by} drains this control plane; nothing was queued",
            "try again later, or let jobs in again with: tidegate drain off",
        )
