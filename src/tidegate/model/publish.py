"""A publish: the rows of a DataFrame, put into one table once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.model.relation import Endpoint
from tidegate.model.rules import Rules


@dataclass(frozen=True, slots=True)
class Publish:
    """What shall happen to the rows, whoever made them."""

    target: Endpoint
    update_id: str
    key: tuple[str, ...] | None
    cursor: str | None
    rules: Rules
    partitions: int = 32
    """in how many parts at most the rows are staged, each over a session of its own"""

    def __str__(self) -> str:
        return f"publish {self.update_id} into {self.target}"

    @property
    def payload(self) -> dict[str, Any]:
        """What makes two jobs the same publish."""
        return {
            "target": str(self.target),
            "update_id": self.update_id,
            "mode": self.rules.mode.value,
            "key": None if self.key is None else list(self.key),
        }


@dataclass(frozen=True, slots=True)
class PublishReport:
    """How a publish ended; `already` means that its marker was there before, and nothing was done.

    >>> PublishReport("done", 3, 2, 0, False, "revenue-2026-11-01").changed
    2
    """

    status: str
    rows: int
    changed: int
    rejected: int
    already: bool
    update_id: str
    notes: tuple[str, ...] = ()
    """what there is to know about the target"""

    @classmethod
    def found(cls, update_id: str) -> PublishReport:
        """Somebody has published this before."""
        return cls("already", 0, 0, 0, True, update_id)
