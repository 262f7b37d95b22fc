"""Logical slots: their names, positions in the log, and whether a slot can be gone on from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

MAX_NAME = 63
UNCOPIED = -1
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
class TableState:
    """The published table or one of its partitions, by what changes when no log tells of it."""

    oid: int
    name: str
    link: int
    """the transaction that made it a partition; 0 for the table itself, or UNCOPIED"""
    node: int
    """its file, which VACUUM FULL, TRUNCATE and rewrites replace; 0 where it has none"""
    toast: int
    """the table of its large values, which a rewriting ALTER replaces and VACUUM FULL keeps"""
    columns: str
    """a digest that changes when a column is altered"""
    empty: bool

    def is_empty_as(self, before: TableState) -> bool:
        """Whether it is empty, and was not emptied since."""
        return self.empty and self.node == before.node

    def is_rewritten(self, before: TableState) -> bool:
        """Whether an ALTER has given its rows other values since."""
        if self.node == before.node:
            return False
        return self.toast != before.toast if before.toast else self.columns != before.columns


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables behind a published one at one moment."""

    since: int
    """transactions below this one had ended by then"""
    states: tuple[TableState, ...]

    def by_oid(self) -> dict[int, TableState]:
        return {one.oid: one for one in self.states}

    def is_as(self, other: Tables | None) -> bool:
        """Whether nothing has happened but changes of rows."""
        return other is not None and self.at(other).states == other.at(other).states

    def joined(self, later: Tables) -> Tables:
        """With the tables that have come since, as ones whose rows were never copied."""
        return self.with_uncopied((one.oid, one.name) for one in later.states if one.node)

    def with_uncopied(self, tables: Iterable[tuple[int, str]]) -> Tables:
        """With these, by oid and name, of which only the log has brought rows."""
        known = self.by_oid()
        come = (
            TableState(oid, name, link=UNCOPIED, node=oid, toast=0, columns="", empty=False)
            for oid, name in tables
            if oid not in known
        )
        return replace(self, states=(*self.states, *come))

    def at(self, later: Tables) -> Tables:
        """As they are remembered with what is loaded up to a later moment: empty is only what is
        so still."""
        found = later.by_oid()
        return replace(
            self,
            states=tuple(
                replace(one, empty=one.oid in found and found[one.oid].is_empty_as(one))
                for one in self.states
            ),
        )

    def to_json(self) -> dict[str, Any]:
        return {"since": self.since, "states": [list(astuple(one)) for one in self.states]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Tables | None:
        if data is None:
            return None
        return cls(data["since"], tuple(TableState(*one) for one in data["states"]))


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
    tables: Tables | None = None
    """with whose rows the target is equal, but for what the log has; None: loaded before this was
    remembered"""
    seen: Tables | None = None
    """as they were when the log was last loaded to its end, if something is in no log: what a
    repair after that makes good"""

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "timeline": self.timeline,
            "slot": self.slot,
            "publication": self.publication,
            "member": self.member,
            "tables": None if self.tables is None else self.tables.to_json(),
            "seen": None if self.seen is None else self.seen.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Origin:
        return cls(
            data["system"],
            data["timeline"],
            data["slot"],
            data["publication"],
            data["member"],
            Tables.from_json(data.get("tables")),
            Tables.from_json(data.get("seen")),
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
