"""Holding back vacuum in a database, and asking who does."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from conftest import MakeDatabase
from integration.conftest import Database
from tidegate.admin.vacuum_horizon import VacuumHolder, VacuumHorizon, read_vacuum_horizon
from tidegate.jobs.control_database import ControlDatabase

ROWS = 10
FIVE_MINUTES = 300.0


def look(
    database: Database, warning_seconds: float = 0.0, conninfo: str | None = None
) -> VacuumHorizon:
    plane = ControlDatabase(database.connect)
    with psycopg.connect(conninfo or database.conninfo, autocommit=True) as session:
        return read_vacuum_horizon(session, plane, warning_seconds)


def holder_of(horizon: VacuumHorizon, pid: int) -> VacuumHolder | None:
    return next((holder for holder in horizon.holders if holder.pid == pid), None)


def fill(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (n int) WITH (autovacuum_enabled = off)",
        f"INSERT INTO t SELECT generate_series(1, {ROWS})",
    )


def kept_by_vacuum(database: Database) -> int:
    """Delete all rows, and count those that VACUUM then has to leave."""
    said: list[str] = []
    with database.connect() as session:
        session.execute("SET client_min_messages = info")
        session.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        session.execute("DELETE FROM t")
        session.execute("VACUUM (VERBOSE) t")
    found = re.search(r"(\d+) are dead but not yet removable", "\n".join(said))
    assert found is not None, said
    return int(found[1])


def pass_transactions(database: Database, count: int) -> None:
    database.execute(
        "CREATE TABLE passed (n int)",
        f"DO $$ BEGIN FOR n IN 1..{count} LOOP BEGIN INSERT INTO passed VALUES (n);"
        " EXCEPTION WHEN others THEN RAISE; END; END LOOP; END $$",
    )


@contextmanager
def snapshot(database: Database, application: str = "report") -> Iterator[psycopg.Connection[Any]]:
    session = psycopg.connect(database.conninfo, application_name=application)
    session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    session.execute("SELECT 1")
    try:
        yield session
    finally:
        session.close()


@pytest.fixture
def pair(make_database: MakeDatabase) -> tuple[Database, Database]:
    """The control database, and another one of the same server."""
    return Database(make_database("control")), Database(make_database("other"))


@pytest.fixture
def role(pair: tuple[Database, Database]) -> Iterator[tuple[Database, str, str]]:
    """The control database, and a role that may only connect to it."""
    control, _ = pair
    name = f"Role {uuid.uuid4().hex[:8]}"
    control.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret'")
    yield control, name, make_conninfo(control.conninfo, user=name, password="secret")
    control.execute(f'DROP ROLE "{name}"')
