"""One thing that was looked at, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingLevel(StrEnum):
    """Whether something works, works with a catch, or stands in the way."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and how to put it right."""

    name: str
    level: FindingLevel
    found: str
    fix: str | None = None


def ok(name: str, found: str) -> Finding:
    return Finding(name, FindingLevel.OK, found)


def warn(name: str, found: str, fix: str) -> Finding:
    return Finding(name, FindingLevel.WARN, found, fix)


def fail(name: str, found: str, fix: str) -> Finding:
    return Finding(name, FindingLevel.FAIL, found, fix)
