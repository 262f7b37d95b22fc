"""The second phase of events: claimed, read, and made facts of, in one commit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from psycopg import sql

from integration.conftest import MakePlace
from integration.event_queues import NOVEMBER, Queue, visit
from tidegate.destinations.event_statements import EventStatements
from tidegate.postgres.identifiers import qualified, statement
from tidegate.spark.copying import StagingPlace
from tidegate.spark.event_reading import EventReading, split, stage_here


@pytest.fixture
def queue(make_place: MakePlace) -> Queue:
    """A queue that is worked without Spark."""
    place = make_place()
    return Queue.make(place.open(), place)


def test_events_become_facts_and_dimensions(queue: Queue) -> None:
    queue.put(visit(number) for number in range(50))
    done = queue.process()
    assert (done.claimed, done.done, done.failed, done.facts) == (50, 50, 0, 50)
    assert (done.batches, done.left_pending, done.duplicates) == (1, 0, 0)
    assert queue.statuses() == {"done": 50}
    assert queue.database.value("SELECT count(*) FROM warehouse.fact_events") == 50
    assert queue.database.execute(
        "SELECT user_name, first_seen_at, last_seen_at FROM warehouse.dim_users"
        " WHERE user_id = 'user-3'"
    ) == [("name 47", NOVEMBER + timedelta(seconds=3), NOVEMBER + timedelta(seconds=47))]
    places = queue.database.execute(
        "SELECT f.page, p.country, p.city FROM warehouse.fact_events f"
        " JOIN warehouse.dim_places p USING (place_id) ORDER BY f.occurred_at"
    )
    assert places == [(f"page-{n % 7}", "DE", f"city-{n % 5}") for n in range(50)]
    assert queue.database.value("SELECT changes FROM tidegate.event_changes") == 1
    assert queue.database.execute(
        "SELECT claimed, done, failed, facts, left_pending FROM tidegate.event_batches"
    ) == [(50, 50, 0, 50, 0)]
    assert queue.staging() == 0
    assert not queue.project.context.spark.started


def test_nothing_to_do_changes_nothing_and_starts_nothing(queue: Queue) -> None:
    done = queue.process()
    assert (done.claimed, done.batches, done.left_pending) == (0, 0, 0)
    assert queue.database.value("SELECT changes FROM tidegate.event_changes") == 0
    assert queue.database.value("SELECT count(*) FROM tidegate.event_batches") == 0
    assert not queue.project.context.spark.started


def test_the_same_event_makes_one_fact_within_a_batch_and_between_batches(queue: Queue) -> None:
    queue.put([visit(1, cost=1), visit(1, cost=2), visit(2)])
    assert queue.process().facts == 2
    # Of one hash the event that was received first makes the fact.
    assert queue.database.value("SELECT cost FROM warehouse.fact_events WHERE page='page-1'") == 1
    before = queue.contents()
    queue.put([visit(1, cost=3), visit(2)])
    done = queue.process()
    assert (done.done, done.facts, done.duplicates) == (2, 0, 2)
    assert queue.contents() == before
    # Nothing changed, so no view needs to be refreshed.
    assert queue.database.value("SELECT changes FROM tidegate.event_changes") == 1


def test_a_malformed_event_fails_with_its_reason_and_blocks_nobody(queue: Queue) -> None:
    queue.put(
        [
            "not json",
            visit(1),
            {"page": "home"},
            visit(2, at=NOVEMBER.replace(year=1990)),
            visit(3, page="\0"),
            visit(4, cost="1" * 200),
            "x" * (256 * 1024 + 1),
            visit(5, other="\0"),
        ]
    )
    done = queue.process()
    assert (done.done, done.failed, done.facts) == (2, 6, 2)
    reasons = [row[0] for row in queue.reasons()]
    assert len(reasons) == 6
    assert reasons[0].startswith("not JSON")
    assert "missing" in reasons[1]
    assert "older" in reasons[2]
    assert "NUL" in reasons[3]
    assert reasons[5] == "larger than 262144 bytes"
    # jsonb cannot hold what the last one says where nobody looks.
    assert queue.database.execute(
        "SELECT payload IS NULL FROM raw_events WHERE status = 'done' ORDER BY received_at"
    ) == [(False,), (True,)]


def test_batches_are_committed_one_by_one_until_the_queue_is_empty(make_place: MakePlace) -> None:
    place = make_place()
    queue = Queue.make(place.open(), place, batch_size=20)
    queue.put(visit(number) for number in range(50))
    assert queue.process(max_batches=2).left_pending == 10
    assert queue.process().batches == 1
    assert queue.database.execute("SELECT claimed FROM tidegate.event_batches ORDER BY id") == [
        (20,),
        (20,),
        (10,),
    ]


def test_a_spent_budget_ends_the_run_before_another_claim(queue: Queue) -> None:
    queue.put([visit(1)])
    assert queue.process(budget_seconds=0).left_pending == 1
    assert queue.statuses() == {"pending": 1}


def test_any_order_of_batches_gives_the_same_tables(make_place: MakePlace) -> None:
    bodies: list[Any] = [visit(number) for number in range(60)]
    bodies += [visit(number, user="user-0", place=None) for number in range(100, 120)]
    # Of several at one moment the hash decides whose name is taken.
    bodies += [visit(number, user="one", at=NOVEMBER) for number in range(7)]
    bodies += [visit(number, user="one", at=NOVEMBER, page=f"p{number}") for number in range(30)]
    contents = []
    for order, size in ((bodies, 1000), (bodies[::-1], 7), (bodies[30:] + bodies[:30], 13)):
        place = make_place()
        queue = Queue.make(place.open(), place, batch_size=size)
        queue.put(order)
        queue.process()
        contents.append(queue.contents())
    assert contents[0] == contents[1] == contents[2]


def test_a_claim_reads_its_events_in_order_from_the_index_of_pending_ones(queue: Queue) -> None:
    queue.database.execute(
        "INSERT INTO raw_events (id, body, status) SELECT gen_random_uuid(), '{}',"
        " CASE WHEN g % 100 = 0 THEN 'pending' ELSE 'done' END FROM generate_series(1, 50000) g",
        "ANALYZE raw_events",
    )
    claim = statement("events/processing", "claim_events", raw=qualified(queue.events.raw))
    with queue.database.connect() as connection:
        rows = connection.execute(sql.SQL("EXPLAIN ") + claim, {"size": 100}).fetchall()
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using raw_events_pending" in plan
    assert "Sort" not in plan


def test_what_a_column_does_not_take_fails_alone(queue: Queue) -> None:
    """The model and its columns agree; should they ever not, one event pays for it."""
    ids = queue.put(visit(number) for number in range(100))
    context, events = queue.project.context, queue.events
    columns = dict(EventStatements(events.model).staged_columns) | {"v2": "numeric(2,1)"}
    place = StagingPlace(
        conninfo=context.databases.portable_conninfo(events.connection),
        schema=events.ledger_schema,
        control_id=context.control_id(),
        attempt_id="f" * 16,
        columns=tuple(columns.items()),
    )
    reading = EventReading(place.conninfo, events.raw, events.model, events.limits, None)
    (write,) = stage_here(reading, place, split(ids, 1))
    assert write.rows == 100
    table = place.table(write.write_id).as_string(None)
    assert queue.database.execute(
        f"SELECT error, count(*), min(place), max(place), count(event_hash) FROM {table}"
        " GROUP BY 1 ORDER BY 2"
    ) == [
        (None, 10, 0, 9, 10),
        ("Postgres does not take it: numeric field overflow", 90, 10, 99, 0),
    ]
