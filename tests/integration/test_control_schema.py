"""The control plane: its schema is made once, in a schema of any name, and brought up to date."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from integration.conftest import Database
from tidegate.admin.inventory import made_in_control
from tidegate.core.errors import DestinationError, TidegateError, UsageError
from tidegate.jobs import control_database
from tidegate.jobs.context import has_jobs
from tidegate.jobs.control_database import ControlDatabase, Tokens, newest_version
from tidegate.jobs.job import JobRequest
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempts
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import script


@pytest.fixture
def session(database: Database) -> Iterator[Connection]:
    with database.connect() as opened:
        yield opened


def test_the_control_schema_is_made_at_once_and_has_an_identity_of_its_own(
    database: Database, session: Connection
) -> None:
    plane = ControlDatabase(database.connect)
    assert plane.version(session) == 0
    assert plane.migrate(session) == plane.version(session) == newest_version() == 1
    names = {
        name
        for (name,) in session.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'tidegate_control'::regnamespace"
            " AND relkind IN ('r', 'p', 'v') UNION ALL SELECT proname FROM pg_proc"
            " WHERE pronamespace = 'tidegate_control'::regnamespace"
        )
    }
    assert names | {"fence_tokens"} == made_in_control()
    other = ControlDatabase(database.connect, "other")
    other.migrate(session)
    assert plane.identity(session) != other.identity(session)


def test_an_older_control_schema_gets_what_is_new_and_keeps_its_jobs(
    database: Database, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = ControlDatabase(database.connect)
    plane.migrate(session)
    identity = plane.identity(session)
    Jobs(plane).submit(session, JobRequest("shop", "sync", "orders", "r"), "test")
    added = {"jobs/added": "ALTER TABLE {schema}.jobs ADD COLUMN shade text DEFAULT 'blue'"}
    scripts = (*control_database.SCHEMA_SCRIPTS, "jobs/added")
    monkeypatch.setattr(control_database, "SCHEMA_SCRIPTS", scripts)
    monkeypatch.setattr(control_database, "script", lambda file: added.get(file) or script(file))
    with pytest.raises(UsageError, match="at schema version 1, this Tidegate needs 2") as raised:
        has_jobs(plane, session)
    assert "tidegate db migrate" in str(raised.value)
    assert [plane.migrate(session) for _ in range(2)] == [2, 2]
    assert has_jobs(plane, session)
    assert (plane.version(session), plane.identity(session)) == (2, identity)
    found = session.execute("SELECT name, shade FROM tidegate_control.jobs").fetchall()
    assert found == [("orders", "blue")]
    fresh = ControlDatabase(database.connect, "fresh")
    assert fresh.migrate(session) == 2
    assert session.execute("SELECT shade FROM fresh.jobs").fetchall() == []


def test_the_schema_is_made_once_and_every_statement_works_in_a_schema_of_any_name(
    database: Database,
) -> None:
    plane = ControlDatabase(database.connect, 'Control "1" 100%s; DROP SCHEMA x; --')
    jobs = Jobs(plane)

    def migrate(_: int) -> tuple[int, UUID]:
        with plane.connect() as session:
            return plane.migrate(session), plane.identity(session)

    with ThreadPoolExecutor(6) as pool:
        found = set(pool.map(migrate, range(6)))
    assert len(found) == 1
    assert migrate(0) in found
    name = sql.Identifier(plane.schema, "schema_migrations")
    applied = database.value(sql.SQL("SELECT count(*) FROM {}").format(name))
    assert applied == next(iter(found))[0]
    with plane.connect() as session, plane.connect() as own:
        worker = WorkerIdentity.of_this_process()
        Workers(plane).register(own, worker, "0")
        jobs.submit(session, JobRequest("shop", "sync", "orders", "r"), "test")
        (mine,) = jobs.claim_ready(
            session, worker.worker_id, project="shop", kinds=["sync"], lease_seconds=1e-6
        )
        assert jobs.live_attempts(session) == {mine.attempt_id}
        assert Tokens(plane).next(session) > mine.fence
        (dead,) = LostAttempts(plane).list(session)
        assert LostAttempts(plane).reclaim(session, dead, "sweeper")
        Workers(plane).forget(session, worker)


def test_a_control_schema_of_a_newer_release_or_without_its_identity_is_refused(
    database: Database, session: Connection
) -> None:
    plane = ControlDatabase(database.connect)
    plane.migrate(session)
    session.execute("DELETE FROM tidegate_control.control_plane")
    with pytest.raises(TidegateError, match="lost its identity"):
        plane.identity(session)
    with pytest.raises(psycopg.errors.CheckViolation):
        session.execute("INSERT INTO tidegate_control.control_plane (only_row) VALUES (false)")
    session.execute("INSERT INTO tidegate_control.schema_migrations (version) VALUES (999)")
    with pytest.raises(TidegateError, match="schema version 999") as raised:
        plane.migrate(session)
    assert "use the Tidegate that the other processes" in str(raised.value)


def test_no_right_to_create_the_control_schema_is_said_with_the_fix(
    database: Database, session: Connection
) -> None:
    name = f"nobody_{uuid4().hex[:12]}"
    database.execute(f"CREATE ROLE {name}")
    try:
        plane = ControlDatabase(database.connect)
        session.execute(f"SET ROLE {name}")
        with pytest.raises(DestinationError, match="may not create schema tidegate_control"):
            plane.migrate(session)
        session.execute("RESET ROLE")
        assert plane.version(session) == 0
    finally:
        database.execute(f"DROP ROLE {name}")
