"""From jobs that failed to messages that have arrived: noticing, and the outbox.

Failures are written down by the transaction that ends the job. A notifier looks at each once, in
the transaction that puts the message into the outbox, so that a killed one loses and doubles
nothing there. A message leaves the outbox when it has arrived.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import Cursor, sql
from psycopg.types.json import Jsonb

from tidegate.control.plane import ControlPlane
from tidegate.model.job import MAINTENANCE, SYNC
from tidegate.model.notice import Event, Notice, notice_id, shorten
from tidegate.postgres.connect import Connection

NOTICED = frozenset({SYNC, "task", MAINTENANCE})
"""kinds of jobs that people want to hear of"""
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that this process is to deliver now."""

    notice_id: UUID
    channel: str
    document: dict[str, Any]
    tries: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Notices:
    """The notices of one project: what is told, on which channels, and how often."""

    plane: ControlPlane
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
    ) -> Outgoing | None:
        """A message that is due on a channel that is not left out."""
        row = self._execute(
            connection, "take_due", lease=lease_seconds, without=sorted(without)
        ).fetchone()
        return None if row is None else Outgoing(*row)

    def end(self, connection: Connection, one: Outgoing, outcome: str, error: str | None) -> None:
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
        self, connection: Connection, one: Outgoing, delay_seconds: float, error: str
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
                Event.FAILURE,
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
                    Event.RECOVERY,
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
                    Event.DISABLE,
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
            self.plane.statement("notices", statement), {"project": self.project, **values}
        )
