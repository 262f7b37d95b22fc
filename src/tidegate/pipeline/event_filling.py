"""Putting made-up events into the table of raw ones."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from tidegate.pipeline.context import Context
from tidegate.pipeline.event_generation import EventGenerator, Generation, Totals
from tidegate.pipeline.event_intake import copy_in
from tidegate.pipeline.event_tables import ensure_tables
from tidegate.pipeline.events import find_events
from tidegate.postgres.connect import translate
from tidegate.postgres.databases import label


@dataclass(frozen=True, slots=True)
class Filled:
    """What was made up, and how much of it was not there before."""

    connection: str
    table: str
    added: int
    totals: Totals


def generate_events(context: Context, plan: Generation) -> Filled:
    """Make the tables if need be, and add events; given again, the same ones are not added."""
    events = find_events(context)
    generator = EventGenerator(events.model, plan)
    try:
        with context.databases.lease(events.connection) as connection:
            ensure_tables(connection, events)
            bodies = ((event_id, body, None) for event_id, body in generator.events())
            added = copy_in(connection, events.raw, bodies)
    except psycopg.Error as error:
        raise translate(error, f"writing events to {label(events.connection)}") from error
    return Filled(events.connection, str(events.raw), added, generator.totals)
