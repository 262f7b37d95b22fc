"""`[scheduler]`: how often it looks, and when something has failed too often."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.section import Section

Places = Annotated[int, BeforeValidator(values.whole(1, 10_000))]
"""how many jobs at a time may use a named resource"""


def _names(value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or any(
        not isinstance(one, str) or not one.strip() for one in given
    ):
        raise ValueError('a name or a list of names, for example ["shop"]')
    return tuple(dict.fromkeys(given))


def _priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1000 <= value <= 1000:
        raise ValueError("a whole number from -1000 to 1000")
    return value


ResourceNames = Annotated[tuple[str, ...], BeforeValidator(_names)]
Priority = Annotated[int, BeforeValidator(_priority)]
Failures = Annotated[int, BeforeValidator(values.whole(1, 10_000))]


class SchedulerSettings(Section):
    """`[scheduler]`: the scheduler."""

    poll: values.PositiveDuration = "1s"
    disable_after: Failures = 5
    disable_window: values.PositiveDuration = "1 hour"
    disable_for: values.PositiveDuration = "1 hour"
    state_path: values.TextOrNone = None

    @property
    def poll_seconds(self) -> float:
        """How often a scheduler looks whether something is due."""
        return parse_duration(self.poll)

    @property
    def disable_window_seconds(self) -> float:
        """Within how long so many failures are too many."""
        return parse_duration(self.disable_window)

    @property
    def disable_for_seconds(self) -> float:
        """For how long what failed too often is left alone."""
        return parse_duration(self.disable_for)
