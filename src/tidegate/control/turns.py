"""A worker's turn: finish what it has done and claim what is next, in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.control.jobs import Jobs, claim_parameters, finish_parameters, read_claims
from tidegate.control.plane import ControlPlane
from tidegate.model.job import Claim, Ending
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Turn:
    """Which endings were ours to write, by attempt, and what was claimed."""

    won: set[str]
    claims: list[Claim]


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of one worker."""

    plane: ControlPlane
    worker_id: str
    project: str
    kinds: tuple[str, ...]
    lease_seconds: float

    def take(self, connection: Connection, endings: Sequence[Ending], limit: int) -> Turn:
        """Both in one statement: round trips and commits are what costs most."""
        if not limit:
            return Turn(self.finish(connection, endings), [])
        if not endings:
            return Turn(set(), self.claim(connection, limit))
        rows = connection.execute(
            self.plane.turning(limit),
            finish_parameters(endings, self.worker_id)
            | claim_parameters(self.plane, self.worker_id, self.lease_seconds)
            | {"project": self.project, "kinds": list(self.kinds)},
        ).fetchall()
        won, needed, freed = rows[0][:3]
        picked = [row[3:] for row in rows]
        claims = read_claims(picked)
        jobs = Jobs(self.plane)
        if needed:
            jobs.settle(connection, needed)
        limited = [row for row in picked if row[0]]
        if limited:
            claims += jobs.claim_limited(
                connection,
                self.worker_id,
                limited,
                project=self.project,
                lease_seconds=self.lease_seconds,
            )
        if not claims and (needed or freed):
            # The endings have made something ready that the statement could not see.
            claims = self.claim(connection, limit)
        return Turn(set(won or ()), claims)

    def claim(self, connection: Connection, limit: int) -> list[Claim]:
        return Jobs(self.plane).claim_ready(
            connection,
            self.worker_id,
            project=self.project,
            kinds=self.kinds,
            lease_seconds=self.lease_seconds,
            limit=limit,
        )

    def finish(self, connection: Connection, endings: Sequence[Ending]) -> set[str]:
        if not endings:
            return set()
        return Jobs(self.plane).finish_many(connection, endings, actor=self.worker_id)
