"""The control plane: its schema comes into being once, in any schema, by any number at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import UUID, uuid4

import psycopg
import pytest

from integration.conftest import Database
from tidegate.control.dead import DeadAttempts
from tidegate.control.jobs import Jobs
from tidegate.control.plane import ControlPlane
from tidegate.control.tokens import Tokens
from tidegate.control.workers import Worker, Workers
from tidegate.errors import DestinationError, TidegateError
from tidegate.model.job import JobRequest
from tidegate.postgres.connect import Connection, connect


@pytest.fixture
def plane(database: Database) -> ControlPlane:
    made = ControlPlane(partial(connect, database.conninfo, name="the control database"))
    with made.connect() as session:
        made.migrate(session)
    return made


@pytest.fixture
def session(plane: ControlPlane) -> Iterator[Connection]:
    with plane.connect() as opened:
        yield opened


def test_migrations_run_once_and_any_number_at_the_same_time(database: Database) -> None:
    plane = ControlPlane(partial(connect, database.conninfo, name="x"), 'Control "1" 100%')

    def migrate(_: int) -> tuple[int, UUID]:
        with plane.connect() as session:
            return plane.migrate(session), plane.identity(session)

    with ThreadPoolExecutor(6) as pool:
        found = set(pool.map(migrate, range(6)))
    assert len(found) == 1
    assert migrate(0) in found
    applied = database.value('SELECT count(*) FROM "Control ""1"" 100%".schema_migrations')
    assert applied == next(iter(found))[0]


def test_every_statement_works_in_a_schema_of_any_name(database: Database) -> None:
    plane = ControlPlane(partial(connect, database.conninfo, name="x"), "100%s; DROP SCHEMA x; --")
    jobs = Jobs(plane)
    with plane.connect() as session, plane.connect() as own:
        plane.migrate(session)
        worker = Worker.of_this_process()
        Workers(plane).register(own, worker, "0")
        jobs.submit(session, JobRequest("shop", "sync", "orders", "r"), "test")
        (mine,) = jobs.claim_ready(
            session, worker.worker_id, project="shop", kinds=["sync"], lease_seconds=1e-6
        )
        assert jobs.live_attempts(session) == {mine.attempt_id}
        assert Tokens(plane).next(session) > mine.fence
        (dead,) = DeadAttempts(plane).list(session)
        assert DeadAttempts(plane).reclaim(session, dead, "sweeper")
        Workers(plane).forget(session, worker)


def test_a_control_schema_of_a_newer_release_is_refused(
    plane: ControlPlane, session: Connection
) -> None:
    session.execute("INSERT INTO tidegate_control.schema_migrations (version) VALUES (999)")
    with pytest.raises(TidegateError, match="schema version 999") as raised:
        plane.migrate(session)
    assert "use the Tidegate that the other processes" in str(raised.value)


def test_no_right_to_create_the_control_schema_is_said_with_the_fix(database: Database) -> None:
    name = f"nobody_{uuid4().hex[:12]}"
    database.execute(f"CREATE ROLE {name}")
    try:
        plane = ControlPlane(partial(connect, database.conninfo, name="x"))
        with plane.connect() as session:
            session.execute(f"SET ROLE {name}")
            with pytest.raises(DestinationError, match="may not create schema tidegate_control"):
                plane.migrate(session)
            session.execute("RESET ROLE")
            assert plane.version(session) == 0
    finally:
        database.execute(f"DROP ROLE {name}")


def test_a_control_plane_that_lost_its_identity_says_so(
    plane: ControlPlane, session: Connection
) -> None:
    session.execute("DELETE FROM tidegate_control.control_plane")
    with pytest.raises(TidegateError, match="lost its identity"):
        plane.identity(session)
    with pytest.raises(psycopg.errors.CheckViolation):
        session.execute("INSERT INTO tidegate_control.control_plane (only_row) VALUES (false)")
