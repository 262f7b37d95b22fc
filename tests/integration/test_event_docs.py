"""The model that docs/events.md shows is one, and does what the page says of it."""

from __future__ import annotations

import json
from uuid import uuid4

from integration import event_page
from integration.conftest import MakePlace
from integration.raw_events import run_phases
from tidegate.pipeline.event_intake import take_in
from tidegate.pipeline.event_tables import ensure_tables
from tidegate.pipeline.events import find_events

DAILY = (
    "SELECT (occurred_at AT TIME ZONE 'UTC')::date AS day, count(*) AS events,"
    " sum(amount) AS amount FROM warehouse.fact_events GROUP BY 1"
)


def test_the_pages_model_turns_events_into_facts(make_place: MakePlace) -> None:
    place = make_place(events={"connection": "warehouse"})
    (place.folder / "events.toml").write_text(event_page.model(), encoding="utf-8")
    (place.folder / "views").mkdir()
    (place.folder / "views" / "mv_daily.sql").write_text(DAILY, encoding="utf-8")
    event = {"type": "sold", "occurred_at": "2026-03-02T09:30:00Z", "payment": {"amount": "2.50"}}
    users = [{"id": "u", "email": "old@example.org"}, {"id": "u", "email": "new@example.org"}]
    bodies = [
        json.dumps(event | {"user": users[0]}),
        json.dumps(event | {"user": users[0], "payment": {"amount": 9}}),
        json.dumps(event | {"user": users[1], "occurred_at": "2026-03-02T23:59:59Z"}),
    ]
    with place.open() as project:
        events = find_events(project.context)
        with project.context.databases.lease("warehouse") as connection:
            ensure_tables(connection, events)
            for body in bodies:
                take_in(connection, events.raw, [(uuid4(), body)])
        processed, refreshed = run_phases(project)
    assert (processed.done, processed.facts, processed.failed) == (3, 2, 0)
    assert [one.outcome for one in refreshed] == ["refreshed"]
    # Two events that agree in what is hashed are one fact: the one that came first.
    assert place.target.execute(
        "SELECT day::text, events, amount::text FROM analytics.mv_daily"
    ) == [("2026-03-02", 2, "5.00")]
    assert place.target.execute("SELECT user_id, email FROM warehouse.dim_users") == [
        ("u", "new@example.org")
    ]
