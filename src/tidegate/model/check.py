"""One thing that was looked at, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Whether something works, works with a catch, or stands in the way."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found, and how to put it right."""

    name: str
    level: Level
    found: str
    fix: str | None = None


def ok(name: str, found: str) -> Check:
    return Check(name, Level.OK, found)


def warn(name: str, found: str, fix: str) -> Check:
    return Check(name, Level.WARN, found, fix)


def fail(name: str, found: str, fix: str) -> Check:
    return Check(name, Level.FAIL, found, fix)
