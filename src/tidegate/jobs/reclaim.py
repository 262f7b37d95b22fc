"""Fence a lost attempt out and put its job back."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from tidegate.core.errors import DeclarationError
from tidegate.core.log import log
from tidegate.core.relation import Endpoint
from tidegate.core.units import Backoff
from tidegate.jobs.context import JobContext
from tidegate.jobs.control_database import ControlDatabase, Tokens
from tidegate.jobs.dependencies import Needs
from tidegate.jobs.history.writer import record_lost_attempts
from tidegate.jobs.job import NOTHING, PUBLISH, most_crashes
from tidegate.jobs.queue import Jobs
from tidegate.ledger.fences import Fence, FencedTable, FenceTooLow
from tidegate.ledger.watermarks import Watermarks
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt whose worker is gone or whose lease ran out."""

    job_id: UUID
    attempt_id: str
    kind: str
    resource: str | None
    payload: dict[str, Any]
    plan: dict[str, Any] | None
    crash_count: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class LostAttempts:
    """Finds the dead and takes their jobs back."""

    plane: ControlDatabase

    def list(
        self, connection: Connection, *, resource: str | None = None, project: str | None = None
    ) -> list[LostAttempt]:
        """Those at a resource, of a project, or all."""
        rows = connection.execute(
            self.plane.statement("jobs/job_queue", "list_dead"),
            {"resource": resource, "project": project},
        )
        return [LostAttempt(*row) for row in rows]

    def reclaim(
        self,
        connection: Connection,
        dead: LostAttempt,
        actor: str,
        *,
        delay_seconds: float = 0.0,
        published: bool = False,
        last: bool = False,
    ) -> bool:
        """Put a dead attempt's job back; False when it turned out not to be dead.

        A job that has used up its attempts, or whose attempt was the `last` that there can be,
        ends: as done when what it was at is `published`.
        """
        row = connection.execute(
            self.plane.statement("jobs/job_queue", "reclaim"),
            {
                "job_id": dead.job_id,
                "attempt_id": dead.attempt_id,
                "actor": actor,
                "delay": delay_seconds,
                "published": published,
                "last": last,
                "channel": self.plane.channel("jobs"),
                "most_crashes": most_crashes(dead.kind, dead.max_attempts),
            },
        ).fetchone()
        if row is not None and row[1]:
            Needs(self.plane).settle(connection, dead.job_id)
        return row is not None


ADOPT = "tidegate adopt"
"""the command whose job is done once a watermark was moved by it"""


def reclaim_lost(
    plane: ControlDatabase,
    connection: Connection,
    control_id: UUID,
    destination_of: Callable[[LostAttempt], FencedTable | None],
    *,
    actor: str,
    backoff: Backoff,
    resource: str | None = None,
) -> int:
    """Put back the jobs of dead attempts; a wrongly buried one can publish nothing any more."""
    reclaimed = 0
    for dead in LostAttempts(plane).list(connection, resource=resource):
        destination = destination_of(dead)
        if destination is None:
            # It publishes nothing, so nobody has to be fenced out.
            reclaimed += LostAttempts(plane).reclaim(connection, dead, actor)
        elif reclaim_attempt(plane, connection, control_id, destination, dead, actor, backoff):
            reclaimed += 1
    return reclaimed


def reclaim_attempt(
    plane: ControlDatabase,
    connection: Connection,
    control_id: UUID,
    destination: FencedTable,
    dead: LostAttempt,
    actor: str,
    backoff: Backoff,
) -> bool:
    """Fence one attempt out and put its job back; False when it turned out not to be dead."""
    raise_fence_above(plane, connection, control_id, destination)
    taken = LostAttempts(plane).reclaim(
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
        record_lost_attempts(plane, connection, dead.job_id)
    return taken


def raise_fence_above(
    plane: ControlDatabase,
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
        see="docs/guides/operate.md, A restored control database",
    )


def target_of_job(context: JobContext, kind: str, payload: dict[str, Any]) -> FencedTable | None:
    """The destination to be fenced; None for a job that publishes nothing.

    A malformed job does not, either: whoever works it refuses it first. An unknown connection
    raises: without the fence nobody may say that such a job has ended.
    """
    target = payload.get("target") if isinstance(payload, dict) else None
    if kind == NOTHING or not isinstance(target, str):
        return None
    try:
        endpoint = Endpoint.parse(target)
    except DeclarationError:
        return None
    context.settings.connection(endpoint.connection)
    return context.destination(endpoint)
