"""What an action works with: a table, who holds it, and an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from tidegate.destinations.lake import LakeDestination
from tidegate.errors import DestinationError
from tidegate.lake.catalog import Catalog
from tidegate.lake.engine import Engine
from tidegate.lake.predicting import predict
from tidegate.lake.table_facts import read_facts
from tidegate.model.job import Claim
from tidegate.model.maintenance import Action, ActionOptions, Effect
from tidegate.model.relation import Relation
from tidegate.model.table_facts import TableFacts
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

    @property
    def catalog(self) -> Catalog:
        return self.destination.catalog

    @property
    def relation(self) -> Relation:
        return self.destination.relation

    def call(self, statement: str) -> dict[str, Any]:
        """What a procedure says of itself, in one row."""
        fence = self.attempt.fence
        with self.engine.session(self.catalog, fence.attempt_id) as session:
            return next(iter(session.run(statement)), {})

    def facts(self) -> TableFacts:
        """What the table is made of now."""
        found = read_facts(self.catalog, self.relation)
        if found is None:
            raise DestinationError(f"{self.relation} was dropped meanwhile")
        return found

    def predict(self, action: Action, options: ActionOptions, **bounds: Any) -> Effect:
        """What an action will do to the table as it is now."""
        now = bounds.pop("now", None) or self.now()
        return predict(self.catalog, self.relation, action, options, now=now, **bounds)

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
    skipped: str | None = None
    """why nothing was to be done"""


@dataclass(frozen=True, slots=True)
class Step:
    """An action that is about to be done: what it will do, and how it can be told afterwards."""

    predicted: Effect
    do: Callable[[], Result]
    actual: Callable[[Result], Effect]
