"""What a worker can do: a handler for every kind of job that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.errors import UsageError
from tidegate.model.job import KINDS, NOTHING, Claim
from tidegate.runtime.claiming import Claimed

Check = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Handler:
    """Works jobs of one kind.

    `work` ends the job itself, through ClaimedWork: it raises when the job failed, and returns
    False when another attempt took over. A kind with `quick`
    instead takes no time and no lock: such jobs are claimed and finished together.
    """

    kind: str
    check: Check
    work: Callable[[Claimed], bool] | None = None
    quick: Callable[[Claim], dict[str, Any] | None] | None = None


def check_kind(kind: str, handlers: dict[str, Handler]) -> Handler:
    """The handler of a kind; UsageError names those there are."""
    handler = handlers.get(kind)
    if handler is None:
        known = ", ".join(sorted(handlers))
        what = "cannot be queued" if kind in KINDS else "does not exist"
        raise UsageError(f"the kind of job {kind!r} {what}", f"use one of {known}")
    return handler


def payload_text(name: str, payload: dict[str, Any], key: str) -> str:
    """A text that the payload of a job must hold."""
    value = payload.get(key) if isinstance(payload, dict) else None
    if not isinstance(value, str) or not value:
        raise UsageError(
            f"the job {name} is malformed: its payload holds no {key}",
            "submit it again with: tidegate run NAME --queue",
        )
    return value


def payload_flag(name: str, payload: dict[str, Any], key: str) -> bool:
    """A yes or no that the payload of a job may hold."""
    value = payload.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(
            f"the job {name} is malformed: {key} in its payload is {value!r}, not true or false",
            "submit it again with: tidegate run NAME --queue",
        )
    return value


def _accept_anything(_: str, __: dict[str, Any]) -> None:
    """Nothing can be wrong with a job that does nothing."""


NOTHING_HANDLER = Handler(NOTHING, check=_accept_anything, quick=lambda _: None)
