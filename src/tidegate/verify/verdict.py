"""What a comparison means, in words and with a way out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.config.sync import Sync
from tidegate.core.watermark import Watermark
from tidegate.load.modes import MODES
from tidegate.verify.compare import Comparison
from tidegate.verify.compared_rows import UncomparedRows
from tidegate.verify.report import RowDifference, Verdict, Verification


class SourceChange(StrEnum):
    """What happened to a source that is loaded whole, since it was last loaded."""

    NOTHING = "nothing"
    CHANGED = "changed"
    """and whether the target is as it was left cannot be told"""
    CHANGED_ALONE = "changed alone"
    """the target still is what the last run loaded"""
    BOTH_CHANGED = "both changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ComparedSync:
    """A comparison and what was left out of it."""

    watermark: Watermark
    comparison: Comparison
    left_out: UncomparedRows
    keyless: bool = False
    older: int = 0
    """rows of the target that the source does not have so, where that is no fault"""
    since: SourceChange = SourceChange.NOTHING
    used_spark: bool = False
    drift: tuple[str, ...] = ()
    """what changed in the source's columns since the last load, as `plan` says it"""
    snapshot: int | None = None
    """of a lake, at which it was compared"""


def report(sync: Sync, found: ComparedSync) -> Verification:
    """One sync's result."""
    difference = found.comparison.difference
    verdict = Verdict.EQUAL if difference is None else Verdict.UNEQUAL
    if difference is not None and found.since in (SourceChange.CHANGED, SourceChange.CHANGED_ALONE):
        verdict = Verdict.CHANGED
    return Verification(
        sync=sync.name,
        source=sync.source_name,
        target=str(sync.target),
        verdict=verdict,
        watermark=found.watermark.value,
        source_rows=found.comparison.expected_rows,
        target_rows=found.comparison.found_rows,
        not_yet_loaded=found.left_out.not_yet_loaded,
        rejected=found.left_out.rejected,
        used_spark=found.used_spark,
        snapshot=found.snapshot,
        difference=difference,
        intact=verdict is Verdict.EQUAL or found.since is SourceChange.CHANGED_ALONE,
        hint=None if difference is None else _way_out(sync, difference, found),
        notes=tuple(_notes(sync, found)),
    )


def _notes(sync: Sync, found: ComparedSync) -> list[str]:
    notes = list(found.drift)
    if found.left_out.without_cursor:
        count = found.left_out.without_cursor
        notes.append(f"{count:,} rows without a cursor were not compared")
    if found.keyless and MODES[sync.mode].only_adds:
        why = "append keeps every version here" if sync.key else "rows have no key here"
        notes.append(
            f"{why}: each loaded row of the source must be there, at least as often, and no more "
            "rows than its loads put in"
        )
        if found.older > 0:
            notes.append(
                f"{found.older:,} more rows are there: older versions, or rows deleted since"
            )
    elif found.keyless:
        notes.append("rows have no key: they were compared as they are, and counted")
    if found.comparison.difference is not None and found.since is SourceChange.CHANGED_ALONE:
        notes.append("the target holds exactly what the last run loaded")
    return notes


def _way_out(sync: Sync, difference: RowDifference, found: ComparedSync) -> str:
    again = f"tidegate run {sync.name} --full-refresh"
    if found.since in (SourceChange.CHANGED, SourceChange.CHANGED_ALONE):
        return f"to load what changed: tidegate run {sync.name}; then verify again"
    if found.since is SourceChange.BOTH_CHANGED:
        return (
            "the source has changed since the last run, and the target is not what that run "
            f"loaded: somebody else has written there. To load everything again: {again}"
        )
    reasons: list[str] = []
    if difference.missing:
        reasons.append("missing rows came in below the watermark (late, or stamped low)")
    if difference.missing and found.keyless:
        reasons = ["missing rows came in late, or were changed without a higher cursor"]
    if difference.extra and found.keyless and MODES[sync.mode].only_adds:
        reasons.append(
            "more rows are there than its loads put in: somebody else has written them, or a load "
            "is in twice, as after a ledger was restored from a backup"
        )
    elif difference.extra:
        reasons.append("extra rows were deleted at the source, or written by somebody else")
        if sync.where is not None:
            reasons[-1] = (
                "extra rows were deleted at the source, do not meet `where` any more, or were "
                "written by somebody else"
            )
    if difference.different:
        reasons.append(
            "different rows were changed without a higher cursor, or changed in the target"
        )
    if MODES[sync.mode].loads_whole:
        reasons = [
            "somebody else has written to the target"
            + (
                ", or the source changed since the last run"
                if found.since is SourceChange.UNKNOWN
                else ", since the source is as the last run found it"
            )
        ]
    if sync.transform is not None:
        reasons.append(
            "a transformation that looks beyond single rows also differs from batch to batch"
        )
    why = "; ".join(reasons)
    if MODES[sync.mode].repairable and not found.keyless:
        return (
            f"{why}. To load again what differs: tidegate verify {sync.name} --repair; "
            f"or everything: {again}"
        )
    return f"{why}. To load everything again: {again}"
