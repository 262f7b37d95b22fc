"""The project that events are measured in: the template, with made-up events that can come back."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime
from pathlib import Path

from psycopg import sql

from benchmarks.shop import checkpoint
from tidegate.admin.scaffold import other_files, project_text
from tidegate.events.generator import Generation, Totals, generate_events
from tidegate.events.model import Processed
from tidegate.events.process import process
from tidegate.events.project_events import ProjectEvents, find_events
from tidegate.events.provision import provision
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import qualified
from tidegate.project import Project

UNTIL = datetime.fromisoformat("2026-11-15T00:00:00+00:00")


def write_template(folder: Path) -> None:
    """What `tidegate init --template events` writes."""
    for path, text in {"tidegate.toml": project_text('"bench"'), **other_files()}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


class EventsProject:
    """An opened project, and its queue of events."""

    def __init__(self, folder: Path) -> None:
        self.project = Project.open(folder)
        self.events: ProjectEvents = find_events(self.project.context)

    def connect(self) -> Connection:
        return self.project.connect(self.events.connection)

    def fill(self, connection: Connection, count: int) -> Totals:
        """Make the events once, and keep them aside."""
        plan = Generation(count=count, seed=10, until=UNTIL)
        totals = generate_events(self.project.context, plan).totals
        connection.execute("CREATE TABLE kept AS SELECT id, body, received_at FROM raw_events")
        self.provision(())
        return totals

    def reset(self, connection: Connection, count: int | None = None) -> None:
        """All, or some, of the events wait again, and nothing is left of the last time."""
        model = self.events.model
        tables = [self.events.raw, model.facts, *(one.table for one in model.dimensions)]
        connection.execute(
            sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(map(qualified, tables)))
        )
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (id, body, received_at)"
                " SELECT id, body, received_at FROM kept ORDER BY received_at, id LIMIT {}"
            ).format(qualified(self.events.raw), sql.Literal(count))
        )
        connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(qualified(self.events.raw)))
        checkpoint(connection)

    def provision(self, months: Collection[date]) -> None:
        with self.connect() as connection:
            provision(self.project.context, self.events, connection, months=months)

    def process(self, attempt_id: str = "b" * 16) -> Processed:
        return process(
            self.project.context,
            self.events,
            attempt_id=attempt_id,
            budget_seconds=3600.0,
            check_alive=lambda: None,
            provision=self.provision,
        )
