"""What failed too often of late: it is disabled, and enabled again by time or by hand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.control.plane import ControlPlane
from tidegate.model.scheduled import Disabled
from tidegate.postgres.connect import Connection

ACTOR = "scheduler"


@dataclass(frozen=True, slots=True)
class DisableRule:
    """So many failures within a window are too many, and what follows lasts for a while."""

    after: int
    window_seconds: float
    for_seconds: float


@dataclass(frozen=True, slots=True)
class TaskStates:
    """The states of a project's syncs and tasks; without a digest a name stands for all of it."""

    plane: ControlPlane
    project: str

    def disabled(
        self, connection: Connection, name: str, now: datetime, *, digest: str = ""
    ) -> Disabled | None:
        """Until when it is disabled; None when it is not."""
        row = connection.execute(
            self.plane.statement("task_states", "get_disabled"),
            {"project": self.project, "name": name, "digest": digest, "now": now},
        ).fetchone()
        return None if row is None else Disabled(*row)

    def judge(
        self,
        connection: Connection,
        name: str,
        kind: str,
        rule: DisableRule,
        now: datetime,
        *,
        digest: str = "",
        update_id: str | None = None,
    ) -> Disabled | None:
        """Whether it is disabled now; too many failures of late disable it.

        With an `update_id`, those of this run of a task alone.
        """
        found = self.disabled(connection, name, now, digest=digest)
        if found is not None:
            return found
        named = {"project": self.project, "name": name, "digest": digest, "now": now}
        rows = connection.execute(
            self.plane.statement("task_states", "list_failures"),
            named
            | {
                "kind": kind,
                "since": now - timedelta(seconds=rule.window_seconds),
                "update_id": update_id,
            },
        ).fetchall()
        if len(rows) < rule.after:
            return None
        failures = [row[0] for row in rows]
        until = now + timedelta(seconds=rule.for_seconds)
        connection.execute(
            self.plane.statement("task_states", "disable"),
            named | {"failures": failures, "until": until, "actor": ACTOR},
        )
        return Disabled(now, until, ACTOR, len(failures))

    def enable(self, connection: Connection, name: str, actor: str) -> bool:
        """Let it be queued again, from a clean slate; False when it was not disabled."""
        rows = connection.execute(
            self.plane.statement("task_states", "enable"),
            {"project": self.project, "name": name, "actor": actor},
        ).fetchall()
        return bool(rows)
