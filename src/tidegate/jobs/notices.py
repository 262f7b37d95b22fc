"""Failures noticed, and the outbox of messages."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from psycopg import Cursor, sql
from psycopg.types.json import Jsonb

from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import MAINTENANCE, SYNC
from tidegate.postgres.connection import Connection

_LONGEST_ERROR = 1_000
_NAMES = UUID("6d0f3f5e-6a0e-5f0e-9a59-74696465676e")


class NoticeEvent(StrEnum):
    """What a notice is about."""

    FAILURE = "failure"
    DISABLE = "disable"
    RECOVERY = "recovery"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notice:
    """One message; whoever gets it twice knows it by its id."""

    notice_id: UUID
    event: NoticeEvent
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
        if self.event is NoticeEvent.TEST:
            return f"{self.project}: this is a test; notices arrive here"
        if self.event is NoticeEvent.RECOVERY:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            return f"{self.project}: {self.subject} works again, after it had failed {times}"
        if self.event is NoticeEvent.DISABLE:
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


NOTICED = frozenset({SYNC, "task", MAINTENANCE})
"""kinds of jobs that people want to hear of"""
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class OutgoingNotice:
    """A message that this process is to deliver now."""

    notice_id: UUID
    channel: str
    document: dict[str, Any]
    tries: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Notices:
    """The notices of one project: what is told, on which channels, and how often."""

    plane: ControlDatabase
    project: str
    channels: Sequence[str]
    events: Sequence[str]
    repeat_after_seconds: float

    def notice(self, connection: Connection) -> int:
        """Look at what has happened, in one transaction; returns how many messages that makes."""
        with connection.transaction():
            place = f"{self.plane.schema}/{self.project}"
            row = self._execute(connection, "try_noticing", place=place).fetchone()
            if row is None or not row[0]:
                return 0
            made = self._notice_failures(connection)
            made += self._notice_recovered(connection)
            return made + self._notice_disabled(connection)

    def take(
        self, connection: Connection, lease_seconds: float, without: set[str]
    ) -> OutgoingNotice | None:
        """A message that is due on a channel that is not left out."""
        row = self._execute(
            connection, "take_due", lease=lease_seconds, without=sorted(without)
        ).fetchone()
        return None if row is None else OutgoingNotice(*row)

    def end(
        self, connection: Connection, one: OutgoingNotice, outcome: str, error: str | None
    ) -> None:
        """It was `delivered`, or is `given up`."""
        self._execute(
            connection,
            "end_notice",
            notice_id=one.notice_id,
            channel=one.channel,
            outcome=outcome,
            error=error,
        )

    def put_off(
        self, connection: Connection, one: OutgoingNotice, delay_seconds: float, error: str
    ) -> None:
        """It is tried again later."""
        self._execute(
            connection,
            "put_off_notice",
            notice_id=one.notice_id,
            channel=one.channel,
            delay=delay_seconds,
            error=error,
        )

    def prune(self, connection: Connection, older_than_seconds: float) -> int:
        """Forget what ended long ago."""
        return self._execute(connection, "prune_notices", older_than=older_than_seconds).rowcount

    def _notice_failures(self, connection: Connection) -> int:
        rows = self._execute(connection, "list_failures", limit=_AT_ONCE).fetchall()
        made = 0
        for job_id, kind, name, subject, parameters, error, failed_at, attempts in rows:
            # Without an attempt it failed because of what it requires, and that is told.
            if kind not in NOTICED or not attempts:
                continue
            # What was done in between ended the streak before.
            made += self._notice_recovered(connection, kind, name, before=failed_at)
            made += self._notice_failure(
                connection, job_id, kind, name, subject, parameters, error, failed_at
            )
        if rows:
            self._execute(connection, "forget_failures", job_ids=[row[0] for row in rows])
        return made

    def _notice_failure(
        self,
        connection: Connection,
        job_id: UUID,
        kind: str,
        name: str,
        subject: str,
        parameters: dict[str, Any] | None,
        error: str | None,
        failed_at: datetime,
    ) -> int:
        failing = self._execute(connection, "list_failing", kind=kind, name=name).fetchall()
        told = [told_at for *_, told_at in failing if told_at is not None]
        self._execute(
            connection,
            "note_failing",
            kind=kind,
            name=name,
            subject=subject,
            streak_id=failing[0][1] if failing else uuid.uuid4(),
            failed_at=failed_at,
            job_id=job_id,
            told_at=max(told, default=None),
        )
        if told and not self._is_long_ago(connection, max(told)):
            return 0
        self._execute(connection, "note_told", kind=kind, name=name)
        return self._add(
            connection,
            Notice(
                notice_id("failure", self.project, job_id),
                NoticeEvent.FAILURE,
                self.project,
                name,
                failed_at,
                kind,
                parameters,
                job_id,
                shorten(error),
                1 + sum(row[2] for row in failing),
                min((row[3] for row in failing), default=failed_at),
            ),
        )

    def _notice_recovered(
        self,
        connection: Connection,
        kind: str | None = None,
        name: str | None = None,
        before: datetime | None = None,
    ) -> int:
        rows = self._execute(
            connection, "list_recovered", kind=kind, name=name, before=before
        ).fetchall()
        made = 0
        for kind_, name_, subject, streak_id, failures, first, job_id, at, parameters in rows:
            left = self._execute(
                connection, "forget_failing", kind=kind_, name=name_, subject=subject
            ).fetchone()
            # Something else of this name still fails: it is not well as a whole.
            if left is None or left[0] is None or left[1]:
                continue
            made += self._add(
                connection,
                Notice(
                    notice_id("recovery", self.project, streak_id),
                    NoticeEvent.RECOVERY,
                    self.project,
                    name_,
                    at,
                    kind_,
                    parameters,
                    job_id,
                    None,
                    failures,
                    first,
                ),
            )
        return made

    def _notice_disabled(self, connection: Connection) -> int:
        table = sql.Identifier(self.plane.schema, "task_states").as_string(None)
        row = self._execute(connection, "has_task_states", table=table).fetchone()
        if row is None or not row[0]:
            return 0
        made = 0
        for name, digest, at, until, failures in self._execute(connection, "list_disabled"):
            made += self._add(
                connection,
                Notice(
                    notice_id("disable", self.project, name, digest, at.isoformat()),
                    NoticeEvent.DISABLE,
                    self.project,
                    name,
                    at,
                    failures=failures or 0,
                    until=None if until == "infinity" else until,
                ),
            )
        return made

    def _add(self, connection: Connection, notice: Notice) -> int:
        if notice.event.value not in self.events:
            return 0
        return sum(
            self._execute(
                connection,
                "add_notice",
                notice_id=notice.notice_id,
                channel=channel,
                name=notice.name,
                document=Jsonb(notice.document),
            ).rowcount
            for channel in self.channels
        )

    def _is_long_ago(self, connection: Connection, told_at: datetime) -> bool:
        row = connection.execute(
            "SELECT now() - %s >= %s * interval '1 second'", (told_at, self.repeat_after_seconds)
        ).fetchone()
        return bool(row and row[0])

    def _execute(
        self, connection: Connection, statement: str, /, **values: Any
    ) -> Cursor[tuple[Any, ...]]:
        return connection.execute(
            self.plane.statement("jobs/notices", statement), {"project": self.project, **values}
        )
