"""When a project was last swept: what tells that somebody looks after its dead."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection

_APART_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """The newest sweep, and its age by the database's clock."""

    swept_at: datetime
    swept_by: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Sweeps:
    """One row a project."""

    plane: ControlPlane

    def note(self, connection: Connection, project: str, actor: str) -> bool:
        """Write it down; False when another did so just now, which is as good."""
        noted = connection.execute(
            self.plane.statement("sweeps", "note_sweep"),
            {"project": project, "swept_by": actor, "apart": _APART_SECONDS},
        )
        return noted.rowcount == 1

    def last(self, connection: Connection, project: str) -> Sweep | None:
        """The newest sweep; None when there never was one."""
        row = connection.execute(
            self.plane.statement("sweeps", "last_sweep"), {"project": project}
        ).fetchone()
        return None if row is None else Sweep(*row)
