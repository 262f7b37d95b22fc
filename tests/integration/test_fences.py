"""Fences: a newer attempt shuts out the older, whatever the older is doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import psycopg
import pytest

from acceptance.processes import until
from integration.conftest import Database, MakePlace
from tidegate.core.errors import BusyError, ControlMismatch, FenceLost
from tidegate.core.relation import Endpoint
from tidegate.jobs.attempt import raise_fence
from tidegate.jobs.control_database import Tokens
from tidegate.jobs.job import Claim, JobRequest
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import reclaim_lost
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.ledger.fences import Fence, Fences, FenceTooLow, publisher_name
from tidegate.ledger.ledger import Ledger
from tidegate.load.context import Context
from tidegate.load.targets.postgres.target import PostgresTarget
from tidegate.postgres.connection import Connection, connect

CONTROL = uuid4()


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt that has its job and not yet its table."""

    context: Context
    destination: PostgresTarget
    control: Connection
    claim: Claim

    def raise_own(self) -> Fence:
        plane, control_id = self.context.plane, self.context.control_id()
        return raise_fence(self.destination, Tokens(plane), self.control, self.claim, control_id)

    def raise_other(self, attempt: str) -> None:
        self.destination.raise_fence(Fence("raw.orders", self.context.control_id(), 5000, attempt))

    def current(self) -> Fence | None:
        with self.destination.open() as session:
            return self.destination.fences.current(session, "raw.orders")


def fence(token: int, attempt: str | None = None) -> Fence:
    return Fence("raw.orders", CONTROL, token, attempt or f"attempt{token}")


@pytest.fixture
def fences(database: Database) -> Fences:
    ledger = Ledger(connect=partial(connect, database.conninfo, name="the destination"))
    ledger.ensure()
    return Fences(ledger)


def test_only_the_newest_attempt_may_publish(database: Database, fences: Fences) -> None:
    with database.connect() as session:
        assert fences.current(session, "raw.orders") is None
        with session.transaction(), pytest.raises(FenceLost):
            fences.lock(session, fence(5))
        for token in (5, 6, 6):
            # Raising the same one again changes nothing.
            fences.raise_(fence(token))
            assert fences.current(session, "raw.orders") == fence(token)
        # Tables have fences of their own.
        fences.raise_(Fence("raw.other", CONTROL, 1, "a"))
        assert fences.current(session, "raw.orders") == fence(6)
        with session.transaction():
            fences.lock(session, fence(6))
        with session.transaction(), pytest.raises(FenceLost, match="a newer attempt has taken"):
            fences.lock(session, fence(5))


def test_publishing_needs_equality_in_every_part(database: Database, fences: Fences) -> None:
    fences.raise_(fence(5))
    for other in (
        Fence("raw.orders", CONTROL, 5, "another attempt"),
        Fence("raw.orders", uuid4(), 5, "attempt5"),
        Fence("raw.orders", CONTROL, 4, "attempt5"),
        Fence("raw.orders", CONTROL, 6, "attempt5"),
    ):
        with database.connect() as session, session.transaction(), pytest.raises(FenceLost):
            fences.lock(session, other)


def test_a_lower_token_is_refused_and_told_the_one_it_met(
    database: Database, fences: Fences
) -> None:
    fences.raise_(fence(6))
    with pytest.raises(FenceTooLow) as raised:
        fences.raise_(fence(5))
    assert raised.value.token == 6
    with pytest.raises(FenceTooLow):
        fences.raise_(fence(6, "a twin with the same token"))
    with database.connect() as session:
        assert fences.current(session, "raw.orders") == fence(6)


def test_another_control_plane_is_refused_until_the_table_is_handed_over(
    database: Database, fences: Fences
) -> None:
    fences.raise_(fence(6))
    stranger = Fence("raw.orders", uuid4(), 99, "theirs")
    with pytest.raises(ControlMismatch) as raised:
        fences.raise_(stranger)
    assert str(CONTROL) in str(raised.value)
    assert "--take-over" in str(raised.value)
    with database.connect() as session:
        assert fences.current(session, "raw.orders") == fence(6)
        assert fences.seize(session, "raw.orders", stranger.control_id)
        fences.raise_(stranger)
        assert fences.current(session, "raw.orders") == stranger
    with pytest.raises(ControlMismatch):
        fences.raise_(fence(100))


def test_of_many_raisers_at_once_the_highest_token_stays(
    database: Database, fences: Fences
) -> None:
    def attempt(token: int) -> int:
        try:
            fences.raise_(fence(token))
        except FenceTooLow as error:
            return error.token - token
        return 1

    with ThreadPoolExecutor(6) as pool:
        ahead = list(pool.map(attempt, [3, 9, 1, 7, 12, 5, 2, 11, 4, 10, 8, 6]))
    assert min(ahead) > 0
    with database.connect() as session:
        assert fences.current(session, "raw.orders") == fence(12)


def test_a_publisher_that_hangs_is_ended_by_its_successor(
    database: Database, fences: Fences
) -> None:
    fences.raise_(fence(5))
    application = publisher_name("attempt5")
    with database.connect(application_name=application) as stopped:
        # As after SIGSTOP: the session holds the row and says nothing more.
        stopped.execute("BEGIN")
        fences.lock(stopped, fence(5))
        started = time.monotonic()
        fences.raise_(fence(6), lock_timeout_seconds=0.2)
        assert time.monotonic() - started < 5
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("COMMIT")
    with database.connect() as session:
        assert fences.current(session, "raw.orders") == fence(6)


def test_an_older_attempt_cannot_end_a_newer_publisher(database: Database, fences: Fences) -> None:
    fences.raise_(fence(6))
    with database.connect(application_name=publisher_name("attempt6")) as publisher:
        publisher.execute("BEGIN")
        fences.lock(publisher, fence(6))
        with pytest.raises(BusyError, match="held by a session that does not end"):
            fences.raise_(fence(5), lock_timeout_seconds=0.05)
        publisher.execute("COMMIT")


def test_only_the_replaced_publisher_is_ended_nobody_else(
    database: Database, fences: Fences
) -> None:
    fences.raise_(fence(5))
    with database.connect(application_name="a person in psql") as person:
        person.execute("BEGIN")
        fences.lock(person, fence(5))
        with pytest.raises(BusyError, match="see pg_stat_activity"):
            fences.raise_(fence(6), lock_timeout_seconds=0.05)
        assert person.execute("SELECT 1").fetchone() == (1,)


def test_a_publisher_that_commits_in_time_is_not_disturbed(
    database: Database, fences: Fences
) -> None:
    fences.raise_(fence(5))
    with database.connect(application_name=publisher_name("attempt5")) as publisher:
        publisher.execute("BEGIN")
        fences.lock(publisher, fence(5))
        with ThreadPoolExecutor(1) as pool:
            successor = pool.submit(fences.raise_, fence(6), lock_timeout_seconds=20)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            until(
                lambda: (
                    successor.done()
                    or database.value(f"{waiting} AND datname = current_database()")
                ),
                "a successor that waits",
            )
            assert not successor.done()
            publisher.execute("COMMIT")
            successor.result()
        assert publisher.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def claimed(make_place: MakePlace) -> Iterator[Claimed]:
    """A job that this process has claimed, beside the table that it is to load."""
    context = make_place(databases=2).open().context
    destination = context.destination(Endpoint.parse("warehouse:raw.orders"))
    assert isinstance(destination, PostgresTarget)
    jobs, worker = Jobs(context.plane), WorkerIdentity.of_this_process()
    with context.plane.connect() as control, context.plane.connect() as session:
        Workers(context.plane).register(session, worker, "0")
        request = JobRequest("shop", "sync", "orders", "postgres:x/raw.orders")
        job_id = jobs.submit(control, request, "test").job_id
        claim = jobs.claim(control, worker.worker_id, job_id, lease_seconds=1e-6)
        assert claim is not None
        yield Claimed(context, destination, control, claim)


def test_a_restored_control_plane_lifts_its_tokens_above_the_destination(claimed: Claimed) -> None:
    # The destination remembers a token that the control database, restored, does not.
    claimed.raise_other("before the restore")
    assert claimed.claim.fence < 5000
    raised = claimed.raise_own()
    assert raised.token > 5000
    assert Tokens(claimed.context.plane).next(claimed.control) > raised.token
    assert claimed.current() == raised


def test_a_stale_attempt_does_not_reseed(claimed: Claimed) -> None:
    claimed.raise_other("newer")
    claimed.control.execute("UPDATE tidegate_control.job_queue SET attempt_id = 'another'")
    with pytest.raises(FenceTooLow):
        claimed.raise_own()
    current = claimed.current()
    assert current is not None
    assert current.attempt_id == "newer"


def test_a_dead_attempt_is_fenced_out_before_its_job_is_given_away(claimed: Claimed) -> None:
    raised = claimed.raise_own()
    context, destination = claimed.context, claimed.destination
    taken = reclaim_lost(
        context.plane,
        claimed.control,
        context.control_id(),
        lambda _: destination,
        actor="me",
        backoff=context.settings.worker.backoff,
    )
    assert taken == 1
    with destination.open() as session, session.transaction(), pytest.raises(FenceLost):
        destination.fences.lock(session, raised)
