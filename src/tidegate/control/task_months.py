"""The history's tables, cut into months: made ahead, dropped when they are old enough."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql

from tidegate.control.plane import ControlPlane
from tidegate.model.month import Month
from tidegate.postgres.connect import Connection

TABLES = ("tasks", "task_events", "task_parameters")
_LOCK = "tidegate:history:"


@dataclass(frozen=True, slots=True)
class TaskMonths:
    """Makes and drops the months of the history."""

    plane: ControlPlane

    def make(self, connection: Connection, now: datetime, ahead: int = 1) -> int:
        """Make the month that a moment lies in and so many more; returns how many were missing."""
        wanted = [Month.of(now)]
        for _ in range(ahead):
            wanted.append(wanted[-1].next)
        if not any(self._missing(connection, table, wanted) for table in TABLES):
            return 0
        with connection.transaction():
            # One at a time; who was slower finds them made.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0::bigint))",
                (_LOCK + self.plane.schema,),
            )
            made = 0
            for table in TABLES:
                for month in self._missing(connection, table, wanted):
                    self._attach(connection, table, month)
                    made += 1
        return made

    def drop(self, connection: Connection, now: datetime, keep_seconds: float) -> int:
        """Drop the months that ended before all that is kept; returns how many tables that were."""
        oldest = now - timedelta(seconds=keep_seconds)
        dropped = 0
        for table in TABLES:
            for month in sorted(self._months(connection, table)):
                if month.end <= oldest:
                    connection.execute(
                        sql.SQL("DROP TABLE {}").format(self._name(month.partition(table)))
                    )
                    dropped += 1
        return dropped

    def _attach(self, connection: Connection, table: str, month: Month) -> None:
        """CREATE and ATTACH; PARTITION OF would lock readers out."""
        parent, part = self._name(table), self._name(month.partition(table))
        connection.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(part, parent))
        connection.execute(
            sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                parent, part, month.start.isoformat(), month.end.isoformat()
            )
        )

    def _missing(self, connection: Connection, table: str, wanted: list[Month]) -> list[Month]:
        there = self._months(connection, table)
        return [month for month in wanted if month not in there]

    def _months(self, connection: Connection, table: str) -> set[Month]:
        rows = connection.execute(
            self.plane.statement("tasks", "list_partitions"),
            {"table": self._name(table).as_string(None)},
        )
        found = (Month.of_partition(row[0]) for row in rows)
        return {month for month in found if month is not None}

    def _name(self, table: str) -> sql.Identifier:
        return sql.Identifier(self.plane.schema, table)
