"""What is to be queued by itself: a sync, a group or a task, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidegate.model.schedule import CatchUp, Schedule


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One declaration with a schedule."""

    name: str
    kind: str
    schedule: Schedule
    catch_up: CatchUp = CatchUp.LAST
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """what the declaration gives each of its runs, besides the tick"""
    disable_after: int | None = None
    """how many failures are too many; None for what the settings say"""


class TickOutcome(StrEnum):
    """What became of a tick."""

    QUEUED = "queued"
    COALESCED = "coalesced"
    """the last run has not ended yet"""
    COMPLETE = "complete"
    """there was nothing to do"""
    DISABLED = "disabled"
    """it had failed too often of late"""
    FAILED = "failed"
    """it could not be queued, and could not be later either"""


@dataclass(frozen=True, slots=True)
class Disabled:
    """Since when and until when something is not queued, and by whom."""

    since: datetime
    until: datetime
    by: str
    failures: int
