"""The second phase of events: claimed, read and made facts of, in one commit, by any number of
instances, whatever happens to their sessions: no event is lost, doubled or held twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from acceptance.processes import until
from integration.conftest import Database, MakePlace, MakeProject
from integration.event_queues import NOVEMBER, TABLES, Queue, small_events, visit
from tidegate.core.errors import ConnectionFailed, DestinationError, LoadError, StaleAttempt
from tidegate.events import process
from tidegate.events.apply import EventStatements
from tidegate.events.process import EventClaim
from tidegate.events.staging import EventReading, split, stage_here
from tidegate.postgres.connection import Connection, connect
from tidegate.postgres.queries import qualified, statement
from tidegate.spark.binary_copy import StagingPlace

CLAIMS = "application_name = 'tidegate process' AND datname = current_database()"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
CHANGES = "SELECT changes FROM tidegate.event_changes"
FACTS = "SELECT count(*) FROM warehouse.fact_events"
DECEMBER = NOVEMBER.replace(month=12)
BODIES: list[dict[str, Any] | str] = [
    # Enough for two tasks.
    *(visit(number) for number in range(2_000)),
    *(visit(number) for number in range(0, 2_000, 7)),
    *("no json" for _ in range(20)),
    *(visit(number, at=DECEMBER) for number in range(50)),
    "x" * (256 * 1024 + 1),
    *(visit(number, note="y" * 250_000) for number in range(3_000, 3_020)),
]


@pytest.fixture
def queue(make_place: MakePlace) -> Queue:
    """A queue that is worked without Spark."""
    place = make_place()
    return Queue.make(place.open(), place)


class Stagings:
    """Counts how often a batch is staged, and may do something just before and after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        stage = process.stage_here

        def counted(*arguments: Any) -> Any:
            self.count += 1
            self.before()
            staged = stage(*arguments)
            self.after()
            return staged

        monkeypatch.setattr(process, "stage_here", counted)


@pytest.fixture
def stagings(monkeypatch: pytest.MonkeyPatch) -> Stagings:
    return Stagings(monkeypatch)


def end_claims(database: Database) -> int:
    """End the sessions that hold events; returns how many there were."""
    return len(
        database.execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {CLAIMS}"
        )
    )


def wait_until_blocked(database: Database) -> None:
    """Wait until a claim's session waits for a lock of another."""
    waiting = f"SELECT FROM pg_stat_activity WHERE {CLAIMS} AND wait_event_type = 'Lock'"
    with database.connect() as connection:
        until(lambda: connection.execute(waiting).fetchone() is not None, "a claim that waits")


@contextmanager
def running(work: Callable[[], Any]) -> Iterator[Any]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def instances(queue: Queue, count: int, size: int) -> list[Queue]:
    """Processes would do the same: each has sessions and an attempt of its own."""
    return [
        Queue(queue.place.open(), queue.place, small_events(batch_size=size)) for _ in range(count)
    ]


def shuffled(seed: int, count: int, copies: int = 3) -> list[dict[str, Any]]:
    """Each visit several times, all with the same few users and places, in any order."""
    bodies = [visit(number) for number in range(count) for _ in range(copies)]
    random.Random(seed).shuffle(bodies)
    return bodies


def undisturbed(make_place: MakePlace, bodies: list[Any], **settings: Any) -> dict[str, Any]:
    place = make_place()
    queue = Queue.make(place.open(), place, **settings)
    queue.put(bodies)
    queue.process()
    return queue.contents()


def test_events_become_facts_and_dimensions_each_once(queue: Queue) -> None:
    done = queue.process()
    assert (done.claimed, done.batches, done.left_pending) == (0, 0, 0), "nothing to do"
    assert queue.database.value(CHANGES) == 0
    assert queue.database.value("SELECT count(*) FROM tidegate.event_batches") == 0

    queue.put(visit(number) for number in range(50))
    assert queue.process(budget_seconds=0).left_pending == 50, "the budget is spent"
    done = queue.process()
    assert (done.claimed, done.done, done.failed, done.facts) == (50, 50, 0, 50)
    assert (done.batches, done.left_pending, done.duplicates) == (1, 0, 0)
    assert queue.statuses() == {"done": 50}
    assert queue.database.value(FACTS) == 50
    assert queue.database.execute(
        "SELECT user_name, first_seen_at, last_seen_at FROM warehouse.dim_users"
        " WHERE user_id = 'user-3'"
    ) == [("name 47", NOVEMBER + timedelta(seconds=3), NOVEMBER + timedelta(seconds=47))]
    places = queue.database.execute(
        "SELECT f.page, p.country, p.city FROM warehouse.fact_events f"
        " JOIN warehouse.dim_places p USING (place_id) ORDER BY f.occurred_at"
    )
    assert places == [(f"page-{n % 7}", "DE", f"city-{n % 5}") for n in range(50)]
    assert queue.database.value(CHANGES) == 1
    assert queue.database.execute(
        "SELECT claimed, done, failed, facts, left_pending FROM tidegate.event_batches"
    ) == [(50, 50, 0, 50, 0)]

    # The same event makes one fact, within a batch and between batches.
    queue.put([visit(101, cost=1), visit(101, cost=2), visit(102)])
    assert queue.process().facts == 2
    cost = f"SELECT cost FROM warehouse.fact_events WHERE occurred_at = '{visit(101)['at']}'"
    assert queue.database.value(cost) == 1, "the event that was received first makes the fact"
    before = queue.contents()
    queue.put([visit(101, cost=3), visit(102)])
    done = queue.process()
    assert (done.done, done.facts, done.duplicates) == (2, 0, 2)
    assert queue.contents() == before
    assert queue.database.value(CHANGES) == 2, "no view needs to be refreshed"
    assert queue.staging() == 0
    assert not queue.project.context.spark.started


def test_any_order_and_size_of_batches_gives_the_same_tables(make_place: MakePlace) -> None:
    bodies: list[Any] = [visit(number) for number in range(60)]
    bodies += [visit(number, user="user-0", place=None) for number in range(100, 120)]
    # Of several at one moment the hash decides whose name is taken.
    bodies += [visit(number, user="one", at=NOVEMBER) for number in range(7)]
    bodies += [visit(number, user="one", at=NOVEMBER, page=f"p{number}") for number in range(30)]
    place = make_place()
    queue = Queue.make(place.open(), place, batch_size=50)
    queue.put(bodies[30:] + bodies[:30])
    assert queue.process(max_batches=2).left_pending == 17
    assert queue.process().batches == 1
    batches = queue.database.execute("SELECT claimed FROM tidegate.event_batches ORDER BY id")
    assert batches == [(50,), (50,), (17,)]
    assert queue.contents() == undisturbed(make_place, bodies[::-1], batch_size=13)


def test_a_claim_reads_its_events_in_order_from_the_index_of_pending_ones(queue: Queue) -> None:
    queue.database.execute(
        "INSERT INTO raw_events (id, body, status) SELECT gen_random_uuid(), '{}',"
        " CASE WHEN g % 100 = 0 THEN 'pending' ELSE 'done' END FROM generate_series(1, 20000) g",
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


def test_spark_and_this_process_make_the_same_of_events(
    make_project: MakeProject, make_place: MakePlace, stagings: Stagings
) -> None:
    random.Random(5).shuffle(BODIES)
    project, place = make_project()
    with_spark = Queue.make(project, place, spark_from=1_000)
    with_spark.put(BODIES)
    done = with_spark.process()
    assert project.context.spark.started
    assert stagings.count == 0, "nothing was read in this process"
    assert (done.done, done.failed, done.left_pending) == (len(BODIES) - 21, 21, 0)
    assert with_spark.staging() == 0
    # The first batch was read by several tasks, and came back whole.
    assert with_spark.database.execute(
        "SELECT claimed, left_pending FROM tidegate.event_batches ORDER BY id"
    ) == [(len(BODIES), 50), (50, 0)]

    other = make_place()
    without = Queue.make(other.open(), other, spark_from=1_000_000)
    without.put(BODIES)
    assert without.process().facts == done.facts
    assert not without.project.context.spark.started
    assert without.contents() == with_spark.contents()
    assert without.reasons() == with_spark.reasons()


# Where events repeat, instances wait for each other's facts, and so never meet in dimensions.
@pytest.mark.parametrize(
    ("count", "copies"), [(150, 3), pytest.param(1200, 1, marks=pytest.mark.chaos)]
)
def test_instances_never_deadlock_and_never_hold_an_event_twice(
    make_place: MakePlace, queue: Queue, count: int, copies: int
) -> None:
    bodies = shuffled(1, count, copies)
    queue.put(bodies)
    queue.database.execute(
        # An event that two commits settle would be here twice.
        "CREATE TABLE settled (id uuid PRIMARY KEY)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.settled VALUES (NEW.id); RETURN NEW; END $$",
        "CREATE TRIGGER note AFTER UPDATE ON raw_events FOR EACH ROW EXECUTE FUNCTION note()",
        # Each row takes its time, so that instances meet in the middle of their statements.
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_sleep(0.001); RETURN NEW; END $$",
        *(
            f"CREATE TRIGGER linger BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION linger()"
            for table in TABLES
        ),
    )
    before = queue.database.value(DEADLOCKS)
    start = threading.Barrier(4)

    def work(one: tuple[int, Queue]) -> int:
        start.wait()
        return one[1].process(attempt_id=f"{one[0]:016x}").done

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(work, enumerate(instances(queue, 4, len(bodies) // 12))))
    assert sum(done) == len(bodies)
    assert sum(1 for one in done if one) > 1
    assert queue.statuses() == {"done": len(bodies)}
    assert queue.database.value("SELECT count(*) FROM settled") == len(bodies)
    assert queue.database.value(DEADLOCKS) == before
    assert queue.contents() == undisturbed(make_place, bodies)


def test_instances_whose_claims_are_ended_at_random_leave_nothing_behind(
    make_place: MakePlace, queue: Queue
) -> None:
    bodies = shuffled(2, 100)
    queue.put(bodies)
    finished = threading.Event()

    def work(one: tuple[int, Queue]) -> None:
        while True:
            try:
                if one[1].process(attempt_id=f"{one[0]:016x}").left_pending == 0:
                    return
            except ConnectionFailed:
                continue

    def kill() -> int:
        killed, chance = 0, random.Random(3)
        while not finished.wait(chance.uniform(0.02, 0.1)) and killed < 6:
            killed += end_claims(queue.database)
        return killed

    with ThreadPoolExecutor(3) as pool:
        killer = pool.submit(kill)
        list(pool.map(work, enumerate(instances(queue, 2, 15))))
        finished.set()
        assert killer.result() > 0
    assert queue.statuses() == {"done": len(bodies)}
    assert queue.contents() == undisturbed(make_place, bodies)
    assert queue.staging() == 0


def test_a_claim_or_staged_rows_that_are_lost_are_made_anew(
    queue: Queue, stagings: Stagings
) -> None:
    def put() -> None:
        stagings.count = 0
        first = queue.database.value("SELECT count(*) FROM raw_events")
        queue.put(visit(number) for number in range(first, first + 10))

    def once(do: Callable[[], object]) -> Callable[[], object]:
        return lambda: do() if stagings.count == 1 else None

    def lose_claim() -> None:
        assert end_claims(queue.database) == 1

    def lose_rows(how: str) -> None:
        (table,) = queue.database.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE relname LIKE 'stg\\_%'"
        )
        queue.database.execute(how.format(*table))

    nothing: Callable[[], object] = lambda: None  # noqa: E731
    for before, after in (
        (lose_claim, nothing),
        (nothing, lambda: lose_rows("DELETE FROM {} WHERE place = 3")),
        (nothing, lambda: lose_rows("DROP TABLE {}")),
    ):
        put()
        stagings.before, stagings.after = once(before), once(after)
        done = queue.process()
        assert (done.done, done.facts, done.batches, stagings.count) == (10, 10, 1, 2)
    stagings.before = stagings.after = nothing

    # A claim that is lost before its commit has written nothing.
    put()
    calls = []

    def lose_late() -> None:
        calls.append(queue.database.value(FACTS))
        if len(calls) == 2:
            lose_claim()

    done = queue.process(check_alive=lose_late)
    assert (done.done, done.facts, done.batches, stagings.count) == (10, 10, 1, 2)
    assert calls[:3] == [30, 30, 30]

    # One that is lost again and again ends the run, and leaves the events pending.
    put()
    stagings.before = lose_claim
    with pytest.raises(ConnectionFailed, match="processing events"):
        queue.process()
    assert queue.statuses() == {"done": 40, "pending": 10}
    stagings.before = nothing

    # An attempt that was replaced commits nothing.
    calls.clear()

    def replaced() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise StaleAttempt("replaced")

    with pytest.raises(StaleAttempt):
        queue.process(check_alive=replaced)
    assert queue.statuses() == {"done": 40, "pending": 10}
    assert queue.process().done == 10
    assert queue.staging() == 0


def test_deadlocks_and_serialization_failures_are_tried_again_with_what_was_staged(
    queue: Queue, stagings: Stagings
) -> None:
    queue.put([visit(1)])
    queue.process()
    queue.put([visit(1 + 7 * 11 * 5)])
    with queue.database.connect() as other, running(queue.process) as run:
        # Only the claim's session looks for circles, so it is the one to give way.
        other.execute("SET deadlock_timeout = '1min'")
        other.execute("BEGIN")
        other.execute("UPDATE warehouse.dim_places SET last_seen_at = last_seen_at")
        wait_until_blocked(queue.database)
        other.execute("UPDATE warehouse.dim_users SET last_seen_at = last_seen_at")
        other.execute("COMMIT")
        done = run.result()
    assert (done.done, done.facts, done.batches) == (1, 1, 1)
    assert stagings.count == 2, "once for each of the two runs"

    queue.put([visit(2)])
    queue.database.execute(
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('public.tries') < 4 THEN RAISE EXCEPTION 'later' USING ERRCODE = '40001';"
        " END IF; RETURN NULL; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON warehouse.dim_places"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
    )
    assert queue.process().facts == 1
    assert stagings.count == 3
    assert queue.database.value("SELECT last_value FROM tries") == 4


def test_events_that_a_constraint_refuses_fail_alone_and_what_refuses_all_ends_the_run(
    queue: Queue, stagings: Stagings
) -> None:
    queue.database.execute(
        "ALTER TABLE warehouse.fact_events ADD CONSTRAINT cheap CHECK (cost < 50)",
        # Long keys fit into no index, however well the model reads them.
        "CREATE INDEX ON warehouse.fact_events (page)",
    )
    noise = random.Random(1).randbytes(20_000).hex()
    queue.put([*(visit(number) for number in range(100)), visit(7, page=noise)])
    queue.put([visit(400, at=DECEMBER)])
    done = queue.process()
    assert (done.done, done.failed, done.facts) == (51, 51, 51)
    reasons = {reason for (reason,) in queue.reasons()}
    assert any("cheap" in one for one in reasons)
    assert any("index row" in one for one in reasons)
    assert queue.database.value(FACTS) == 51
    assert stagings.count == 2, "once for the batch, once for the month that was missing"

    queue.put(visit(number) for number in range(1000, 1060))
    queue.database.execute(
        "TRUNCATE warehouse.fact_events",
        "ALTER TABLE warehouse.fact_events ADD owner text NOT NULL",
    )
    with pytest.raises(LoadError, match="owner"):
        queue.process()
    assert queue.statuses()["pending"] == 60
    assert queue.staging() == 0


def test_events_of_a_month_without_a_partition_wait_until_it_is_made(
    queue: Queue, stagings: Stagings
) -> None:
    queue.put([visit(1), visit(2, at=DECEMBER), "no json"])
    asked = []

    def provision(months: Any) -> None:
        asked.append([str(month) for month in months])
        assert queue.statuses() == {"done": 1, "failed": 1, "pending": 1}
        queue.provision(months)

    with pytest.raises(DestinationError, match="2026-12"):
        queue.process(provision=lambda months: None)
    done = queue.process(provision=provision)
    assert asked == [["2026-12-01"]]
    assert (done.done, done.failed, done.facts, done.left_pending) == (1, 0, 1, 0)

    # A partition that goes while events are applied makes them wait for it.
    stagings.count = 0
    queue.put([visit(3)])
    queue.database.execute(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$",
        "CREATE TRIGGER pause BEFORE UPDATE ON raw_events"
        " FOR EACH STATEMENT EXECUTE FUNCTION pause()",
    )
    with queue.database.connect() as other, running(queue.process) as run:
        other.execute("SELECT pg_advisory_lock(7)")
        wait_until_blocked(queue.database)
        other.execute(
            "ALTER TABLE warehouse.fact_events DETACH PARTITION warehouse.fact_events_2026_11"
        )
        other.execute("SELECT pg_advisory_unlock(7)")
        done = run.result()
    assert (done.done, done.facts) == (1, 1)
    # Applied again without the month, then claimed again with it.
    assert (done.batches, stagings.count) == (2, 2)


def test_a_commit_whose_answer_was_lost_is_looked_up(queue: Queue) -> None:
    queue.put([visit(1)])
    opened: list[Connection] = []

    def open_session() -> Connection:
        opened.append(connect(queue.database.conninfo, name="test"))
        return opened[-1]

    claim = EventClaim(
        queue.events, open_session, lock_timeout_seconds=5.0, statement_timeout_seconds=60.0
    )

    def write() -> str:
        written = opened[-1].execute(
            "INSERT INTO tidegate.event_batches"
            " (attempt_id, started_at, claimed, done, failed, facts, left_pending)"
            " VALUES ('a', now(), 1, 1, 0, 1, 0) RETURNING pg_current_xact_id()::text"
        )
        (found,) = written.fetchall()
        return str(found[0])

    assert len(claim.take(10)) == 1
    committed = write()
    opened[-1].execute("COMMIT")
    opened[-1].close()
    claim.commit(committed)

    assert len(claim.take(10)) == 1
    aborted = write()
    opened[-1].close()
    with pytest.raises(psycopg.OperationalError):
        claim.commit(aborted)
    assert queue.database.value("SELECT count(*) FROM tidegate.event_batches") == 1
