"""What each action does to a table; none of them changes what a reader finds in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from tidegate.destinations.lake import LakeDestination
from tidegate.lake import procedures
from tidegate.lake.engine import Engine
from tidegate.model.job import Claim
from tidegate.model.maintenance import (
    Action,
    ActionOptions,
    ExpireSnapshots,
    RewriteDataFiles,
    RewritePositionDeleteFiles,
)
from tidegate.pipeline.context import Context
from tidegate.pipeline.course import Attempt
from tidegate.pipeline.needed_snapshots import find_needed


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


def expire_snapshots(work: Work, options: ActionOptions) -> Result:
    assert isinstance(options, ExpireSnapshots)
    wanted = work.now() - timedelta(seconds=options.older_than_seconds)
    needed = find_needed(work.context, work.destination, wanted)
    told = work.call(
        procedures.expire_snapshots(
            work.destination.catalog,
            work.destination.relation,
            needed.older_than,
            options.retain_last,
        )
    )
    return Result(told, needed.notes)


def rewrite_data_files(work: Work, options: ActionOptions) -> Result:
    assert isinstance(options, RewriteDataFiles)
    catalog, relation = work.destination.catalog, work.destination.relation
    return Result(work.call(procedures.rewrite_data_files(catalog, relation, options)))


def rewrite_position_delete_files(work: Work, options: ActionOptions) -> Result:
    assert isinstance(options, RewritePositionDeleteFiles)
    catalog, relation = work.destination.catalog, work.destination.relation
    return Result(work.call(procedures.rewrite_position_delete_files(catalog, relation, options)))


def rewrite_manifests(work: Work, _: ActionOptions) -> Result:
    catalog, relation = work.destination.catalog, work.destination.relation
    return Result(work.call(procedures.rewrite_manifests(catalog, relation)))


ACTIONS: Mapping[Action, Callable[[Work, ActionOptions], Result]] = {
    Action.EXPIRE_SNAPSHOTS: expire_snapshots,
    Action.REWRITE_DATA_FILES: rewrite_data_files,
    Action.REWRITE_POSITION_DELETE_FILES: rewrite_position_delete_files,
    Action.REWRITE_MANIFESTS: rewrite_manifests,
}
