"""A load: one batch on its way into one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.model.batch import Batch
from tidegate.model.lateness import Late


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A batch with its identity and the watermark it was planned on; stored with the job."""

    update_id: str
    batch: Batch
    generation: int
    version: int

    def to_json(self) -> dict[str, Any]:
        return {
            "update_id": self.update_id,
            "batch": self.batch.to_json(),
            "generation": self.generation,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoadPlan:
        return cls(
            data["update_id"],
            Batch.from_json(data["batch"]),
            int(data["generation"]),
            int(data["version"]),
        )


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """What one call of the writer left in the destination: its own table, and how many rows."""

    write_id: str
    rows: int


@dataclass(frozen=True, slots=True)
class Published:
    """What publishing did; `already` means an earlier attempt had done it."""

    rows: int
    changed: int
    already: bool = False
    rejected: int = 0
    late: Late | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One finished load, as told to the user."""

    update_id: str
    batch: Batch
    rows: int
    changed: int
    seconds: float
    already: bool = False
    rejected: int = 0
    notes: tuple[str, ...] = ()
    """what the user should know about the target"""
    late: Late | None = None
    """rows that came after the watermark had passed them"""
