"""Taking over a table that somebody else has filled: from where, and when that is allowed."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import UsageError
from tidegate.model.cursor import CursorType


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where a person wants an adopted sync to go on from."""

    at: str | None = None
    from_target_max: bool = False
    back: str | None = None

    @property
    def is_given(self) -> bool:
        return self.at is not None or self.from_target_max


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was, or would be, taken over; `rows_above` are those the next run loads."""

    sync: str
    target: str
    rows: int
    target_max: str | None
    watermark: str
    cursor_type: CursorType
    rows_above: int
    rows_above_are_exact: bool
    warnings: tuple[str, ...]
    reason: str
    adopted: bool = False


def check_point(name: str, point: StartingPoint) -> None:
    """Refuse options that contradict each other."""
    if point.at is not None and point.from_target_max:
        raise UsageError("--at and --from-target-max were both given", "give one of them")
    if point.back is not None and not point.from_target_max:
        raise UsageError(
            "--back goes with --from-target-max",
            f"tidegate adopt {name} --from-target-max --back …",
        )


def check_mode(name: str, mode: str, key: tuple[str, ...] | None, point: StartingPoint) -> None:
    """Refuse to adopt where the rows of an overlap would be lost or doubled.

    Where the former loader stopped, the last cursor value may be half there. A mode that replaces
    rows by key reads it again and absorbs what it knows. A plain append has no key to know rows
    by, so only a person can say up to where the table is complete.
    """
    if mode == "replace":
        raise UsageError(
            f'sync {name}: mode = "replace" loads the whole table each time, so there is nothing '
            "to go on from",
            f"just run it: tidegate run {name}",
        )
    if mode != "append":
        return
    if key:
        raise UsageError(
            f'sync {name}: mode = "append" with a key keeps its rows in a table of its own, behind '
            "a view, and cannot take over another's",
            'use mode = "merge" for this table, or choose another target',
        )
    if point.from_target_max:
        raise UsageError(
            f'sync {name}: mode = "append" cannot go on from the highest value of the target: rows '
            "that share it would be skipped or doubled",
            "delete the rows of that value from the target, then give the one below it with --at",
        )
