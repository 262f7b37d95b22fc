"""Logical slots: their names, positions in the log, and whether a slot can be gone on from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_NAME = 63
_DIGEST = 8
_UNFIT = re.compile(r"[^a-z0-9_]+")


def slot_name(project: str, connection: str, *identity: str) -> str:
    """The slot of a project in one source; `identity` tells those of equal names apart."""
    return _name((project, connection), identity)


def publication_name(project: str, sync: str, *identity: str) -> str:
    """The publication of one sync."""
    return _name((project, sync), identity)


def _name(words: tuple[str, ...], identity: tuple[str, ...]) -> str:
    content = "\0".join((*words, *identity))
    digest = hashlib.sha256(content.encode()).hexdigest()[:_DIGEST]
    plain = _UNFIT.sub("_", "_".join(("tidegate", *words)).lower())
    return f"{plain[: MAX_NAME - _DIGEST - 1].rstrip('_')}_{digest}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where changes come from, as it is remembered with the watermark.

    Each part changes when somebody has made that thing anew under its old name, and with it the
    changes in between are lost.
    """

    system: str
    timeline: int
    slot: str
    publication: int
    member: int
    """the table's place in the publication, which goes when the table leaves it"""

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "timeline": self.timeline,
            "slot": self.slot,
            "publication": self.publication,
            "member": self.member,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Origin:
        return cls(
            data["system"], data["timeline"], data["slot"], data["publication"], data["member"]
        )


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as the server shows it."""

    name: str
    plugin: str
    database: str | None
    active_pid: int | None
    restart: str | None
    confirmed: str | None
    wal_status: str | None
    lost_because: str | None
    """why the server has given it up; None where it has not"""
    retained_bytes: int
    """how much of the log the server keeps for it"""
    safe_bytes: int | None
    """how much may still be written before the server gives it up; None without a limit"""

    @property
    def is_lost(self) -> bool:
        return self.lost_because is not None or self.confirmed is None


def switch_point(history: str, timeline: int) -> str | None:
    """Where a timeline was left, by the history file of one that came after it."""
    for line in history.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdigit() and int(words[0]) == timeline:
            return words[1]
    return None
