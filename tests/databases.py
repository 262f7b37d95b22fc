"""Fresh databases for tests, used again when a test has left nothing in them that stays."""

from __future__ import annotations

import functools
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

import psycopg
from psycopg import sql

from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.history.writer import TaskMonths
from tidegate.postgres.connection import connect
from tidegate.postgres.embedded import EmbeddedServer

# The first OID that is given out to what users make.
_FIRST = 16384
_OURS_ALONE = """
SELECT datacl IS NULL AND datconnlimit = -1 AND datallowconn AND datdba = 10
    AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = d.oid)
    AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE database = d.datname)
    AND NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE database = d.datname)
FROM pg_database d WHERE datname = current_database()
"""
_LEAVE = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_CONTROL = "tidegate_control"
_SCHEMAS = """
SELECT nspname FROM pg_namespace
WHERE (oid >= 16384 AND nspname !~ '^pg_' OR nspname = 'public') AND nspname <> ALL(%s)
"""
_PUBLIC = """
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""
_CATALOGS = """
SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'oid'
WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r' AND NOT c.relisshared
AND c.relname <> 'pg_namespace' ORDER BY 1
"""
# What a test may have granted or revoked on what every database has.
_RIGHTS = """
SELECT (SELECT sum(hashtext(relacl::text)::bigint) FROM pg_class WHERE relacl IS NOT NULL),
    (SELECT sum(hashtext(proacl::text)::bigint) FROM pg_proc WHERE proacl IS NOT NULL),
    (SELECT sum(hashtext(nspacl::text)::bigint) FROM pg_namespace WHERE nspacl IS NOT NULL),
    (SELECT count(*) FROM pg_language)
"""
# Whether the control plane is still as its migrations made it; what changes with each row is not.
_PLANE = """
SELECT sum(hashtext(one)::bigint) FROM (
    SELECT concat_ws(' ', c.relname, c.relkind, c.relacl, c.relrowsecurity, c.reloptions,
        a.attname, a.attnum, a.attnotnull, a.atthasdef, a.attidentity, a.attisdropped)
    FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'tidegate_control'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', c.relname, t.tgname, t.tgenabled) FROM pg_trigger t
    JOIN pg_class c ON c.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND c.relnamespace = 'tidegate_control'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', proname, prosrc) FROM pg_proc
    WHERE pronamespace = 'tidegate_control'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', conname, convalidated) FROM pg_constraint
    WHERE connamespace = 'tidegate_control'::regnamespace
    UNION ALL
    SELECT nspacl::text FROM pg_namespace WHERE nspname = 'tidegate_control'
    UNION ALL
    SELECT version::text FROM tidegate_control.schema_migrations
) AS p (one)
"""
_TABLES = """
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tidegate_control'::regnamespace
AND c.relkind = 'r' AND c.relname <> 'schema_migrations'
"""
_RESTART = """
SELECT setval(format('%I.%I', schemaname, sequencename), start_value, false)
FROM pg_sequences WHERE schemaname = 'tidegate_control' AND last_value IS NOT NULL
"""


class Databases:
    """Makes databases, and empties those that were given back rather than drop them.

    Making and dropping one costs more than most tests do with it, and so does a control plane.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._free: defaultdict[bool, list[str]] = defaultdict(list)

    def make(self, hint: str, *, control: bool = False) -> str:
        """The name of a database that is empty, or has a control plane that was never used."""
        plain = re.sub(r"[^a-z0-9_]", "_", hint.lower())[:40]
        name = f"{plain}_{uuid.uuid4().hex[:12]}"
        free = self._free[control]
        new = not free
        with self._connect("postgres") as connection:
            if free:
                statement = sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                    sql.Identifier(free.pop()), sql.Identifier(name)
                )
            else:
                statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
            connection.execute(statement)
        if control and new:
            self._migrate(name)
        return name

    def _migrate(self, name: str) -> None:
        plane = ControlDatabase(
            partial(
                connect, self._server.conninfo(name), name="the control database", autocommit=True
            )
        )
        with plane.connect() as session:
            plane.migrate(session)
            TaskMonths(plane).make(session, datetime.now(UTC))

    @contextmanager
    def lend(self) -> Iterator[Callable[..., str]]:
        """A maker of databases, which returns their conninfo; they are given back in the end."""
        names: list[str] = []

        def make(name_hint: str = "db", *, control: bool = False) -> str:
            names.append(self.make(name_hint, control=control))
            return self._server.conninfo(names[-1])

        yield make
        # A test may have crashed the server; the next one needs it.
        self._server.start()
        self.give_back(*names)

    def give_back(self, *names: str) -> None:
        for name in names:
            try:
                control = self._emptied(name)
            except (psycopg.Error, AssertionError):
                with self._connect("postgres") as connection:
                    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                    connection.execute(drop.format(sql.Identifier(name)))
            else:
                self._free[control].append(name)

    def _emptied(self, name: str) -> bool:
        """Make the database as a new one is; whether it has a control plane."""
        with self._connect(name) as connection:
            connection.execute(_LEAVE)
            assert connection.execute(_OURS_ALONE).fetchone() == (True,)
            control = self._is_pristine(connection)
            kept = [_CONTROL] if control else []
            for (schema,) in connection.execute(_SCHEMAS, (kept,)).fetchall():
                drop = sql.SQL("DROP SCHEMA {} CASCADE")
                connection.execute(drop.format(sql.Identifier(schema)))
            connection.execute(_PUBLIC)
            assert connection.execute(_RIGHTS).fetchone() == self._rights
            if control:
                self._empty_plane(connection)
            assert connection.execute(self._counted).fetchone() == self._counts[control]
        return control

    def _is_pristine(self, connection: psycopg.Connection) -> bool:
        try:
            return connection.execute(_PLANE).fetchone() == self._plane
        except psycopg.Error:
            return False

    def _empty_plane(self, connection: psycopg.Connection) -> None:
        tables = [name for (name,) in connection.execute(_TABLES)]
        full = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {} WHERE EXISTS (SELECT FROM {})").format(
                sql.Literal(name), sql.Identifier(_CONTROL, name)
            )
            for name in tables
        )
        # Tables are emptied one by one, whatever refers to them and whatever watches them.
        connection.execute("SET session_replication_role = replica")
        for (name,) in connection.execute(full).fetchall():
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(_CONTROL, name)))
        connection.execute(
            sql.SQL("INSERT INTO {} DEFAULT VALUES").format(
                sql.Identifier(_CONTROL, "control_plane")
            )
        )
        connection.execute(_RESTART)

    @functools.cached_property
    def _rights(self) -> object:
        with self._connect("template1") as connection:
            return connection.execute(_RIGHTS).fetchone()

    @functools.cached_property
    def _plane(self) -> object:
        with self._connect(self._model) as connection:
            return connection.execute(_PLANE).fetchone()

    @functools.cached_property
    def _counts(self) -> dict[bool, object]:
        """How much each catalog lists of what is not in every database."""
        found = {}
        for control, name in ((False, "template1"), (True, self._model)):
            with self._connect(name) as connection:
                found[control] = connection.execute(self._counted).fetchone()
        return found

    @functools.cached_property
    def _model(self) -> str:
        """A control plane that no test ever sees."""
        return self.make("model", control=True)

    @functools.cached_property
    def _counted(self) -> sql.Composed:
        with self._connect("template1") as connection:
            catalogs = [name for (name,) in connection.execute(_CATALOGS).fetchall()]
        return sql.SQL("SELECT {}").format(
            sql.SQL(", ").join(
                sql.SQL("(SELECT count(*) FROM {} WHERE oid >= {})").format(
                    sql.Identifier("pg_catalog", name), sql.Literal(_FIRST)
                )
                for name in catalogs
            )
        )

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(self._server.conninfo(name), autocommit=True)
