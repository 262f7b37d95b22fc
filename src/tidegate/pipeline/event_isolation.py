"""Events that the tables refuse, told apart from the others of their batch by halving it."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from tidegate.pipeline.event_apply import EventApplication, write
from tidegate.postgres.connect import Connection, first_line
from tidegate.postgres.identifiers import statement

# Values that a column does not take, constraints, and more than the server can work with.
_REFUSALS = ("22", "23", "54")
# So many events in a row are refused only where it is not the events that are wrong.
_ALL_ALIKE = 20
_MOST_PROBES = 5_000


def is_refusal(error: psycopg.Error) -> bool:
    """Whether it is about the rows, and comes again with them."""
    return (error.sqlstate or "")[:2] in _REFUSALS


@dataclass(frozen=True, slots=True)
class EventIsolation:
    """A batch that was refused as a whole, for example by a constraint that a user has added."""

    batch: EventApplication

    def isolate(self, connection: Connection) -> bool:
        """Let the events fail that are to blame; False when it cannot be told which those are."""
        settled = self._settled(connection)
        refused: dict[int, str] = {}
        taken = probes = 0
        ranges = _halves(0, self.batch.claimed)
        while ranges:
            first, end = ranges.pop()
            probes += 1
            if probes > _MOST_PROBES or (len(refused) >= _ALL_ALIKE and not taken):
                return False
            reason = self._probe(connection, settled, first, end)
            if reason is None:
                taken += 1
            elif end - first == 1:
                refused[first] = f"the tables refuse it: {reason}"
            else:
                ranges += _halves(first, end)
        if not refused or not taken:
            return False
        for table in self.batch.tables:
            connection.execute(
                statement("events/processing", "refuse_staged", staged=table),
                {"places": list(refused), "reasons": list(refused.values())},
            )
        return True

    def _settled(self, connection: Connection) -> sql.Composable:
        statements = self.batch.statements
        rows = statements.rows(self.batch.tables)
        found = connection.execute(statements.months(rows))
        missing = self.batch.missing(connection, [row[0] for row in found if row[0]])
        return statements.settled(rows, missing)

    def _probe(
        self, connection: Connection, settled: sql.Composable, first: int, end: int
    ) -> str | None:
        """Why the tables refuse these events; whatever is written is undone."""
        statements = self.batch.statements
        connection.execute("SAVEPOINT probe")
        reason = None
        try:
            write(connection, statements, statements.between(settled, first, end))
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            reason = first_line(error)
        connection.execute("ROLLBACK TO SAVEPOINT probe")
        connection.execute("RELEASE SAVEPOINT probe")
        return reason


def _halves(first: int, end: int) -> list[tuple[int, int]]:
    middle = (first + end) // 2
    return [(one, other) for one, other in ((middle, end), (first, middle)) if other > one]
