"""A small model of events, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidegate.config.service_sections import EventSettings
from tidegate.core.relation import Relation
from tidegate.events.model import Dimension, EventField, EventModel, EventView, FieldType, JsonPath
from tidegate.events.project_events import ProjectEvents
from tidegate.events.reader import EventLimits

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
