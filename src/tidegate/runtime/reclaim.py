"""Taking work back from the dead: fence first, then the job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID, uuid4

from tidegate.control.jobs import DeadAttempt, Jobs
from tidegate.destinations.postgres import PostgresDestination
from tidegate.ledger.fences import Fence, FenceTooLow
from tidegate.postgres.connect import Connection


def reclaim_dead(
    jobs: Jobs,
    connection: Connection,
    control_id: UUID,
    destination_of: Callable[[DeadAttempt], PostgresDestination | None],
    *,
    actor: str,
    resource: str | None = None,
) -> int:
    """Put back the jobs of dead attempts; a wrongly buried one can publish nothing any more."""
    reclaimed = 0
    for dead in jobs.list_dead(connection, resource):
        destination = destination_of(dead)
        if destination is None:
            continue
        token = jobs.next_token(connection)
        fence = Fence(str(destination.relation), control_id, token, f"sweep-{uuid4().hex}")
        # Too low means that a newer attempt is there already, so the dead one is fenced out.
        with suppress(FenceTooLow):
            destination.raise_fence(fence)
        if jobs.reclaim(connection, dead, actor):
            destination.discard(dead.attempt_id)
            reclaimed += 1
    return reclaimed
