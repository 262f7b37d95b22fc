"""What an action works with: a table, who holds it, and an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from tidegate.destinations.lake import LakeDestination
from tidegate.lake.engine import Engine
from tidegate.model.job import Claim
from tidegate.pipeline.context import Context
from tidegate.pipeline.course import Attempt


class MaintainingAttempt(Attempt, Protocol):
    """The hold that an attempt has on its job, as far as maintenance needs it."""

    @property
    def claim(self) -> Claim: ...

    def record(self, action: str, detail: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """A table, who holds it, and what works on it."""

    context: Context
    destination: LakeDestination
    engine: Engine
    attempt: MaintainingAttempt

    def call(self, statement: str) -> dict[str, Any]:
        """What a procedure says of itself, in one row."""
        fence = self.attempt.fence
        with self.engine.session(self.destination.catalog, fence.attempt_id) as session:
            return next(iter(session.run(statement)), {})

    def now(self) -> datetime:
        """By the clock that decides all else."""
        with self.destination.open() as connection:
            row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        found: datetime = row[0]
        return found


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an action: what its procedure told, and what a person should know."""

    told: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
