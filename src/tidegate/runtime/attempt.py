"""A live attempt: the claim, its fence in the destination and its heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidegate.control.jobs import Jobs
from tidegate.destinations.postgres import PostgresDestination
from tidegate.errors import StaleAttempt
from tidegate.failpoints import reach
from tidegate.ledger.fences import Fence, FenceTooLow
from tidegate.model.job import Claim
from tidegate.postgres.connect import Connection
from tidegate.runtime.lease import Lease


@dataclass(slots=True)
class LiveAttempt:
    """What the work may ask of the attempt it runs under."""

    jobs: Jobs
    connection: Connection
    claim: Claim
    lease: Lease
    fence: Fence
    actor: str

    @property
    def stored_plan(self) -> dict[str, Any] | None:
        return self.claim.plan

    def store_plan(self, plan: dict[str, Any] | None) -> None:
        self._require(self.jobs.store_plan(self.connection, self.claim, plan))

    def record(self, action: str, detail: dict[str, Any]) -> None:
        """Keep a step that is done, for whoever watches or asks later."""
        self._require(self.jobs.record_action(self.connection, self.claim, action, detail))

    def remaining_seconds(self) -> float:
        return self.lease.remaining_seconds()

    def check_alive(self) -> None:
        self.lease.check_alive()

    def _require(self, written: bool) -> None:
        if not written:
            raise StaleAttempt(f"the attempt {self.claim.attempt_id} was replaced by another")


def raise_fence(
    destination: PostgresDestination,
    jobs: Jobs,
    connection: Connection,
    claim: Claim,
    control_id: UUID,
) -> Fence:
    """Take the destination table for this attempt.

    A destination that has seen a higher token, while the control database still holds this
    attempt to be current, means that the control database is older: it was restored. Its tokens
    are lifted above the destination's.
    """
    fence = Fence(str(destination.relation), control_id, claim.fence, claim.attempt_id)
    try:
        destination.raise_fence(fence)
    except FenceTooLow as error:
        token = jobs.reissue_fence(connection, claim, error.token)
        if token is None:
            raise
        fence = Fence(fence.resource, control_id, token, claim.attempt_id)
        destination.raise_fence(fence)
    reach("fence.raised")
    return fence
