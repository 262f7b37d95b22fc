"""Changing a target gives way to readers, tries again, and says who stands in the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from acceptance.processes import until
from integration.conftest import Database
from integration.destination_harness import load, make_shape
from integration.postgres_harness import PostgresHarness, open_session
from integration.postgres_harness import shared as database
from tidegate.config.sync import Mode, Rules
from tidegate.core.errors import BusyError, DestinationError
from tidegate.postgres.connection import Connection

__all__ = ["database"]

BEFORE = "id integer, name text, n integer, c bigint"
AFTER = "id integer, name text, n bigint, c bigint, x text"
LOCK_SECONDS = 0.1


@pytest.fixture(params=[Mode.MERGE, pytest.param(Mode.APPEND, marks=pytest.mark.chaos)])
def harness(database: Database, request: pytest.FixtureRequest) -> PostgresHarness:
    shape = make_shape(BEFORE)
    made = PostgresHarness(
        database, shape, Rules(mode=request.param), lock_timeout_seconds=LOCK_SECONDS
    )
    load(made, (1, "a", 1, 1))
    return made


def prepare(harness: PostgresHarness) -> None:
    shape = make_shape(AFTER)
    harness.destination.prepare(shape, harness.watermark(), harness.rules, fence=harness.attempt())


def has_changed(harness: PostgresHarness) -> bool:
    return bool(
        harness.database.value(
            "SELECT EXISTS (SELECT FROM pg_attribute WHERE attname = 'x'"
            f" AND attrelid = '{harness.table}'::regclass)"
        )
    )


@contextmanager
def open_reader(harness: PostgresHarness) -> Iterator[psycopg.Connection]:
    """Somebody who has read the target and does not end their transaction."""
    with psycopg.connect(harness.database.conninfo, application_name="long report") as session:
        session.execute(f"SELECT FROM {harness.table}")
        yield session
        session.rollback()


class Readers:
    """Somebody who reads the target again and again; how long the slowest read took."""

    def __init__(self, harness: PostgresHarness) -> None:
        self._harness = harness
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.slowest = 0.0
        self.reads = 0
        self.error: Exception | None = None

    def _read(self) -> None:
        try:
            with self._harness.database.connect() as session:
                while not self._stop.wait(0.005):
                    started = time.monotonic()
                    session.execute(f"SELECT id, name FROM {self._harness.table}")
                    self.slowest = max(self.slowest, time.monotonic() - started)
                    self.reads += 1
        except Exception as error:
            self.error = error

    def __enter__(self) -> Readers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_long_reader_is_named_and_nobody_queues_for_long(harness: PostgresHarness) -> None:
    with open_reader(harness) as reader:
        started = time.monotonic()
        with Readers(harness) as readers, pytest.raises(BusyError) as raised:
            prepare(harness)
        took = time.monotonic() - started
        pid = reader.info.backend_pid
    assert readers.error is None
    assert readers.reads > 0
    assert took > 4 * LOCK_SECONDS
    # A reader waits for one of our tries at most; the rest is what a busy machine takes.
    assert readers.slowest < LOCK_SECONDS + 1.5
    assert raised.value.exit_code == 75
    assert f"process {pid} of postgres (long report), idle in transaction" in str(raised.value)
    assert "nothing was loaded" in str(raised.value)
    assert not has_changed(harness)
    prepare(harness)
    assert has_changed(harness)


def test_a_reader_who_ends_meanwhile_is_waited_for(harness: PostgresHarness) -> None:
    with open_reader(harness) as reader:
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        changing = threading.Thread(target=prepare, args=(harness,))
        changing.start()
        until(lambda: not changing.is_alive() or harness.database.value(waiting), "a waiter")
        # Others go on reading while the target changes.
        with Readers(harness) as readers:
            reader.rollback()
            changing.join()
            seen = readers.reads
            until(lambda: readers.reads > seen or readers.error is not None, "a read")
    assert readers.error is None
    assert has_changed(harness)


def test_a_view_is_locked_before_its_table_as_its_readers_do(database: Database) -> None:
    """The other way round, a reader of the view and we would wait for each other."""
    shape = make_shape(BEFORE)
    harness = PostgresHarness(database, shape, Rules(mode=Mode.APPEND))
    longer = make_shape(BEFORE + ", x text")
    changing = threading.Thread(
        target=harness.destination.prepare, args=(longer, harness.watermark(), harness.rules)
    )
    held = (
        f"SELECT EXISTS (SELECT FROM pg_locks g WHERE g.pid = w.pid AND g.granted AND g.mode ="
        f" w.mode AND g.relation = '{harness.table}'::regclass) FROM pg_locks w WHERE NOT w.granted"
        f" AND w.mode = 'AccessExclusiveLock' AND w.relation = '{harness.physical}'::regclass"
    )
    with psycopg.connect(database.conninfo) as reader, database.connect() as watcher:
        reader.execute(f"SELECT FROM {harness.physical}")
        changing.start()
        seen = None
        while changing.is_alive() and seen is None:
            seen = watcher.execute(held).fetchone()
        reader.rollback()
    changing.join()
    assert seen == (True,)


def test_a_role_that_does_not_own_the_target_is_told_what_to_run(database: Database) -> None:
    shape = make_shape(BEFORE)
    harness = PostgresHarness(database, shape)
    role = f"loader_{harness.destination.relation.name}"
    database.execute(
        f"CREATE ROLE {role}",
        f"GRANT USAGE ON SCHEMA raw, tidegate TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA raw, tidegate TO {role}",
    )

    def connect(application: str) -> Connection:
        session = open_session(database.conninfo, application)
        session.execute(f"SET ROLE {role}")
        return session

    try:
        destination = replace(harness.destination, connect=connect)
        with pytest.raises(DestinationError, match="must be owner of table") as raised:
            destination.prepare(make_shape(AFTER), harness.watermark(), Rules())
        assert "as its owner, run: ALTER TABLE" in str(raised.value)
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
