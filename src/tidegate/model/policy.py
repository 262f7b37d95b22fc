"""What a project wants of a lake's table: its limits, and how often each action may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.model.maintenance import DAY, OPTIONS, Action, ActionOptions

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
