"""Taking work back from the dead: fence first, then the job."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from tidegate.control.dead import DeadAttempt, DeadAttempts
from tidegate.control.jobs import Jobs
from tidegate.control.plane import ControlPlane
from tidegate.control.tokens import Tokens
from tidegate.ledger.fences import Fence, FencedTable, FenceTooLow
from tidegate.ledger.watermarks import Watermarks
from tidegate.log import log
from tidegate.model.backoff import Backoff
from tidegate.model.job import PUBLISH
from tidegate.postgres.connect import Connection
from tidegate.runtime.recording import settle_job

ADOPT = "tidegate adopt"
"""the command whose job is done once a watermark was moved by it"""


def reclaim_dead(
    plane: ControlPlane,
    connection: Connection,
    control_id: UUID,
    destination_of: Callable[[DeadAttempt], FencedTable | None],
    *,
    actor: str,
    backoff: Backoff,
    resource: str | None = None,
) -> int:
    """Put back the jobs of dead attempts; a wrongly buried one can publish nothing any more."""
    reclaimed = 0
    for dead in DeadAttempts(plane).list(connection, resource=resource):
        destination = destination_of(dead)
        if destination is None:
            # It publishes nothing, so nobody has to be fenced out.
            reclaimed += DeadAttempts(plane).reclaim(connection, dead, actor)
        elif bury(plane, connection, control_id, destination, dead, actor, backoff):
            reclaimed += 1
    return reclaimed


def bury(
    plane: ControlPlane,
    connection: Connection,
    control_id: UUID,
    destination: FencedTable,
    dead: DeadAttempt,
    actor: str,
    backoff: Backoff,
) -> bool:
    """Fence one attempt out and put its job back; False when it turned out not to be dead."""
    fence_out(plane, connection, control_id, destination)
    taken = DeadAttempts(plane).reclaim(
        connection,
        dead,
        actor,
        # The first crash costs nothing; a job that kills its workers must not kill them all day.
        delay_seconds=backoff.seconds(dead.crash_count, random.random()),
        published=is_published(destination, dead.attempt_id, dead.plan, dead.payload),
        # Its DataFrame died with its process; as a waiting job it would only block the table.
        last=dead.kind == PUBLISH,
    )
    if taken:
        destination.discard(dead.attempt_id)
        settle_job(plane, connection, dead.job_id)
    return taken


def fence_out(
    plane: ControlPlane,
    connection: Connection,
    control_id: UUID,
    destination: FencedTable,
) -> None:
    """After this no attempt that is at work now can publish into the table."""
    jobs, tokens = Jobs(plane), Tokens(plane)
    fence = Fence(
        str(destination.relation),
        control_id,
        tokens.next(connection),
        f"sweep-{uuid4().hex}",
    )
    try:
        destination.raise_fence(fence)
    except FenceTooLow as error:
        if error.attempt_id in jobs.live_attempts(connection):
            return  # a newer attempt is there already, so the older ones are fenced out
        # One that this control database knows nothing of: it was restored, and forgot it.
        restored = not tokens.has_issued(connection, error.token)
        token = tokens.next_above(connection, error.token)
        if restored:
            tell_restored(connection, fence, seen=error.token, lifted_to=token)
        # Should it be too low again, another has raised it since: who was at work is fenced out.
        with suppress(FenceTooLow):
            destination.raise_fence(replace(fence, token=token))


def is_published(
    destination: FencedTable,
    attempt_id: str | None,
    plan: dict[str, Any] | None,
    payload: dict[str, Any],
) -> bool:
    """Whether the last load that a job had to do is in, told under a raised fence."""
    if payload.get("command") == ADOPT and attempt_id is not None:
        with destination.open() as connection:
            watermarks = Watermarks(destination.ledger)
            return watermarks.was_moved_by(connection, str(destination.relation), attempt_id)
    if plan is not None and plan.get("final"):
        return destination.exists(str(plan["update_id"]))
    # Of a DataFrame there is nothing to plan.
    return "update_id" in payload and destination.exists(str(payload["update_id"]))


def tell_restored(connection: Connection, fence: Fence, *, seen: int, lifted_to: int) -> None:
    """Whoever restored the control database, perhaps without knowing, should know what follows."""
    log.warning(
        "control_database_restored",
        database=connection.info.dbname,
        table=fence.resource,
        our_token=fence.token,
        seen_in_table=seen,
        lifted_to=lifted_to,
        meaning="this control database is older than the table: it was restored from a backup",
        done="tokens were lifted; no attempt from before can publish; nothing is loaded twice",
        see="docs/operate.md, A restored control database",
    )
