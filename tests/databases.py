"""Fresh databases for tests, used again when a test has left nothing in them that stays."""

from __future__ import annotations

import functools
import re
import uuid

import psycopg
from psycopg import sql

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
_SCHEMAS = """
SELECT nspname FROM pg_namespace
WHERE oid >= 16384 AND nspname !~ '^pg_' OR nspname = 'public'
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


class Databases:
    """Makes databases, and empties those that were given back rather than drop them.

    Making and dropping one costs more than most tests do with it.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._free: list[str] = []

    def make(self, hint: str) -> str:
        """The name of a database that is empty."""
        plain = re.sub(r"[^a-z0-9_]", "_", hint.lower())[:40]
        name = f"{plain}_{uuid.uuid4().hex[:12]}"
        with self._connect("postgres") as connection:
            if self._free:
                statement = sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                    sql.Identifier(self._free.pop()), sql.Identifier(name)
                )
            else:
                statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
            connection.execute(statement)
        return name

    def give_back(self, *names: str) -> None:
        for name in names:
            if self._emptied(name):
                self._free.append(name)
            else:
                with self._connect("postgres") as connection:
                    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                    connection.execute(drop.format(sql.Identifier(name)))

    def _emptied(self, name: str) -> bool:
        """Whether the database is again as a new one is."""
        try:
            with self._connect(name) as connection:
                connection.execute(_LEAVE)
                if connection.execute(_OURS_ALONE).fetchone() != (True,):
                    return False
                for (schema,) in connection.execute(_SCHEMAS).fetchall():
                    drop = sql.SQL("DROP SCHEMA {} CASCADE")
                    connection.execute(drop.format(sql.Identifier(schema)))
                connection.execute(_PUBLIC)
                if connection.execute(_RIGHTS).fetchone() != self._rights:
                    return False
                return connection.execute(self._left).fetchone() == (False,)
        except psycopg.Error:
            return False

    @functools.cached_property
    def _rights(self) -> object:
        with self._connect("template1") as connection:
            return connection.execute(_RIGHTS).fetchone()

    @functools.cached_property
    def _left(self) -> sql.Composed:
        """Asks whether any catalog lists something that a new database does not have."""
        with self._connect("template1") as connection:
            catalogs = [name for (name,) in connection.execute(_CATALOGS).fetchall()]
        return sql.SQL("SELECT {}").format(
            sql.SQL(" OR ").join(
                sql.SQL("EXISTS (SELECT FROM {} WHERE oid >= {})").format(
                    sql.Identifier("pg_catalog", name), sql.Literal(_FIRST)
                )
                for name in catalogs
            )
        )

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(self._server.conninfo(name), autocommit=True)
