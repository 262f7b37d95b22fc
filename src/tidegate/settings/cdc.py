"""`[cdc]`: how much of a source's log may wait for us."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, model_validator

from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.explain import Conflict
from tidegate.settings.section import Section
from tidegate.settings.sizes import parse_size

_LEAST = 1024 * 1024


def _size(value: object) -> int:
    found = parse_size(value)
    if found < _LEAST:
        raise ValueError('a size of 1MB at least, such as "1GB"')
    return found


Retained = Annotated[int, BeforeValidator(_size)]


class CdcSettings(Section):
    """`[cdc]`: what holds for every sync with changes = "cdc"."""

    warn_retained: Retained = 1024**3
    """how much of its log a source may keep for us before it is worth a word"""
    max_retained: Retained = 10 * 1024**3
    """how much of it is too much"""
    start_timeout: values.PositiveDuration = "10 minutes"
    """how long a slot waits for the transactions that are open when it is made"""

    @model_validator(mode="after")
    def _warning_comes_first(self) -> CdcSettings:
        if self.warn_retained > self.max_retained:
            raise Conflict("warn_retained", "is larger than cdc.max_retained; it must come first")
        return self

    @property
    def start_timeout_seconds(self) -> float:
        return parse_duration(self.start_timeout)
