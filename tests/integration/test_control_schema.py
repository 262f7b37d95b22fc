"""The control plane: its schema comes into being once, in any schema, as it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from integration.conftest import Database
from tidegate.core.errors import DestinationError, TidegateError
from tidegate.jobs.control_database import ControlDatabase, Tokens
from tidegate.jobs.job import JobRequest
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempts
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import migrations, script

# Everything that CREATE and ALTER can set, from the catalogs; names of schemas are left out.
PARTS = {
    "relations": """
        SELECT relname, relkind::text, relpersistence::text, relrowsecurity,
               (SELECT array_agg(o ORDER BY o) FROM unnest(reloptions) o),
               relreplident::text, obj_description(oid, 'pg_class')
        FROM pg_class WHERE relnamespace = %(schema)s::regnamespace ORDER BY relname""",
    "columns": """
        SELECT c.relname,
               row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) AS place,
               a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               a.attidentity::text, a.attgenerated::text, a.attstorage::text,
               a.attcompression::text, a.attstattarget, a.attoptions::text[],
               coll.collname, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        LEFT JOIN pg_collation coll ON coll.oid = a.attcollation
        WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind <> 'i'
        ORDER BY 1, 2""",
    "constraints": """
        SELECT c.relname, n.conname, n.contype::text, n.convalidated, n.condeferrable,
               pg_get_constraintdef(n.oid)
        FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
        WHERE n.connamespace = %(schema)s::regnamespace ORDER BY 1, 2""",
    "indexes": """
        SELECT tablename, indexname, indexdef FROM pg_indexes
        WHERE schemaname = %(schema)s ORDER BY 1, 2""",
    "sequences": """
        SELECT s.sequencename, s.data_type::text, s.start_value, s.min_value, s.max_value,
               s.increment_by, s.cycle, s.cache_size
        FROM pg_sequences s WHERE s.schemaname = %(schema)s ORDER BY 1""",
    "triggers": """
        SELECT c.relname, t.tgname, pg_get_triggerdef(t.oid)
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = %(schema)s::regnamespace AND NOT t.tgisinternal ORDER BY 1, 2""",
    "routines": """
        SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc p
        WHERE p.pronamespace = %(schema)s::regnamespace ORDER BY 1, 2""",
}
MIGRATED, WRITTEN = "tidegate_control", "written_down"

IDENTITY = "SELECT control_id FROM tidegate_control.control_plane"

Described = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def session(database: Database) -> Iterator[Connection]:
    with database.connect() as opened:
        yield opened


def describe(session: Connection, schema: str) -> Described:
    """Everything in a schema, in words that do not name the schema."""
    session.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
    found = {
        part: session.execute(query, {"schema": schema}).fetchall() for part, query in PARTS.items()
    }
    session.execute("RESET search_path")
    return {
        part: [
            tuple(one.replace(f"{schema}.", "") if isinstance(one, str) else one for one in row)
            for row in rows
        ]
        for part, rows in found.items()
    }


def write_down(session: Connection, schema: str = WRITTEN) -> None:
    identifier = sql.Identifier(schema)
    session.execute(sql.SQL("CREATE SCHEMA {}").format(identifier))
    session.execute(sql.SQL(script("jobs/schema")).format(schema=identifier))


def migrate(database: Database, session: Connection) -> None:
    ControlDatabase(database.connect, MIGRATED).migrate(session)


def apply_first(database: Database, session: Connection) -> None:
    """The schema as the first migration leaves it."""
    session.execute(
        "CREATE SCHEMA tidegate_control; CREATE TABLE tidegate_control.schema_migrations"
        " (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    version, file = migrations("jobs/migrations")[0]
    session.execute(sql.SQL(script(file)).format(schema=sql.Identifier(MIGRATED)))
    session.execute(
        "INSERT INTO tidegate_control.schema_migrations (version) VALUES (%s)", (version,)
    )


# A pending and a running job with their locks, a finished one, and the worker of the running one.
DATA_OF_THE_FIRST = """
INSERT INTO workers (worker_id, host, pid, version, lock_key) VALUES ('w', 'h', 1, '0', 7);
INSERT INTO jobs (job_id, project, kind, name, resource, payload, submitted_by, status,
                  attempt_id, attempt_count)
VALUES ('00000000-0000-0000-0000-000000000001', 'shop', 'sync', 'a', 'r1', '{}', 't', 'pending',
        NULL, 0),
       ('00000000-0000-0000-0000-000000000002', 'bank', 'sync', 'b', 'r2', '{}', 't', 'running',
        'x', 1),
       ('00000000-0000-0000-0000-000000000003', 'shop', 'sync', 'c', 'r3', '{}', 't', 'done',
        'y', 1);
INSERT INTO job_queue (job_id, kind, priority, claimed_at, claimed_by, attempt_id, fence,
                       lease_until)
VALUES ('00000000-0000-0000-0000-000000000001', 'sync', 3, NULL, NULL, NULL, NULL, NULL),
       ('00000000-0000-0000-0000-000000000002', 'sync', 0, now(), 'w', 'x',
        nextval('fence_tokens'), now() + interval '1 hour');
INSERT INTO job_attempts (attempt_id, job_id, worker_id, fence)
VALUES ('x', '00000000-0000-0000-0000-000000000002', 'w', 1),
       ('y', '00000000-0000-0000-0000-000000000003', 'w', 0);
INSERT INTO job_actions (job_id, position, attempt_id, action, detail)
VALUES ('00000000-0000-0000-0000-000000000002', 1, 'x', 'stage', '{}');
INSERT INTO table_locks (resource, job_id)
VALUES ('r1', '00000000-0000-0000-0000-000000000001'),
       ('r2', '00000000-0000-0000-0000-000000000002');
INSERT INTO job_audit (job_id, event, actor)
VALUES ('00000000-0000-0000-0000-000000000001', 'submitted', 't');
INSERT INTO cursor_observations VALUES ('shop.a', now(), '5');
"""


def fill_first(session: Connection) -> None:
    session.execute("SET search_path = tidegate_control")
    session.execute(DATA_OF_THE_FIRST)
    session.execute("RESET search_path")


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "with jobs of the first version"])
def test_all_migrations_give_the_schema_that_is_written_down(
    database: Database, session: Connection, filled: bool
) -> None:
    """Jobs of the first version are worked on by the next."""
    if filled:
        apply_first(database, session)
        fill_first(session)
        identity = session.execute(IDENTITY).fetchone()
    migrate(database, session)
    write_down(session)
    migrated, written = describe(session, MIGRATED), describe(session, WRITTEN)
    for part in PARTS:
        assert migrated[part] == written[part], part
    assert len(written["relations"]) > 20
    assert {row[0] for row in written["sequences"]} == {
        "access_audit_id_seq",
        "fence_tokens",
        "job_audit_id_seq",
    }
    if not filled:
        return
    session.execute("SET search_path = tidegate_control")

    def rows(query: str) -> list[tuple[Any, ...]]:
        return session.execute(query).fetchall()

    assert rows(IDENTITY) == [identity]
    assert rows(
        "SELECT project, priority, lock_resource, unique_key, attempt_id FROM job_queue"
        " ORDER BY job_id"
    ) == [("shop", 3, None, None, None), ("bank", 0, None, None, "x")]
    assert rows("SELECT resource, lock_at, priority, error_count FROM jobs ORDER BY job_id") == [
        ("r1", "submit", 3, 0),
        ("r2", "submit", 0, 0),
        ("r3", "submit", 0, 0),
    ]
    assert rows("SELECT resource FROM table_locks ORDER BY 1") == [("r1",), ("r2",)]


def test_migrations_run_once_and_every_statement_works_in_a_schema_of_any_name(
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
