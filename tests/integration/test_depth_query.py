"""The query that KEDA polls, run against a queue in every state."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from deployment import depth_query
from integration.conftest import Database
from tidegate.control.plane import ControlPlane
from tidegate.postgres.identifiers import statement

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"

# How a queue row came to be, the moments it carries, and how many pods it asks for.
STATES = {
    "pending": ("now() - interval '1 second'", False, "NULL", 1),
    "pending since long": ("now() - interval '30 days'", False, "NULL", 1),
    "pending, to be seen later": ("now() + interval '1 hour'", False, "NULL", 0),
    "claimed": ("now() + interval '3 minutes'", True, "now() + interval '3 minutes'", 0),
    "claimed, its first lease renewed": (
        "now() - interval '1 minute'",
        True,
        "now() + interval '2 minutes'",
        0,
    ),
    # The sweeper gives it back; a pod could not take it.
    "claimed, its lease over": (
        "now() - interval '1 minute'",
        True,
        "now() - interval '1 minute'",
        0,
    ),
}


@pytest.fixture
def control(database: Database) -> Database:
    """A migrated control database with an empty queue."""
    with database.connect() as connection:
        ControlPlane(database.connect).migrate(connection)
    return database


def enqueue(control: Database, state: str) -> None:
    visible_at, claimed, lease_until, _ = STATES[state]
    claim = "now(), 'worker', gen_random_uuid()::text, 7" if claimed else "NULL, NULL, NULL, NULL"
    control.execute(
        f"""
        WITH job AS (
            INSERT INTO tidegate_control.jobs
                (job_id, project, kind, name, resource, payload, submitted_by, status)
            VALUES (gen_random_uuid(), 'shop', 'sync', 'orders', gen_random_uuid()::text, '{{}}',
                    'test', '{"running" if claimed else "pending"}')
            RETURNING job_id
        )
        INSERT INTO tidegate_control.job_queue
            (job_id, project, kind, visible_at, lease_until, claimed_at, claimed_by, attempt_id,
             fence)
        SELECT job_id, 'shop', 'sync', {visible_at}, {lease_until}, {claim} FROM job
        """
    )


def finish(control: Database, status: str) -> None:
    """A job that has left the queue."""
    control.execute(
        sql.SQL(
            "INSERT INTO tidegate_control.jobs"
            " (job_id, project, kind, name, resource, payload, submitted_by, status, finished_at)"
            " VALUES (gen_random_uuid(), 'shop', 'sync', 'orders', 'r', '{{}}', 'test', {}, now())"
        ).format(sql.Literal(status))
    )


def depth(database: Database) -> int:
    """What KEDA would read: one row with one number."""
    ((number,),) = database.execute(depth_query())
    assert isinstance(number, int)
    return number


def test_an_empty_queue_asks_for_no_pod(control: Database) -> None:
    assert depth(control) == 0


@pytest.mark.parametrize("state", STATES)
def test_a_job_counts_when_it_could_be_claimed_now(control: Database, state: str) -> None:
    enqueue(control, state)
    assert depth(control) == STATES[state][-1]
    enqueue(control, state)
    assert depth(control) == 2 * STATES[state][-1]


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_a_finished_job_does_not_count(control: Database, status: str) -> None:
    finish(control, status)
    enqueue(control, "pending")
    assert depth(control) == 1


def test_a_queue_in_all_states_at_once_asks_for_a_pod_a_claimable_job(control: Database) -> None:
    for state in STATES:
        for _ in range(3):
            enqueue(control, state)
    assert depth(control) == 6


def test_the_manifest_has_the_depth_query_of_the_control_plane() -> None:
    ours = statement("control/job_queue", "depth", schema=sql.Identifier("tidegate_control"))
    assert normalised(depth_query()) == normalised(ours.as_string(None))


def normalised(query: str) -> str:
    """Without comments and quotes, with single spaces, in lower case."""
    bare = re.sub(r"--.*", "", query).replace('"', "")
    return " ".join(bare.split()).lower()


def test_the_role_that_the_page_makes_can_count_and_no_more(control: Database) -> None:
    (made,) = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    enqueue(control, "pending")
    try:
        control.execute(made)
        with control.connect() as connection:
            connection.execute("SET ROLE tidegate_depth")
            assert connection.execute(depth_query()).fetchone() == (1,)
            for forbidden in (
                "SELECT payload FROM tidegate_control.jobs",
                "DELETE FROM tidegate_control.job_queue",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(forbidden)
    finally:
        # Roles belong to the whole server, which other tests use too.
        control.execute("DROP OWNED BY tidegate_depth", "DROP ROLE tidegate_depth")
