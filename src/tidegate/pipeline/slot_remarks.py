"""What is worth saying of a slot: that it is lost, or keeps too much of its server's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.control.slots import SlotReader
from tidegate.model.figures import in_bytes
from tidegate.model.identity import sync_of
from tidegate.model.slot import SlotState
from tidegate.settings.cdc import CdcSettings


@dataclass(frozen=True, slots=True)
class SlotRemark:
    """What is wrong with a slot, and what to do; `severe` when it cannot stay so."""

    found: str
    fix: str
    severe: bool

    @property
    def text(self) -> str:
        return f"{self.found}; {self.fix}"


def slot_remark(
    settings: CdcSettings, state: SlotState, readers: Sequence[SlotReader], project: str = ""
) -> SlotRemark | None:
    """The gravest remark; `readers` are in the order of what they have read, the last one first."""
    if state.is_lost:
        return SlotRemark(
            f"the server has given up slot {state.name} ({state.lost_because})",
            "copy its tables again: tidegate run NAME --full-refresh",
            severe=True,
        )
    slowest = sync_of(project, readers[0].pipeline) if readers else None
    what = f"slot {state.name} keeps {in_bytes(state.retained_bytes)} of its server's log"
    if slowest is not None:
        what += f", held back by {slowest}"
    name = slowest or "NAME"
    if state.retained_bytes >= settings.max_retained:
        return SlotRemark(
            f"{what}: more than max_retained ({in_bytes(settings.max_retained)}), and it grows "
            "until the server's disk is full",
            f"run it: tidegate run {name}; or give it up, and with it its place in the log: "
            f"tidegate remove {name}. Nothing is ever dropped by itself",
            severe=True,
        )
    if state.wal_status == "unreserved":
        return SlotRemark(
            f"{what}, and the server may give it up at its next checkpoint "
            "(max_slot_wal_keep_size)",
            f"run it now: tidegate run {name}",
            severe=True,
        )
    if state.retained_bytes >= settings.warn_retained:
        return SlotRemark(
            f"{what}: more than warn_retained ({in_bytes(settings.warn_retained)})",
            f"run it: tidegate run {name}; see docs/cdc.md",
            severe=False,
        )
    return None
