"""A project that takes events in."""

from __future__ import annotations

from typing import Any

from integration.conftest import MakePlace, Place
from tidegate.model.relation import Relation

MAKE_RAW = """CREATE TABLE {raw} (
    id uuid PRIMARY KEY,
    body text NOT NULL,
    payload jsonb,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'done', 'failed')),
    processed_at timestamptz,
    error text
)"""


def event_place(
    make_place: MakePlace,
    *,
    raw_table: str = "public.raw_events",
    made: bool = True,
    **sections: Any,
) -> Place:
    """Its events come into the warehouse."""
    events = {"connection": "warehouse", "raw_table": raw_table}
    place = make_place(events=events, **sections)
    if not made:
        return place
    raw = Relation.parse(raw_table)
    if raw.schema != "public":
        place.target.execute(f'CREATE SCHEMA "{raw.schema}"')
    place.target.execute(MAKE_RAW.format(raw=raw))
    return place
