"""Named resources with few places: who wants one counts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection

_PATIENCE = "SET LOCAL idle_in_transaction_session_timeout = '5s'"


@dataclass(frozen=True, slots=True)
class Used:
    """A resource, its places, and how many of them are taken."""

    name: str
    places: int
    taken: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The named resources of one project."""

    plane: ControlPlane
    project: str

    def declare(self, connection: Connection, places: Mapping[str, int]) -> None:
        """How many places each has now; what is not among them has one."""
        named = {"project": self.project, "names": list(places)}
        with connection.transaction():
            connection.execute(self.plane.statement("job_needs", "forget_limits"), named)
            connection.execute(
                self.plane.statement("job_needs", "set_limits"),
                named | {"places": list(places.values())},
            )

    def used(self, connection: Connection) -> list[Used]:
        """Every declared resource."""
        rows = connection.execute(
            self.plane.statement("job_needs", "count_used"), {"project": self.project}
        )
        return [Used(*row) for row in rows]

    def lock(self, connection: Connection, names: Sequence[str]) -> None:
        """Be alone in counting these until the end of the transaction, which must be soon."""
        connection.execute(_PATIENCE)
        keys = [f"tidegate:{self.plane.schema}:limit:{self.project}:{name}" for name in names]
        connection.execute(self.plane.statement("job_needs", "lock_limits"), {"keys": keys})
