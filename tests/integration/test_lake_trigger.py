"""The fence in front of the embedded catalog: who may commit, and that nobody waits for ever."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psycopg
import pytest

from integration.conftest import Database
from integration.lake_harness import Lake, LakeHarness, make_lake
from integration.test_lake_healing import EXPIRE, INSERT, REWRITE, maintain, publish
from tidegate.ledger.fences import publisher_name
from tidegate.spark.session import SparkSessions


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


def test_a_stale_session_commits_nothing_of_any_kind_and_a_foreign_one_is_not_hindered(
    lake: Lake,
) -> None:
    harness = LakeHarness(lake)
    publish(harness)
    fence = harness.attempt()
    relation = harness.destination.relation
    names = {
        "table": lake.catalog.quoted(relation),
        "system": "`lake`.system",
        "name": f"'raw.{relation.name}'",
    }
    kinds = (
        INSERT,
        "ALTER TABLE {table} CREATE BRANCH mine",
        "ALTER TABLE {table} ADD COLUMN more int",
        "DELETE FROM {table} WHERE id = 1",
        REWRITE,
        EXPIRE,
    )
    with harness.session(fence.attempt_id) as session:
        session.run(f"INSERT INTO {names['table']} VALUES (8, 'while it held the table', 0)")
        harness.attempt()
        before = harness.metadata_location()
        for text in kinds:
            with pytest.raises(Exception, match=f"attempt {fence.attempt_id} was replaced"):
                session.run(text.format(**names))
    assert harness.metadata_location() == before
    maintain(harness, *kinds)
    assert harness.metadata_location() != before


def hold_commit(harness: LakeHarness, attempt_id: str) -> psycopg.Connection[object]:
    """A session of the attempt in the middle of its commit."""
    connection = psycopg.connect(
        harness.lake.database.conninfo,
        application_name=publisher_name(attempt_id),
        options=f"-c tidegate.attempt={attempt_id}",
    )
    connection.execute(
        f"UPDATE {harness.lake.schema}.iceberg_tables SET metadata_location = metadata_location"  # type: ignore[arg-type]
    )
    return connection


def test_a_fence_raised_during_a_commit_waits_for_it_and_not_for_ever(lake: Lake) -> None:
    harness = LakeHarness(lake, lock_timeout_seconds=0.5)
    with hold_commit(harness, harness.attempt().attempt_id) as held:
        raised = threading.Event()

        def take_over() -> None:
            harness.attempt()
            raised.set()

        thread = threading.Thread(target=take_over)
        started = time.monotonic()
        thread.start()
        assert not raised.wait(0.2)
        thread.join(10)
        assert raised.is_set()
        assert time.monotonic() - started < 10
        with pytest.raises(psycopg.OperationalError):
            held.execute("SELECT 1")


def test_a_commit_that_waits_for_the_fence_gives_up_in_time(lake: Lake) -> None:
    harness = LakeHarness(lake)
    attempt_id = harness.attempt().attempt_id
    with lake.database.connect() as holder, holder.transaction():
        holder.execute(f"SELECT FROM {lake.schema}.fences FOR UPDATE")  # type: ignore[arg-type]
        started = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            hold_commit(harness, attempt_id)
        assert time.monotonic() - started < 20


def test_a_session_that_was_idle_for_too_long_is_ended_and_opened_again(lake: Lake) -> None:
    harness = LakeHarness(lake)
    publish(harness)
    fence = harness.attempt()
    name = publisher_name(fence.attempt_id)
    table = lake.catalog.quoted(harness.destination.relation)
    with harness.session(fence.attempt_id) as session:
        session.run(f"INSERT INTO {table} VALUES (8, 'before', 0)")
        ended = lake.database.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            f" WHERE application_name = '{name}'"
        )
        assert ended == [(True,)]
        session.run(f"INSERT INTO {table} VALUES (9, 'after', 0)")
        idle = lake.database.execute(
            "SELECT count(*) FROM pg_stat_activity"
            f" WHERE application_name = '{name}' AND state = 'idle'"
        )
        assert idle == [(1,)]
    assert {row[1] for row in harness.rows()} >= {"before", "after"}
    left = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    deadline = time.monotonic() + 10
    while lake.database.value(left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lake.database.value(left) == 0
