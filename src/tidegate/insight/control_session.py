"""A session on the control database for those who only look: nothing is made there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.control.plane import ControlPlane
from tidegate.errors import UsageError
from tidegate.postgres.connect import Connection
from tidegate.postgres.databases import CONTROL
from tidegate.runtime.job_context import JobContext
from tidegate.sql import migrations


@contextmanager
def control_session(context: JobContext) -> Iterator[Connection | None]:
    """A session; None when nothing ever ran, so that there is no control plane yet."""
    with context.databases.connect(CONTROL, "tidegate inspect") as connection:
        yield connection if has_jobs(context.plane, connection) else None


def has_jobs(plane: ControlPlane, connection: Connection) -> bool:
    """Whether there is a control plane; raises when it is older than what reads it."""
    version, newest = plane.version(connection), migrations("control/migrations")[-1][0]
    if 0 < version < newest:
        raise UsageError(
            f"the control database is at schema version {version}, this Tidegate needs {newest}",
            "bring it up to date with: tidegate db migrate",
        )
    return version > 0
