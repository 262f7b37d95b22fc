"""The hot statements of jobs go by their indexes, and the depth of the queue is counted right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from databases import Databases
from deployment import depth_query
from integration.job_store import TABLES, Store, open_store, opened, store
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.postgres.queries import statement

__all__ = ["opened", "store"]

FINISHED, WAITING, CLAIMED = 20_000, 8_000, 20
MODES = ["force_custom_plan", "force_generic_plan"]
DAYS = 7 * 86_400.0

FILL = f"""
INSERT INTO jobs (job_id, project, kind, name, resource, payload, lock_at, submitted_by, status,
                  submitted_at, finished_at)
SELECT gen_random_uuid(), 'shop', 'sync', 'n' || n % 50, 'r' || n, '{{}}', 'claim', 'test', 'done',
       now() - n * interval '1 minute', now() - n * interval '1 minute'
FROM generate_series(1, {FINISHED}) n;
INSERT INTO jobs (job_id, project, kind, name, resource, payload, lock_at, submitted_by,
                  submitted_at)
SELECT gen_random_uuid(), 'shop', (ARRAY['sync', 'vacuum'])[1 + n % 2], 'w' || n % 50, 'w' || n,
       '{{}}', 'claim', 'test', now() - interval '1 day' + n * interval '1 second'
FROM generate_series(1, {WAITING + CLAIMED}) n;
INSERT INTO job_queue (job_id, kind, project, priority, visible_at, lock_resource)
SELECT job_id, kind, project, hashtext(name) % 3, submitted_at, resource
FROM jobs WHERE status = 'pending' ORDER BY submitted_at;
INSERT INTO workers (worker_id, host, pid, version, lock_key)
SELECT 'worker ' || n, 'host', n, '0', n FROM generate_series(1, 4) n;
UPDATE job_queue SET claimed_at = now(), claimed_by = 'worker 1', attempt_id = job_id::text,
       lease_until = now(), fence = nextval('fence_tokens')
WHERE job_id IN (SELECT job_id FROM job_queue LIMIT {CLAIMED});
UPDATE jobs j SET status = 'running', attempt_id = q.attempt_id
FROM job_queue q WHERE q.job_id = j.job_id AND q.claimed_at IS NOT NULL;
INSERT INTO table_locks (resource, job_id)
SELECT lock_resource, job_id FROM job_queue WHERE claimed_at IS NOT NULL;
INSERT INTO job_attempts (attempt_id, job_id, worker_id, fence)
SELECT gen_random_uuid()::text, job_id, 'worker 1', 1 FROM jobs WHERE status = 'done';
INSERT INTO job_audit (job_id, event, actor) SELECT job_id, 'submitted', 'test' FROM jobs;
"""


@pytest.fixture(scope="module")
def full(server: EmbeddedServer, kept_databases: Databases) -> Iterator[Store]:
    with open_store(server, kept_databases) as opened:
        opened.session.execute(FILL)
        opened.execute("VACUUM (ANALYZE)")
        yield opened
        opened.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")


Parameters = dict[str, Any]


def claiming(store: Store, limit: int) -> tuple[sql.SQL, Parameters]:
    return store.plane.claiming("pick_ready", limit), {
        "project": "shop",
        "kinds": ["sync", "vacuum"],
        "worker_id": "worker 2",
        "lease": 60.0,
        "sequence": store.plane.sequence,
    }


def plan(store: Store, statement: sql.SQL, parameters: Parameters, mode: str) -> list[Parameters]:
    """The nodes of the plan of a statement that is really run, and rolled back."""
    names = list(parameters)
    types = {float: "float8", bool: "bool", list: "text[]", int: "int"}
    given = sql.SQL(", ").join(
        sql.SQL("{}::" + types.get(type(parameters[name]), "text")).format(parameters[name])
        if not isinstance(parameters[name], str)
        else sql.Literal(parameters[name])
        for name in names
    )
    numbered = statement.as_string(None)
    for place, name in enumerate(names, 1):
        numbered = numbered.replace(f"%({name})s", f"${place}")
    assert "%(" not in numbered
    with store.session.transaction(force_rollback=True):
        store.execute(f"SET LOCAL plan_cache_mode = {mode}")
        store.session.execute("PREPARE hot AS " + numbered)
        execute: sql.Composable = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE hot")
        if names:
            execute = execute + sql.SQL("({})").format(given)
        row = store.session.execute(execute).fetchone()
        assert row is not None
        store.execute("DEALLOCATE hot")
    root = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return list(nodes(root[0]["Plan"]))


def nodes(node: Parameters) -> Iterator[Parameters]:
    yield node
    for below in node.get("Plans", []):
        yield from nodes(below)


def scans_of(found: list[Parameters], relation: str) -> set[tuple[str, str | None]]:
    """How a table is read, and by which index."""
    return {
        (node["Node Type"], node.get("Index Name"))
        for node in found
        if node.get("Relation Name") == relation and node["Node Type"] != "ModifyTable"
    }


def by(found: list[Parameters], index: str) -> Parameters:
    """The one node that reads this index."""
    (node,) = [node for node in found if node.get("Index Name") == index]
    return node


BY_JOB = {("Index Scan", "jobs_pkey")}
BY_CLAIM = {("Index Scan", "job_queue_claimed")}


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_reads_as_many_rows_as_it_takes(full: Store, mode: str) -> None:
    for limit in (1, 10):
        found = plan(full, *claiming(full, limit), mode)
        # Without limits nobody counts how many are claimed.
        assert by(found, "job_queue_claimed")["Actual Loops"] == 0
        found = [node for node in found if node["Actual Loops"]]
        assert scans_of(found, "job_queue") == {
            ("Index Scan", "job_queue_ready"),
            ("Index Scan", "job_queue_pkey"),
        }
        assert scans_of(found, "jobs") == BY_JOB
        assert by(found, "job_queue_ready")["Actual Rows"] <= limit + CLAIMED
        sorted_rows = [node["Actual Rows"] for node in found if node["Node Type"] == "Sort"]
        assert sum(sorted_rows) <= 3 * limit


@pytest.mark.parametrize("mode", MODES)
def test_however_many_wait_for_a_place_what_is_used_up_is_counted_once(
    full: Store, mode: str
) -> None:
    with full.session.transaction(force_rollback=True):
        first = "SELECT job_id FROM job_queue WHERE claimed_at IS NULL LIMIT 3000"
        full.execute("UPDATE job_queue SET limits = '{full}' WHERE claimed_at IS NOT NULL")
        full.execute(
            f"UPDATE job_queue SET limits = '{{full}}', priority = 9 WHERE job_id IN ({first})"
        )
        full.execute("ANALYZE job_queue")
        found = plan(full, *claiming(full, 10), mode)
    counting = by(found, "job_queue_claimed")
    assert (counting["Actual Loops"], counting["Actual Rows"]) == (1, CLAIMED)
    assert by(found, "job_queue_ready")["Actual Rows"] <= 10 + CLAIMED


@pytest.mark.parametrize("mode", MODES)
def test_looking_for_the_dead_and_the_cancelled_reads_only_what_is_claimed(
    full: Store, mode: str
) -> None:
    for project in ("shop", None):
        dead = full.plane.statement("jobs/job_queue", "list_dead")
        found = plan(full, dead, {"resource": None, "project": project}, mode)
        assert (scans_of(found, "job_queue"), scans_of(found, "jobs")) == (BY_CLAIM, BY_JOB)
        assert found[0]["Actual Rows"] == CLAIMED
    half = full.plane.statement("jobs/job_queue", "list_half_cancelled")
    found = plan(full, half, {"project": "shop"}, mode)
    assert (scans_of(found, "job_queue"), scans_of(found, "jobs")) == (BY_CLAIM, BY_JOB)
    for name in ("list_workers", "prune_workers"):
        found = plan(full, full.plane.statement("jobs/workers", name), {}, mode)
        assert {index for _, index in scans_of(found, "job_queue")} == {"job_queue_claimed"}


@pytest.mark.parametrize("mode", MODES)
def test_a_reclaim_goes_by_the_job(full: Store, mode: str) -> None:
    job_id = full.value("SELECT job_id::text FROM job_queue WHERE claimed_at IS NOT NULL")
    parameters = {
        "job_id": job_id,
        "attempt_id": job_id,
        "actor": "test",
        "delay": 0.0,
        "published": False,
        "last": False,
        "channel": "none",
        "most_crashes": 5,
    }
    found = plan(full, full.plane.statement("jobs/job_queue", "reclaim"), parameters, mode)
    assert scans_of(found, "job_queue") == {("Index Scan", "job_queue_pkey")}
    assert scans_of(found, "jobs") == BY_JOB
    assert found[0]["Actual Rows"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_depth_is_counted_in_an_index_without_a_look_at_the_table(full: Store, mode: str) -> None:
    full.execute("VACUUM job_queue")
    found = plan(full, full.plane.statement("jobs/job_queue", "depth"), {}, mode)
    assert scans_of(found, "job_queue") == {("Index Only Scan", "job_queue_waiting")}
    counting = by(found, "job_queue_waiting")
    assert counting["Actual Rows"] == WAITING
    # The pages of what is claimed may still be seen differently by others.
    assert counting["Heap Fetches"] < WAITING / 100


@pytest.mark.parametrize("mode", MODES)
def test_what_died_and_what_is_old_is_not_looked_for_among_all(full: Store, mode: str) -> None:
    died = full.plane.statement("jobs/job_attempts", "count_died")
    found = plan(full, died, {"resources": ["r1", "r2"]}, mode)
    assert "Seq Scan" not in {kind for kind, _ in scans_of(found, "jobs")}
    assert "jobs_resource" in {node.get("Index Name") for node in found}
    text = full.plane.statement("jobs/jobs", "prune_jobs").as_string(None)
    rows = full.session.execute(
        "EXPLAIN " + text,
        {"older_than": DAYS, "limit": 100},
    )
    pruning = "\n".join(row[0] for row in rows)
    assert "jobs_submitted" in pruning
    assert "jobs_recent" in pruning
    assert "Seq Scan on jobs" not in pruning


def test_neither_the_newest_jobs_nor_the_unfinished_ones_are_looked_for_among_all(
    full: Store,
) -> None:
    values: dict[str, object] = {"project": "shop", "job_ids": None, "kinds": None, "names": None}
    values |= {"before_at": None, "before_id": None, "limit": 20}
    text = full.plane.statement("jobs/job_lists", "list_jobs").as_string(None)
    with full.session.transaction(force_rollback=True):
        full.execute("DELETE FROM job_queue WHERE claimed_at IS NULL")
        full.execute("ANALYZE job_queue")
        for statuses, unfinished, index in (
            (None, False, "jobs_submitted"),
            (["running"], True, "jobs_pkey"),
        ):
            rows = full.session.execute(
                "EXPLAIN " + text,
                values | {"statuses": statuses, "unfinished": unfinished},
            )
            found = "\n".join(row[0] for row in rows)
            assert index in found
            assert "Seq Scan on jobs" not in found


def test_ending_well_writes_nothing_more_for_notices(full: Store) -> None:
    """What a job that does not fail pays for notices: no row, and no index on its updates."""
    with full.session.transaction(force_rollback=True):
        rows = full.execute(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)"
            " UPDATE jobs SET status = 'done' WHERE status = 'running'"
        )
    assert "jobs_failed" not in "\n".join(row[0] for row in rows)
    indexes = full.execute(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'tidegate_control'"
        " AND tablename = 'jobs' AND indexdef ~ '(status|finished_at)'"
    )
    assert indexes == []


# The query that KEDA polls

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "kubernetes.md"

# How a queue row came to be, the moments it carries, and how many pods it asks for.
SOON, LATE = "now() + interval '3 minutes'", "now() - interval '1 minute'"
STATES = {
    "pending": ("now() - interval '1 second'", False, "NULL", 1),
    "pending since long": ("now() - interval '30 days'", False, "NULL", 1),
    "pending, to be seen later": ("now() + interval '1 hour'", False, "NULL", 0),
    "claimed": (SOON, True, SOON, 0),
    "claimed, its first lease renewed": (LATE, True, SOON, 0),
    # The sweeper gives it back; a pod could not take it.
    "claimed, its lease over": (LATE, True, LATE, 0),
}


def enqueue(store: Store, state: str) -> None:
    visible_at, claimed, lease_until, _ = STATES[state]
    claim = "now(), 'worker', gen_random_uuid()::text, 7" if claimed else "NULL, NULL, NULL, NULL"
    store.execute(
        f"""
        WITH job AS (
            INSERT INTO jobs (job_id, project, kind, name, resource, payload, submitted_by, status)
            VALUES (gen_random_uuid(), 'shop', 'sync', 'orders', gen_random_uuid()::text, '{{}}',
                    'test', '{"running" if claimed else "pending"}')
            RETURNING job_id
        )
        INSERT INTO job_queue (job_id, project, kind, visible_at, lease_until, claimed_at,
                               claimed_by, attempt_id, fence)
        SELECT job_id, 'shop', 'sync', {visible_at}, {lease_until}, {claim} FROM job
        """
    )


def normalised(query: str) -> str:
    """Without comments and quotes, with single spaces, in lower case."""
    bare = re.sub(r"--.*", "", query).replace('"', "")
    return " ".join(bare.split()).lower()


def test_a_job_asks_for_a_pod_when_it_could_be_claimed_now(store: Store) -> None:
    ours = statement("jobs/job_queue", "depth", schema=sql.Identifier("tidegate_control"))
    assert normalised(depth_query()) == normalised(ours.as_string(None))
    expected = 0
    assert store.execute(depth_query()) == [(0,)]
    for state in STATES:
        for _ in range(2):
            enqueue(store, state)
            expected += STATES[state][-1]
            assert store.execute(depth_query()) == [(expected,)], state
    for status in ("done", "failed", "cancelled"):
        store.execute(
            "INSERT INTO jobs (job_id, project, kind, name, resource, payload, submitted_by,"
            " status, finished_at) VALUES (gen_random_uuid(), 'shop', 'sync', 'orders', 'r', '{}',"
            " 'test', %s, now())",
            status,
        )
    assert store.execute(depth_query()) == [(expected,)]


def test_the_role_that_the_page_makes_can_count_and_no_more(store: Store) -> None:
    (made,) = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    enqueue(store, "pending")
    try:
        store.session.execute(made)
        with store.plane.connect() as connection:
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
        store.session.execute("DROP OWNED BY tidegate_depth; DROP ROLE tidegate_depth")
