"""Staged events into facts, dimensions and statuses, in the transaction that holds the claim."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from psycopg import errors as pg
from psycopg import sql

from tidegate.destinations.event_statements import EventStatements
from tidegate.errors import StagingLost
from tidegate.model.event_batch import BatchEnd
from tidegate.pipeline.events import Events
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import statement


@dataclass(frozen=True, slots=True)
class Applied:
    """What was written, and the transaction that wrote it; it is not committed yet."""

    end: BatchEnd
    xid: str


def write(
    connection: Connection, statements: EventStatements, settled: sql.Composable
) -> tuple[int, int]:
    """Facts, then dimensions in the order of the model; how many rows of each changed."""
    facts = connection.execute(statements.insert_facts(settled)).rowcount
    changed = 0
    for place in range(len(statements.model.dimensions)):
        changed += connection.execute(statements.upsert_dimension(place, settled)).rowcount
    return facts, changed


@dataclass(frozen=True, slots=True)
class EventApplication:
    """One batch that was claimed and staged."""

    events: Events
    attempt_id: str
    claimed: int
    tables: tuple[sql.Identifier, ...]

    @property
    def statements(self) -> EventStatements:
        return EventStatements(self.events.model)

    def apply(self, connection: Connection) -> Applied:
        """Write it all.

        What several instances write comes last, and so is held for the shortest time. Instances
        write the same tables in the same order, and rows of a table in the order of its key.
        """
        events, statements = self.events, self.statements
        rows = statements.rows(self.tables)
        try:
            found = connection.execute(statements.months(rows)).fetchall()
        except pg.UndefinedTable:
            found = []
        months: dict[datetime, int] = {month: count for month, count in found if month}
        total = sum(count for _, count in found)
        if total != self.claimed:
            raise self._lost(total)
        missing = self.missing(connection, list(months))
        left = sum(months[month] for month in missing)
        done = sum(months.values()) - left
        settled = statements.settled(rows, missing)
        updated = connection.execute(statements.settle(events.raw, settled)).rowcount
        if updated != total - left:
            raise self._lost(updated + left)
        facts, changed = write(connection, statements, settled) if done else (0, 0)
        end = BatchEnd(
            claimed=total,
            done=done,
            failed=total - left - done,
            facts=facts,
            missing_months=tuple(month.astimezone(UTC).date() for month in missing),
        )
        xid = self._note(connection, end)
        if facts or changed:
            # One row for all instances, so it is the last that is taken.
            connection.execute(self._statement("raise_changes"))
        return Applied(end, xid)

    def missing(self, connection: Connection, months: list[datetime]) -> list[datetime]:
        """Which of the months have no partition."""
        facts = self.events.model.facts
        rows = connection.execute(
            statement("events/processing", "missing_months"),
            {"months": months, "schema": facts.schema, "name": facts.name},
        )
        return [row[0] for row in rows]

    def _note(self, connection: Connection, end: BatchEnd) -> str:
        row = connection.execute(
            self._statement("note_batch"),
            {
                "attempt_id": self.attempt_id,
                "claimed": end.claimed,
                "done": end.done,
                "failed": end.failed,
                "facts": end.facts,
                "left_pending": end.left_pending,
            },
        ).fetchone()
        assert row is not None
        return str(row[0])

    def _statement(self, name: str) -> sql.Composed:
        schema = sql.Identifier(self.events.ledger_schema)
        return statement("events/processing", name, schema=schema)

    def _lost(self, found: int) -> StagingLost:
        return StagingLost(
            f"{self.claimed} events of {self.events.raw} were claimed, {found} were found again",
            "they are claimed again",
        )
