"""Folding: changes that show two rows with one key at the same moment are not folded."""

from __future__ import annotations

import struct

import pytest

from tidegate.load.sources.cdc.fold import Fold, Twice
from tidegate.load.sources.cdc.pgoutput import Field

Step = tuple[str, ...]
"""what is done, to which row, and what it becomes"""


def row(text: str) -> list[Field]:
    """A row such as 2a: its key and its value, which is not sent where it is missing."""
    fields: list[Field] = [struct.pack(">I", 1) + one.encode() for one in text]
    return [*fields, None][:2]


def play(fold: Fold, *steps: Step) -> None:
    for kind, before, *after in steps:
        if kind == "insert":
            fold.insert(row(before))
        elif kind == "delete":
            fold.delete(row(before), whole=len(before) == 2, at=0)
        else:
            fold.update(row(after[0]), row(before), whole=True, at=0)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("insert", "2a"), ("insert", "2b")),
        (("insert", "2a"), ("update", "1a", "2a")),
        (("update", "1a", "2a"), ("update", "2b", "3b")),
        (("update", "1a", "2a"), ("update", "2b", "3")),
        (("update", "1a", "2a"), ("delete", "2b")),
        (("delete", "2a"), ("update", "2b", "2c")),
    ],
)
def test_two_rows_with_one_key_are_noticed(first: Step, then: Step, soft: bool) -> None:
    fold = Fold((0,), 2, soft)
    play(fold, first)
    with pytest.raises(Twice):
        play(fold, then)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ((("insert", "2a"), ("delete", "2a"), ("insert", "2a")), 1),
        ((("delete", "2"), ("insert", "2a"), ("delete", "2"), ("update", "1a", "2a")), 2),
        ((("update", "1a", "2a"), ("update", "2a", "3b"), ("insert", "2c")), 3),
        ((("insert", "2a"), ("update", "2a", "2b"), ("delete", "2b")), 1),
    ],
)
def test_one_row_after_the_other_may_have_a_key(
    steps: tuple[Step, ...], left: int, soft: bool
) -> None:
    fold = Fold((0,), 2, soft)
    play(fold, *steps)
    assert len(fold) == left
