"""`[history]`: what is remembered of the runs, and for how long."""

from __future__ import annotations

from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.section import Section


class HistorySettings(Section):
    """`[history]`: the history of tasks."""

    record_task_history: bool = True
    keep: values.PositiveDuration = "90 days"

    @property
    def keep_seconds(self) -> float:
        """How long a run is remembered; the month it lies in goes as a whole."""
        return parse_duration(self.keep)
