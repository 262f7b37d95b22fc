"""Fence tokens: one sequence, from which every claim takes the next number."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.control.plane import ControlPlane
from tidegate.model.job import Claim
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one control plane; a restored one is lifted above what destinations saw."""

    plane: ControlPlane

    def next(self, connection: Connection) -> int:
        """A token without a claim, for whoever raises a fence against an attempt."""
        row = connection.execute(
            self.plane.statement("fence_tokens", "next_token"), {"sequence": self.plane.sequence}
        ).fetchone()
        assert row is not None
        return int(row[0])

    def has_issued(self, connection: Connection, token: int) -> bool:
        """Whether a token may be one of ours; if not, this database is older than it."""
        row = connection.execute(
            self.plane.statement("fence_tokens", "last_token"), {"sequence": self.plane.sequence}
        ).fetchone()
        return row is not None and row[0] is not None and token <= row[0]

    def next_above(self, connection: Connection, seen: int) -> int:
        """A token above one seen in a destination, as all later ones will be."""
        connection.execute(
            self.plane.statement("fence_tokens", "reseed_tokens"),
            {"sequence": self.plane.sequence, "token": seen},
        )
        return self.next(connection)

    def reissue(self, connection: Connection, claim: Claim, above: int) -> int | None:
        """A token above one seen in a destination; None when the attempt is stale."""
        self.next_above(connection, above)
        row = connection.execute(
            self.plane.statement("fence_tokens", "reissue_fence"),
            {
                "sequence": self.plane.sequence,
                "job_id": claim.job_id,
                "attempt_id": claim.attempt_id,
            },
        ).fetchone()
        return int(row[0]) if row else None
