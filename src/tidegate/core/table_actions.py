"""Maintenance actions in their order, their options, effects and policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

DAY = 86_400.0
LEAST_ORPHAN_AGE_SECONDS = DAY
"""Iceberg itself refuses to look for younger orphans: a writer may be about to commit them"""


class Action(StrEnum):
    """What can be done to a table, in the order in which it is always done."""

    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHAN_FILES = "remove_orphan_files"
    REWRITE_DATA_FILES = "rewrite_data_files"
    REWRITE_POSITION_DELETE_FILES = "rewrite_position_delete_files"
    REWRITE_MANIFESTS = "rewrite_manifests"


def in_order(actions: Iterable[Action]) -> tuple[Action, ...]:
    """The actions in their one order, each once."""
    wanted = set(actions)
    return tuple(one for one in Action if one in wanted)


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """Forget snapshots that are older than this, but keep the last ones of each branch."""

    older_than_seconds: float = 5 * DAY
    retain_last: int = 1


@dataclass(frozen=True, slots=True)
class RemoveOrphanFiles:
    """Delete files that no snapshot knows and that are older than this."""

    older_than_seconds: float = 3 * DAY


@dataclass(frozen=True, slots=True)
class RewriteDataFiles:
    """Put small files together; `target_file_bytes` None is what the table itself says."""

    target_file_bytes: int | None = None
    min_input_files: int = 5
    sort: bool = False
    """by the table's own order, as opposed to bin-packing"""
    partial_progress: bool = False
    """commit group by group, so that a killed run loses less"""
    delete_file_threshold: int = 1
    """a data file that so many delete files are for is rewritten without what they delete; with 0
    only one that has lost much of its rows"""


@dataclass(frozen=True, slots=True)
class RewritePositionDeleteFiles:
    """Put small delete files together and drop those that delete nothing any more."""

    min_input_files: int = 5


@dataclass(frozen=True, slots=True)
class RewriteManifests:
    """Put small manifests together, sorted by partition."""


ActionOptions = (
    ExpireSnapshots
    | RemoveOrphanFiles
    | RewriteDataFiles
    | RewritePositionDeleteFiles
    | RewriteManifests
)
OPTIONS: Mapping[Action, type[ActionOptions]] = {
    Action.EXPIRE_SNAPSHOTS: ExpireSnapshots,
    Action.REMOVE_ORPHAN_FILES: RemoveOrphanFiles,
    Action.REWRITE_DATA_FILES: RewriteDataFiles,
    Action.REWRITE_POSITION_DELETE_FILES: RewritePositionDeleteFiles,
    Action.REWRITE_MANIFESTS: RewriteManifests,
}


@dataclass(frozen=True, slots=True)
class ActionList:
    """What is to be done to one table: each action with its options, in order."""

    steps: tuple[tuple[Action, ActionOptions], ...]

    @classmethod
    def of(cls, options: Mapping[Action, ActionOptions]) -> ActionList:
        return cls(tuple((one, options[one]) for one in in_order(options)))

    @property
    def actions(self) -> tuple[Action, ...]:
        return tuple(action for action, _ in self.steps)

    def keeps_less(self, policy: Mapping[Action, ActionOptions]) -> bool:
        """Whether it deletes what the policy would keep: younger snapshots, younger files."""
        for action, wanted in self.steps:
            held = policy[action]
            if isinstance(wanted, ExpireSnapshots | RemoveOrphanFiles):
                assert isinstance(held, ExpireSnapshots | RemoveOrphanFiles)
                if wanted.older_than_seconds < held.older_than_seconds:
                    return True
            if isinstance(wanted, ExpireSnapshots):
                assert isinstance(held, ExpireSnapshots)
                if wanted.retain_last < held.retain_last:
                    return True
        return False

    def document(self) -> dict[str, dict[str, Any]]:
        """For the payload of a job; `read` takes it back."""
        return {action.value: asdict(options) for action, options in self.steps}

    @classmethod
    def read(cls, document: Mapping[str, Mapping[str, Any]]) -> ActionList:
        """What `document` gave; KeyError, ValueError or TypeError where it was no such thing."""
        return cls.of(
            {Action(name): OPTIONS[Action(name)](**given) for name, given in document.items()}
        )


@dataclass(frozen=True, slots=True)
class Amount:
    """So many files, and what they weigh."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """What an action does or did to what it works on.

    `of` says what is counted: all files for expire_snapshots and remove_orphan_files, else data
    files, delete files or manifests. `snapshots` is how many expire_snapshots forgets, `rewritten`
    how many data files rewrite_data_files reads: as many may come of them again.
    """

    of: str
    before: Amount
    after: Amount
    snapshots: int | None = None
    rewritten: int | None = None

    @property
    def removed(self) -> Amount:
        """How much less there is; negative where there is more."""
        return Amount(self.before.files - self.after.files, self.before.bytes - self.after.bytes)

    @property
    def is_nothing(self) -> bool:
        return self.before == self.after and not self.snapshots and not self.rewritten


HOUR = 3_600.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on a table is not well; 0 switches a check off."""

    small_files: int = 20
    """data files below three quarters of the target size that could be put together"""
    snapshots: int = 100
    snapshot_age_seconds: float = 7 * DAY
    """of the oldest snapshot"""
    manifests: int = 50
    """manifests below the size that Iceberg aims at"""
    position_delete_files: int = 10
    equality_delete_files: int = 10
    deleted_share: float = 0.1
    """rows that are deleted but still in their files, of all rows"""
    dangling_delete_files: int = 1
    partition_skew: float = 20.0
    """the largest partition against the one in the middle"""
    orphan_files: int = 100
    """files that attempts which died have probably left"""


def _cadences() -> dict[Action, float]:
    return {
        Action.EXPIRE_SNAPSHOTS: DAY,
        Action.REMOVE_ORPHAN_FILES: 7 * DAY,
        Action.REWRITE_DATA_FILES: HOUR,
        Action.REWRITE_POSITION_DELETE_FILES: HOUR,
        Action.REWRITE_MANIFESTS: DAY,
    }


@dataclass(frozen=True, slots=True)
class Policy:
    """What holds for one table, after catalog, namespace and table have been laid over another."""

    automatic: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    every_seconds: Mapping[Action, float] = field(default_factory=_cadences)
    """an action is recommended at most so often"""
    options: Mapping[Action, ActionOptions] = field(
        default_factory=lambda: {action: kind() for action, kind in OPTIONS.items()}
    )
    disabled: frozenset[Action] = frozenset()
    """actions that are never recommended"""
