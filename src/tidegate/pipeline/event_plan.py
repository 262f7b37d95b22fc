"""What `plan` says of events: the model, what is missing, and what waits; nothing is written."""

from __future__ import annotations

from dataclasses import replace

import psycopg
from psycopg import sql

from tidegate.errors import TidegateError
from tidegate.model.plan import EventPlan, ProjectPlan, Refusal
from tidegate.pipeline.context import Context
from tidegate.pipeline.event_provision import months_to_make
from tidegate.pipeline.event_tables import missing_tables
from tidegate.pipeline.events import Events, find_events
from tidegate.postgres.connect import Connection, begin_read_only, first_line, translate
from tidegate.postgres.identifiers import OwnSQL, qualified, statement

EVENTS = "events"


def plan_events(context: Context, plan: ProjectPlan) -> ProjectPlan:
    """The plan of the syncs with that of the events, or with why they are refused."""
    try:
        events = find_events(context)
        try:
            with context.databases.connect(events.connection) as connection:
                begin_read_only(connection)
                return replace(plan, events=_plan(connection, events))
        except psycopg.Error as error:
            raise translate(error, "planning the events") from error
    except TidegateError as error:
        refusal = Refusal(EVENTS, type(error).__name__, error.message, error.hint, error.exit_code)
        return replace(plan, refusals=(*plan.refusals, refusal))


def _plan(connection: Connection, events: Events) -> EventPlan:
    model = events.model
    missing = missing_tables(connection, events)
    return EventPlan(
        raw=f"{events.connection}:{events.raw}",
        facts=str(model.facts),
        partition_column=model.partition_column,
        hashed=model.hashed,
        dimensions=tuple(str(one.table) for one in model.dimensions),
        views=tuple(str(one.name) for one in model.views),
        missing=tuple(missing),
        months=()
        if missing
        else tuple(f"{one:%Y-%m}" for one in months_to_make(connection, events)),
        waiting=0 if str(events.raw) in missing else _waiting(connection, events),
        schedule=events.settings.schedule,
        warnings=() if missing else tuple(_wrong_views(connection, events)),
    )


def _waiting(connection: Connection, events: Events) -> int:
    row = connection.execute(
        statement("events/status", "read_backlog", raw=qualified(events.raw)),
        {"most": 1_000_000},
    ).fetchone()
    return int(row[0]) if row else 0


def _wrong_views(connection: Connection, events: Events) -> list[str]:
    """Views whose query Postgres would not take; only it knows."""
    found = []
    for view in events.model.views:
        try:
            with connection.transaction():
                connection.execute(
                    sql.SQL("EXPLAIN SELECT {} FROM (\n{}\n) AS v").format(
                        sql.SQL(", ").join(map(sql.Identifier, view.unique)), OwnSQL(view.query)
                    )
                )
        except psycopg.Error as error:
            found.append(f"view {view.name}: {first_line(error)}")
    return found
