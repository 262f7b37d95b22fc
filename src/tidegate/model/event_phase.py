"""The three phases of events, each committed before the next begins."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a job of events does."""

    PROVISION = "provision"
    PROCESS = "process"
    REFRESH = "refresh"

    @property
    def job_name(self) -> str:
        return f"events.{self}"


PHASES = tuple(Phase)
SCHEDULED_NAME = "events.run"
"""what the schedule of events is called; no sync can have this name"""
