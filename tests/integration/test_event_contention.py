"""Several instances at once, and lost sessions: no event is lost, doubled or held twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from integration.conftest import Database, MakePlace
from integration.event_models import small_events
from integration.event_queues import NOVEMBER, TABLES, Queue, visit
from tidegate.errors import ConnectionFailed, DestinationError, LoadError, StaleAttempt
from tidegate.pipeline import event_process
from tidegate.pipeline.event_claim import EventClaim
from tidegate.postgres.connect import Connection, connect

CLAIMS = "application_name = 'tidegate process' AND datname = current_database()"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
def queue(make_place: MakePlace) -> Queue:
    place = make_place()
    return Queue.make(place.open(), place)


class Stagings:
    """Counts how often a batch is staged, and may do something just before and after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        stage = event_process.stage_here

        def counted(*arguments: Any) -> Any:
            self.count += 1
            self.before()
            staged = stage(*arguments)
            self.after()
            return staged

        monkeypatch.setattr(event_process, "stage_here", counted)


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
    with database.connect() as connection:
        while not connection.execute(
            f"SELECT 1 FROM pg_stat_activity WHERE {CLAIMS} AND wait_event_type = 'Lock'"
        ).fetchone():
            pass


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


def undisturbed(make_place: MakePlace, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    place = make_place()
    queue = Queue.make(place.open(), place)
    queue.put(bodies)
    queue.process()
    return queue.contents()


# Where events repeat, instances wait for each other's facts, and so never meet in dimensions.
@pytest.mark.parametrize(("count", "copies"), [(400, 3), (1200, 1)])
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
        done = list(pool.map(work, enumerate(instances(queue, 4, 100))))
    assert sum(done) == len(bodies)
    assert sum(1 for one in done if one) > 1
    assert queue.statuses() == {"done": len(bodies)}
    assert queue.database.value("SELECT count(*) FROM settled") == len(bodies)
    assert queue.database.value(DEADLOCKS) == before
    assert queue.contents() == undisturbed(make_place, bodies)


def test_instances_whose_claims_are_ended_at_random_leave_nothing_behind(
    make_place: MakePlace, queue: Queue
) -> None:
    bodies = shuffled(2, 300)
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
        while not finished.wait(chance.uniform(0.02, 0.2)) and killed < 12:
            killed += end_claims(queue.database)
        return killed

    with ThreadPoolExecutor(3) as pool:
        killer = pool.submit(kill)
        list(pool.map(work, enumerate(instances(queue, 2, 25))))
        finished.set()
        assert killer.result() > 0
    assert queue.statuses() == {"done": len(bodies)}
    assert queue.contents() == undisturbed(make_place, bodies)
    assert queue.staging() == 0


def test_a_claim_that_is_lost_while_its_events_are_read_is_made_anew(
    queue: Queue, stagings: Stagings
) -> None:
    queue.put(visit(number) for number in range(10))

    def lose_once() -> None:
        if stagings.count == 1:
            assert end_claims(queue.database) == 1

    stagings.before = lose_once
    done = queue.process()
    assert (done.done, done.facts, stagings.count) == (10, 10, 2)
    assert queue.staging() == 0


def test_a_claim_that_is_lost_before_its_commit_has_written_nothing(
    queue: Queue, stagings: Stagings
) -> None:
    queue.put(visit(number) for number in range(10))
    calls = []

    def lose_once() -> None:
        calls.append(queue.database.value("SELECT count(*) FROM warehouse.fact_events"))
        if len(calls) == 2:
            assert end_claims(queue.database) == 1

    done = queue.process(check_alive=lose_once)
    assert (done.done, done.facts, done.batches, stagings.count) == (10, 10, 1, 2)
    assert calls[:3] == [0, 0, 0]


def test_a_claim_that_is_lost_again_and_again_ends_the_run_and_leaves_events_pending(
    queue: Queue, stagings: Stagings
) -> None:
    queue.put(visit(number) for number in range(10))
    stagings.before = lambda: assert_one(end_claims(queue.database))
    with pytest.raises(ConnectionFailed, match="processing events"):
        queue.process()
    assert queue.statuses() == {"pending": 10}


def assert_one(count: int) -> None:
    assert count == 1


@pytest.mark.parametrize("loss", ["DELETE FROM {} WHERE place = 3", "DROP TABLE {}"])
def test_staged_rows_that_are_lost_are_staged_again(
    queue: Queue, stagings: Stagings, loss: str
) -> None:
    queue.put(visit(number) for number in range(10))

    def lose_once() -> None:
        if stagings.count == 1:
            (table,) = queue.database.execute(
                "SELECT oid::regclass::text FROM pg_class WHERE relname LIKE 'stg\\_%'"
            )
            queue.database.execute(loss.format(*table))

    stagings.after = lose_once
    done = queue.process()
    assert (done.done, done.facts, done.batches, stagings.count) == (10, 10, 1, 2)


def test_an_attempt_that_was_replaced_commits_nothing(queue: Queue) -> None:
    queue.put([visit(1)])
    calls = []

    def replaced() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise StaleAttempt("replaced")

    with pytest.raises(StaleAttempt):
        queue.process(check_alive=replaced)
    assert queue.statuses() == {"pending": 1}
    assert queue.staging() == 0


def test_a_deadlock_is_tried_again_with_what_was_staged(queue: Queue, stagings: Stagings) -> None:
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
    # Once for each of the two runs.
    assert stagings.count == 2


def test_a_serialization_failure_is_tried_again_with_what_was_staged(
    queue: Queue, stagings: Stagings
) -> None:
    queue.put([visit(1)])
    queue.database.execute(
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('public.tries') < 4 THEN RAISE EXCEPTION 'later' USING ERRCODE = '40001';"
        " END IF; RETURN NULL; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON warehouse.dim_places"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
    )
    done = queue.process()
    assert (done.facts, stagings.count) == (1, 1)
    assert queue.database.value("SELECT last_value FROM tries") == 4


def test_what_refuses_every_event_ends_the_run_and_leaves_them_pending(queue: Queue) -> None:
    queue.put(visit(number) for number in range(60))
    queue.database.execute("ALTER TABLE warehouse.fact_events ADD owner text NOT NULL")
    with pytest.raises(LoadError, match="owner"):
        queue.process()
    assert queue.statuses() == {"pending": 60}
    assert queue.staging() == 0


def test_events_that_a_constraint_refuses_fail_alone(queue: Queue, stagings: Stagings) -> None:
    queue.database.execute(
        "ALTER TABLE warehouse.fact_events ADD CONSTRAINT cheap CHECK (cost < 50)",
        # Long keys fit into no index, however well the model reads them.
        "CREATE INDEX ON warehouse.fact_events (page)",
    )
    noise = random.Random(1).randbytes(20_000).hex()
    queue.put([*(visit(number) for number in range(300)), visit(7, page=noise)])
    queue.put([visit(400, at=NOVEMBER.replace(month=12))])
    done = queue.process()
    assert (done.done, done.failed, done.facts) == (151, 151, 151)
    reasons = {reason for (reason,) in queue.reasons()}
    assert any("cheap" in one for one in reasons)
    assert any("index row" in one for one in reasons)
    assert queue.database.value("SELECT count(*) FROM warehouse.fact_events") == 151
    # Once for the batch, once for the month that was missing.
    assert stagings.count == 2


def test_events_of_a_month_without_a_partition_wait_until_it_is_made(queue: Queue) -> None:
    queue.put([visit(1), visit(2, at=NOVEMBER.replace(month=12)), "no json"])
    asked = []

    def provision(months: Any) -> None:
        asked.append([str(month) for month in months])
        assert queue.statuses() == {"done": 1, "failed": 1, "pending": 1}
        queue.provision(months)

    done = queue.process(provision=provision)
    assert asked == [["2026-12-01"]]
    assert (done.done, done.failed, done.facts, done.left_pending) == (2, 1, 2, 0)
    assert queue.database.execute(
        "SELECT claimed, left_pending FROM tidegate.event_batches ORDER BY id"
    ) == [(3, 1), (1, 0)]


def test_a_month_that_cannot_be_made_ends_the_run_with_its_name(queue: Queue) -> None:
    queue.put([visit(2, at=NOVEMBER.replace(month=12))])
    with pytest.raises(DestinationError, match="2026-12"):
        queue.process(provision=lambda months: None)
    assert queue.statuses() == {"pending": 1}


def test_a_partition_that_goes_while_events_are_applied_makes_them_wait_for_it(
    queue: Queue, stagings: Stagings
) -> None:
    queue.put([visit(1)])
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
        row = (
            opened[-1]
            .execute(
                "INSERT INTO tidegate.event_batches"
                " (attempt_id, started_at, claimed, done, failed, facts, left_pending)"
                " VALUES ('a', now(), 1, 1, 0, 1, 0) RETURNING pg_current_xact_id()::text"
            )
            .fetchone()
        )
        assert row is not None
        return str(row[0])

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
