"""Which server a source is and how far its log had got, as that is remembered with a watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidegate.core.watermark import lsn_value


class Fate(StrEnum):
    """What has become of a server since it was remembered."""

    SAME = "same"
    OTHER_SERVER = "another server"
    OTHER_DATABASE = "another database"
    SET_BACK = "set back"
    """its log is the same and has not got as far any more: an older copy of its files"""
    BRANCHED = "branched"
    """its log left ours before the place that we had seen: what came after that is lost"""
    FOLLOWED = "followed"
    """another took over, or it was restored, with all that we had seen"""
    UNTOLD = "untold"
    """one of the last two; it does not tell us which"""


@dataclass(frozen=True, slots=True)
class Server:
    """A database of a server, at one moment."""

    system: str
    """the server's own identifier; empty where this role may not read it"""
    database: str
    """its number, which changes when it is made anew under its name"""
    timeline: int
    """0 where it is not told, or does not matter any more"""
    lsn: str
    is_standby: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "database": self.database,
            "timeline": self.timeline,
            "lsn": self.lsn,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Server:
        return cls(data["system"], data["database"], data["timeline"], data["lsn"])

    def fate(self, now: Server, read_history: Callable[[int], str | None]) -> tuple[Fate, str]:
        """What has become of it, and where a new timeline left this one, if that is told."""
        if self.system and now.system and self.system != now.system:
            return Fate.OTHER_SERVER, ""
        if self.database and now.database and self.database != now.database:
            return Fate.OTHER_DATABASE, ""
        # A standby may be a little behind the server that we asked before.
        behind = lsn_value(now.lsn) < lsn_value(self.lsn) and not now.is_standby
        if not self.timeline or not now.timeline or self.timeline == now.timeline:
            return Fate.SET_BACK if behind else Fate.SAME, ""
        history = read_history(now.timeline) if now.timeline > self.timeline else None
        if history is None:
            older = now.timeline < self.timeline and not now.is_standby
            return Fate.BRANCHED if behind or older else Fate.UNTOLD, ""
        left = switch_point(history, self.timeline)
        lost = left is None or lsn_value(left) < lsn_value(self.lsn)
        return Fate.BRANCHED if lost else Fate.FOLLOWED, left or ""


def switch_point(history: str, timeline: int) -> str | None:
    """Where a timeline was left, by the history file of one that came after it."""
    for line in history.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdigit() and int(words[0]) == timeline:
            return words[1]
    return None
