"""Where a source stood when a snapshot of it was taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidegate.model.batch import Batch, BatchKind
from tidegate.model.server import Fate, Server
from tidegate.model.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Standing:
    """What must still hold when rows are read from there on."""

    xmin: str
    """every transaction below it has ended: what it wrote is in the snapshot, or never will be"""
    xmax: str
    """no transaction from it on is in the snapshot"""
    system: str
    database: str
    timeline: int
    """0 where it does not matter any more"""
    lsn: str
    tables: tuple[int, ...]
    """the tables that hold the rows: itself, its partitions, those that inherit from it"""
    cursor: str | None = None
    """how far the cursor had got, where one bounds how far back is looked"""
    column: str | None = None
    """that cursor: its name and type"""

    @property
    def is_quiet(self) -> bool:
        """Whether no transaction was open that had an id."""
        return self.xmin == self.xmax

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Standing:
        return cls(**{**data, "tables": tuple(data["tables"])})

    def difference(self, now: Standing) -> str | None:
        """Why ids of then mean nothing now, in words."""
        # Ids that were given out and lost may be given out again, so no other timeline will do.
        fate, _ = self.server.fate(now.server, lambda _: None)
        if fate is Fate.OTHER_SERVER:
            return f"it was server {self.system} and is now {now.system}"
        if fate is Fate.OTHER_DATABASE:
            return f"it was database {self.database} of its server and is now {now.database}"
        if fate is Fate.SET_BACK:
            return f"its log was at {self.lsn} and is now at {now.lsn}: it was restored"
        if fate is not Fate.SAME:
            return (
                f"it was on timeline {self.timeline} and is now on {now.timeline}: it was restored "
                "or failed over"
            )
        return None

    @property
    def server(self) -> Server:
        return Server(self.system, self.database, self.timeline, self.lsn)


def loaded_at(watermark: Watermark) -> Standing | None:
    """Where the source stood when everything up to the watermark was loaded.

    None of that holds of a watermark that a person has moved, except which server it belongs to.
    """
    found = None if watermark.value is None else _recorded(watermark, "standing")
    if found is None or watermark.value is None or found.xmin == watermark.value:
        return found
    return replace(found, xmin=watermark.value, timeline=0, lsn="0/0", cursor=None)


def begun_at(watermark: Watermark) -> Standing | None:
    """Where the source stood when the pass began that is not finished yet."""
    return None if watermark.position is None else _recorded(watermark, "pass")


def kept_by(batch: Batch, watermark: Watermark) -> dict[str, Any]:
    """What stays recorded when a load leaves the watermark where it is."""
    if batch.kind in (BatchKind.FULL, BatchKind.WRITTEN):
        return {}
    before = watermark.declaration or {}
    return {name: before[name] for name in ("standing", "pass") if name in before}


def _recorded(watermark: Watermark, name: str) -> Standing | None:
    found = (watermark.declaration or {}).get(name)
    return None if found is None else Standing.from_json(found)
