"""Small models of events, a queue of raw ones in a real database, and what became of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import sql

from integration.conftest import Database, Place, Rows
from tidegate.config.service_sections import EventSettings
from tidegate.core.relation import Relation
from tidegate.events.model import (
    Dimension,
    EventField,
    EventModel,
    EventView,
    FieldType,
    JsonPath,
    Processed,
)
from tidegate.events.process import process
from tidegate.events.project_events import ProjectEvents
from tidegate.events.reader import EventLimits
from tidegate.events.tables import ensure_tables
from tidegate.project import Project

DAY = 86_400.0


def field(name: str, path: str, type_: FieldType = FieldType.TEXT, **more: Any) -> EventField:
    return EventField(name, JsonPath.parse(path), type_, **more)


def small_model(**changes: Any) -> EventModel:
    """Visits of pages: who, where from, when, and what it cost."""
    model = EventModel(
        facts=Relation("warehouse", "fact_events"),
        columns=(
            field("occurred_at", "$.at", FieldType.TIMESTAMPTZ, required=True),
            field("page", "$.page", required=True),
            field("cost", "$.cost", FieldType.NUMERIC, precision=12, scale=2),
        ),
        partition_column="occurred_at",
        hashed=("occurred_at", "page", "user_id"),
        dimensions=(
            Dimension(
                "users",
                Relation("warehouse", "dim_users"),
                key=(field("user_id", "$.user.id"),),
                attributes=(field("user_name", "$.user.name"),),
            ),
            Dimension(
                "places",
                Relation("warehouse", "dim_places"),
                key=(field("country", "$.place.country"), field("city", "$.place.city")),
                id_column="place_id",
            ),
        ),
        views=(
            EventView(
                Relation("analytics", "mv_pages"),
                "SELECT page, count(*) AS events FROM warehouse.fact_events GROUP BY page",
                ("page",),
            ),
            EventView(
                Relation("analytics", "mv_days"),
                "SELECT (occurred_at AT TIME ZONE 'UTC')::date AS day, sum(cost) AS cost\n"
                "FROM warehouse.fact_events GROUP BY 1 -- by day",
                ("day",),
            ),
        ),
    )
    return replace(model, **changes)


def small_events(model: EventModel | None = None, **settings: Any) -> ProjectEvents:
    """The events of a project with that model, on the connection `warehouse`."""
    values = EventSettings(connection="warehouse", **settings)
    return ProjectEvents(
        connection="warehouse",
        raw=Relation.parse(values.raw_table),
        model=model or small_model(),
        limits=EventLimits(
            values.max_event,
            values.max_age_seconds,
            values.max_ahead_seconds,
            values.keep_months,
        ),
        settings=values,
        ledger_schema="tidegate",
    )


TABLES = ("warehouse.fact_events", "warehouse.dim_users", "warehouse.dim_places")
NOVEMBER = datetime.fromisoformat("2026-11-10T12:00:00+00:00")


def visit(
    number: int, *, user: str | None = None, at: datetime | None = None, **more: Any
) -> dict[str, Any]:
    """One visit of a page, told apart by its number."""
    moment = at or NOVEMBER + timedelta(seconds=number)
    return {
        "at": moment.isoformat(),
        "page": f"page-{number % 7}",
        "cost": number % 100,
        "user": {"id": user or f"user-{number % 11}", "name": f"name {number}"},
        "place": {"country": "DE", "city": f"city-{number % 5}"},
        **more,
    }


@dataclass(frozen=True, slots=True)
class Queue:
    """The events of one project."""

    project: Project
    place: Place
    events: ProjectEvents

    @classmethod
    def make(cls, project: Project, place: Place, **settings: Any) -> Queue:
        queue = cls(project, place, small_events(**settings))
        with project.connect("warehouse") as connection:
            ensure_tables(connection, queue.events)
        queue.provision([NOVEMBER.date()])
        return queue

    @property
    def database(self) -> Database:
        return self.place.target

    def provision(self, months: Collection[date]) -> None:
        for month in months:
            self.database.execute(
                sql.SQL("SELECT warehouse.create_monthly_partition({})").format(sql.Literal(month))
            )

    def put(self, bodies: Iterable[dict[str, Any] | str]) -> list[UUID]:
        """Take events in, one after the other, all received in the month of their making."""
        ids: list[UUID] = []
        with (
            self.database.connect() as connection,
            connection.cursor().copy(
                f"COPY {self.events.raw} (id, body, received_at) FROM STDIN"
            ) as copy,
        ):
            for place, body in enumerate(bodies):
                ids.append(uuid.uuid4())
                text = body if isinstance(body, str) else json.dumps(body)
                copy.write_row((ids[-1], text, NOVEMBER + timedelta(microseconds=place)))
        return ids

    def process(
        self,
        *,
        attempt_id: str = "0" * 16,
        budget_seconds: float = 300.0,
        check_alive: Callable[[], None] = lambda: None,
        provision: Callable[[Collection[date]], None] | None = None,
        max_batches: int | None = None,
    ) -> Processed:
        return process(
            self.project.context,
            self.events,
            attempt_id=attempt_id,
            budget_seconds=budget_seconds,
            check_alive=check_alive,
            provision=provision or self.provision,
            max_batches=max_batches,
        )

    def statuses(self) -> dict[str, int]:
        return dict(
            self.database.execute(
                f"SELECT status, count(*)::int FROM {self.events.raw} GROUP BY 1 ORDER BY 1"
            )
        )

    def reasons(self) -> Rows:
        return self.database.execute(
            f"SELECT error FROM {self.events.raw} WHERE status = 'failed' ORDER BY received_at"
        )

    def contents(self) -> dict[str, Rows]:
        """Every table that events end in, without the transactions that wrote it."""
        return {
            name: self.database.execute(
                f"SELECT to_jsonb(t) - 'loaded_in' FROM {name} t ORDER BY 1"
            )
            for name in TABLES
        }

    def staging(self) -> int:
        """How many staging tables are left."""
        found: int = self.database.value(
            "SELECT count(*) FROM pg_class WHERE relname LIKE 'stg\\_%' AND relkind = 'r'"
        )
        return found
