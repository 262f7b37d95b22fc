"""The events of a project: where they are kept, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from tidegate.config.service_sections import EventSettings
from tidegate.core.errors import UsageError
from tidegate.core.relation import Relation
from tidegate.events.model import EventModel
from tidegate.events.model_file import read_event_model
from tidegate.events.reader import EventLimits
from tidegate.load.context import Context


@dataclass(frozen=True, slots=True)
class ProjectEvents:
    """What a project has declared about its events."""

    connection: str
    raw: Relation
    model: EventModel
    limits: EventLimits
    settings: EventSettings
    ledger_schema: str

    @property
    def refresh_log(self) -> Relation | None:
        """Where the refreshes of views are noted; None in a model without views."""
        views = self.model.views
        return Relation(views[0].name.schema, "mv_refresh_log") if views else None

    def first_kept(self, now: datetime) -> date | None:
        """The first month that is kept, the one of `now` being the last; None when all are."""
        if not self.settings.keep_months:
            return None
        at = now.astimezone(UTC)
        number = at.year * 12 + at.month - self.settings.keep_months
        return date(number // 12, number % 12 + 1, 1)


def has_events(context: Context) -> bool:
    """Whether the project declares events."""
    return context.settings.events.connection is not None


def find_raw(context: Context) -> tuple[str, Relation]:
    """The connection and the table in which events are kept; the model is not looked at."""
    settings = context.settings.events
    if settings.connection is None:
        raise UsageError(
            "this project has no events: tidegate.toml sets no events.connection",
            "start one with: tidegate init --template events",
        )
    context.settings.connection(settings.connection)
    if context.is_lake(settings.connection):
        raise UsageError(
            f"events.connection is {settings.connection}, which is a lake",
            "events are kept in Postgres; their facts can go to a lake by a sync",
        )
    return settings.connection, Relation.parse(settings.raw_table)


def find_events(context: Context) -> ProjectEvents:
    """The events of the project; UsageError when it has none."""
    connection, raw = find_raw(context)
    settings = context.settings.events
    return ProjectEvents(
        connection=connection,
        raw=raw,
        model=read_event_model(context.settings.root / Path(settings.model).expanduser()),
        limits=EventLimits(
            max_bytes=settings.max_event,
            max_age_seconds=settings.max_age_seconds,
            max_ahead_seconds=settings.max_ahead_seconds,
            keep_months=settings.keep_months,
        ),
        settings=settings,
        ledger_schema=context.settings.ledger.schema_name,
    )
