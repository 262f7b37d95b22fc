"""A live attempt: the claim, its fence in the destination and its heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from tidegate.control.jobs import Jobs
from tidegate.control.tokens import Tokens
from tidegate.errors import StaleAttempt
from tidegate.failpoints import reach
from tidegate.ledger.fences import Fence, FencedTable, FenceTooLow
from tidegate.model.job import Claim
from tidegate.postgres.connect import Connection
from tidegate.runtime.attempt_session import AttemptSession
from tidegate.runtime.lease import Lease
from tidegate.runtime.reclaim import tell_restored

Answer = TypeVar("Answer")


@dataclass(slots=True)
class LiveAttempt:
    """What the work may ask of the attempt it runs under."""

    jobs: Jobs
    control: AttemptSession
    claim: Claim
    lease: Lease
    fence: Fence
    actor: str
    _plan: dict[str, Any] | None = None

    @property
    def stored_plan(self) -> dict[str, Any] | None:
        """The plan that was stored last, by this attempt or the one before."""
        return self.claim.plan if self._plan is None else self._plan

    def store_plan(self, plan: dict[str, Any] | None) -> None:
        self._require(
            self.control.write(lambda control: self.jobs.store_plan(control, self.claim, plan))
        )
        self._plan = plan

    def report(self, progress: dict[str, Any]) -> None:
        """Say what is being done now, for whoever watches."""
        self._require(
            self.control.write(
                lambda control: self.jobs.record_progress(control, self.claim, progress)
            )
        )

    def record(self, action: str, detail: dict[str, Any]) -> None:
        """Keep a step that is done, for whoever watches or asks later."""
        self._require(
            self.control.write(
                lambda control: self.jobs.record_action(control, self.claim, action, detail)
            )
        )

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """A short question to the control database, over the attempt's own session."""
        return self.control.write(question)

    def remaining_seconds(self) -> float:
        return self.lease.remaining_seconds()

    def check_alive(self) -> None:
        self.lease.check_alive()

    def _require(self, written: bool) -> None:
        if not written:
            raise StaleAttempt(f"the attempt {self.claim.attempt_id} was replaced by another")


def raise_fence(
    destination: FencedTable,
    tokens: Tokens,
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
        restored = not tokens.has_issued(connection, error.token)
        token = tokens.reissue(connection, claim, error.token)
        if token is None:
            raise
        if restored:
            tell_restored(connection, fence, seen=error.token, lifted_to=token)
        fence = Fence(fence.resource, control_id, token, claim.attempt_id)
        destination.raise_fence(fence)
    reach("fence.raised")
    return fence
