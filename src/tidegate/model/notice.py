"""Notices: what people are told when something fails, is disabled or works again."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

_LONGEST_ERROR = 1_000
_NAMES = UUID("6d0f3f5e-6a0e-5f0e-9a59-74696465676e")


class Event(StrEnum):
    """What a notice is about."""

    FAILURE = "failure"
    DISABLE = "disable"
    RECOVERY = "recovery"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notice:
    """One message; whoever gets it twice knows it by its id."""

    notice_id: UUID
    event: Event
    project: str
    name: str
    at: datetime
    kind: str | None = None
    parameters: dict[str, Any] | None = None
    job_id: UUID | None = None
    error: str | None = None
    failures: int = 0
    first_failed_at: datetime | None = None
    until: str | None = None

    @property
    def subject(self) -> str:
        """What it is about, as people would type it."""
        given = self.parameters or {}
        words = " ".join(f"{key}={value}" for key, value in given.items())
        return f"{self.name} {words}" if words else self.name

    @property
    def text(self) -> str:
        """The message in a line or two."""
        if self.event is Event.TEST:
            return f"{self.project}: this is a test; notices arrive here"
        if self.event is Event.RECOVERY:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            return f"{self.project}: {self.subject} works again, after it had failed {times}"
        if self.event is Event.DISABLE:
            until = f" until {self.until}" if self.until else ""
            return (
                f"{self.project}: {self.subject} failed too often and is disabled{until}; to let "
                f"it run again: tidegate schedule enable {self.name}"
            )
        times = f", {self.failures} times in a row" if self.failures > 1 else ""
        reason = f": {self.error}" if self.error else ""
        return f"{self.project}: {self.subject} failed{times}{reason}"

    @property
    def document(self) -> dict[str, Any]:
        """Everything there is to know, as JSON."""
        return {
            "id": str(self.notice_id),
            "event": self.event.value,
            "project": self.project,
            "kind": self.kind,
            "name": self.name,
            "parameters": self.parameters,
            "job_id": None if self.job_id is None else str(self.job_id),
            "error": self.error,
            "failures": self.failures,
            "first_failed_at": _moment(self.first_failed_at),
            "at": _moment(self.at),
            "until": self.until,
            "text": self.text,
        }


def notice_id(*parts: object) -> UUID:
    """The same for the same matter, whoever notices it and however often."""
    return uuid.uuid5(_NAMES, "\0".join(str(part) for part in parts))


def shorten(error: str | None) -> str | None:
    """An error as a message can hold it; the whole of it is with the job."""
    text = (error or "").strip()
    if not text:
        return None
    return text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 2] + " …"


def slack_message(document: dict[str, Any]) -> dict[str, Any]:
    """A notice as Slack's incoming webhooks take it, and whoever speaks like them."""
    text = _escape(str(document["text"]))
    details = [f"{document['event']} · {document['project']}"]
    if document.get("job_id"):
        details.append(f"`tidegate job show {document['job_id']}`")
    details.append(str(document["id"]))
    return {
        "text": text,
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": text[:2_900]}},
            {
                "type": "context",
                "elements": [{"type": "mrkdwn", "text": _escape(" · ".join(details))}],
            },
        ],
    }


def _escape(text: str) -> str:
    """Nothing in a message calls people or leads anywhere."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()
