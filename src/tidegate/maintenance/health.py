"""Issues of a table, with evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidegate.core.table_actions import Action, Thresholds
from tidegate.core.units import counted, in_bytes, in_time
from tidegate.maintenance.delete_files import FileSizes
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.orphan_files import OrphanEstimate


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong with a table."""

    name: str
    severity: Severity
    message: str
    evidence: Mapping[str, Any]
    """`value` and `limit`, and what else was counted"""
    action: Action | None
    """what helps; None where nothing does that can be done to a table"""

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "severity": self.severity.value,
            "message": self.message,
            "evidence": dict(self.evidence),
            "action": None if self.action is None else self.action.value,
        }


__all__ = ["Health", "Issue", "OrphanEstimate", "Severity", "assess"]

CRITICAL = 5
"""so many times its limit is critical"""
_CRITICAL_DANGLING = 100
"""a delete file that deletes nothing costs next to nothing"""


@dataclass(frozen=True, slots=True)
class Health:
    """All that is wrong with a table, in a fixed order."""

    issues: tuple[Issue, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.issues

    @property
    def status(self) -> str:
        """`good`, or the worst severity there is."""
        if self.is_good:
            return "good"
        critical = any(one.severity is Severity.CRITICAL for one in self.issues)
        return (Severity.CRITICAL if critical else Severity.WARNING).value

    def helped_by(self, action: Action) -> tuple[Issue, ...]:
        """The issues that an action is for."""
        return tuple(one for one in self.issues if one.action is action)

    def document(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "is_good": self.is_good,
            "issues": [one.document() for one in self.issues],
        }


def assess(
    facts: TableFacts,
    thresholds: Thresholds,
    *,
    now: datetime,
    orphan_estimate: OrphanEstimate | None = None,
) -> Health:
    """What is wrong with a table, by the limits that hold for it."""
    return Health(
        (
            *_data_files(facts, thresholds),
            *_snapshots(facts, thresholds, now),
            *_manifests(facts, thresholds),
            *_deletes(facts, thresholds),
            *_skew(facts, thresholds),
            *_orphans(thresholds, orphan_estimate),
        )
    )


def _data_files(facts: TableFacts, limits: Thresholds) -> Iterator[Issue]:
    small = facts.small
    if _reached(small.files, limits.small_files):
        below = in_bytes(FileSizes(facts.target_file_bytes).least)
        yield _issue(
            "small_files",
            small.files,
            limits.small_files,
            f"{small.files:,} of {counted(facts.data.files, 'data file')} are below {below}, "
            f"{in_bytes(small.bytes / small.files)} on average; "
            f"{limits.small_files:,} is the limit",
            Action.REWRITE_DATA_FILES,
            of=facts.data.files,
            bytes=small.bytes,
            after=facts.small_after,
            most_together=facts.most_small_together,
        )


def _snapshots(facts: TableFacts, limits: Thresholds, now: datetime) -> Iterator[Issue]:
    if _reached(facts.snapshots, limits.snapshots):
        yield _issue(
            "too_many_snapshots",
            facts.snapshots,
            limits.snapshots,
            f"{counted(facts.snapshots, 'snapshot')} are kept; {limits.snapshots:,} is the limit",
            Action.EXPIRE_SNAPSHOTS,
        )
    # The head of a branch is as old as the last write, and a tag is kept on purpose.
    if facts.oldest_loose_at is not None:
        age = (now - facts.oldest_loose_at).total_seconds()
        if _reached(age, limits.snapshot_age_seconds):
            yield _issue(
                "old_snapshots",
                round(age),
                limits.snapshot_age_seconds,
                f"the oldest snapshot that nothing refers to is {in_time(age)} old; "
                f"{in_time(limits.snapshot_age_seconds)} is the limit",
                Action.EXPIRE_SNAPSHOTS,
                oldest_at=facts.oldest_loose_at.isoformat(),
            )


def _manifests(facts: TableFacts, limits: Thresholds) -> Iterator[Issue]:
    if _reached(facts.small_manifests, limits.manifests):
        yield _issue(
            "small_manifests",
            facts.small_manifests,
            limits.manifests,
            f"{facts.small_manifests:,} of {counted(facts.manifests.files, 'manifest')} are small, "
            f"{in_bytes(facts.manifests.bytes / facts.manifests.files)} on average; "
            f"{limits.manifests:,} is the limit",
            Action.REWRITE_MANIFESTS,
            of=facts.manifests.files,
            bytes=facts.manifests.bytes,
        )


def _deletes(facts: TableFacts, limits: Thresholds) -> Iterator[Issue]:
    positions, equalities = facts.position_deletes, facts.equality_deletes
    if _reached(positions.files, limits.position_delete_files):
        yield _issue(
            "position_deletes",
            positions.files,
            limits.position_delete_files,
            f"{counted(positions.files, 'position delete file')} with "
            f"{counted(facts.position_deleted_rows, 'row')}; "
            f"{limits.position_delete_files:,} is the limit",
            # Where each is for a data file of its own, only new data files make them fewer.
            Action.REWRITE_POSITION_DELETE_FILES
            if facts.position_deletes_after < positions.files
            else Action.REWRITE_DATA_FILES,
            bytes=positions.bytes,
            rows=facts.position_deleted_rows,
            after=facts.position_deletes_after,
        )
    if _reached(equalities.files, limits.equality_delete_files):
        yield _issue(
            "equality_deletes",
            equalities.files,
            limits.equality_delete_files,
            f"{counted(equalities.files, 'equality delete file')} with "
            f"{counted(facts.equality_deleted_rows, 'row')}; "
            f"{limits.equality_delete_files:,} is the limit",
            Action.REWRITE_DATA_FILES,
            bytes=equalities.bytes,
            rows=facts.equality_deleted_rows,
        )
    # What an equality delete takes away is not known before it is applied.
    share = facts.position_deleted_rows / facts.records if facts.records else 0.0
    if _reached(share, limits.deleted_share):
        yield _issue(
            "deleted_rows",
            round(share, 4),
            limits.deleted_share,
            f"{facts.position_deleted_rows:,} of {counted(facts.records, 'row')} in data files are "
            f"deleted, {share:.0%}; {limits.deleted_share:.0%} is the limit",
            Action.REWRITE_DATA_FILES,
            rows=facts.position_deleted_rows,
            of=facts.records,
        )
    if _reached(facts.dangling_delete_files, limits.dangling_delete_files):
        yield _issue(
            "dangling_deletes",
            facts.dangling_delete_files,
            limits.dangling_delete_files,
            f"{facts.dangling_delete_files:,} of "
            f"{counted(positions.files + equalities.files, 'delete file')} delete nothing any "
            "more; "
            f"{limits.dangling_delete_files:,} is the limit",
            Action.REWRITE_POSITION_DELETE_FILES,
            times=_CRITICAL_DANGLING,
            of=positions.files + equalities.files,
        )


def _skew(facts: TableFacts, limits: Thresholds) -> Iterator[Issue]:
    # One partition alone is not askew, and small ones can be as they like.
    if facts.partitions < 2 or facts.largest_partition_bytes < facts.target_file_bytes:
        return
    skew = facts.largest_partition_bytes / max(facts.median_partition_bytes, 1)
    if _reached(skew, limits.partition_skew):
        yield _issue(
            "partition_skew",
            round(skew, 1),
            limits.partition_skew,
            f"the largest of {facts.partitions:,} partitions has "
            f"{in_bytes(facts.largest_partition_bytes)}, {skew:,.0f} times the one in the middle; "
            f"{limits.partition_skew:g} times is the limit",
            None,
            largest_bytes=facts.largest_partition_bytes,
            median_bytes=facts.median_partition_bytes,
            partitions=facts.partitions,
        )


def _orphans(limits: Thresholds, estimate: OrphanEstimate | None) -> Iterator[Issue]:
    if estimate is not None and _reached(estimate.files, limits.orphan_files):
        yield _issue(
            "orphans",
            estimate.files,
            limits.orphan_files,
            f"{counted(estimate.dead_attempts, 'attempt')} that died have probably left "
            f"{counted(estimate.files, 'file')}, {in_bytes(estimate.bytes)}; "
            f"{limits.orphan_files:,} is the limit",
            Action.REMOVE_ORPHAN_FILES,
            **{key: value for key, value in estimate.document().items() if key != "files"},
        )


def _reached(value: float, limit: float) -> bool:
    return limit > 0 and value >= limit


def _issue(
    name: str,
    value: float,
    limit: float,
    message: str,
    action: Action | None,
    *,
    times: int = CRITICAL,
    **evidence: Any,
) -> Issue:
    severity = Severity.CRITICAL if value >= limit * times else Severity.WARNING
    return Issue(name, severity, message, {"value": value, "limit": limit, **evidence}, action)
