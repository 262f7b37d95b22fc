"""Forgetting jobs that ended long ago."""

from __future__ import annotations

from tidegate.control.plane import ControlPlane
from tidegate.errors import UsageError
from tidegate.postgres.connect import Connection


def prune(
    connection: Connection, plane: ControlPlane, older_than_seconds: float, limit: int = 1_000
) -> int:
    """Forget at most `limit` of them, in one transaction; 0 when there is nothing left to do.

    The newest job that is done stays for each sync, however old: the next run goes by its result.
    """
    if older_than_seconds <= 0 or limit < 1:
        raise UsageError(
            f"cannot forget {limit} jobs older than {older_than_seconds:g} seconds",
            "give a positive number and a positive age",
        )
    done = connection.execute(
        plane.statement("jobs", "prune_jobs"), {"older_than": older_than_seconds, "limit": limit}
    )
    return done.rowcount
