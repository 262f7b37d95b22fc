"""The hot statements of the job store go by their indexes, however much has been done before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from psycopg import sql

from integration.job_store import Store, open_store, request
from tidegate.control.bulk import submit_many
from tidegate.postgres.embedded import EmbeddedServer

FINISHED, WAITING, CLAIMED = 100_000, 20_000, 20
MODES = ["force_custom_plan", "force_generic_plan"]

FILL = f"""
INSERT INTO jobs (job_id, project, kind, name, resource, payload, lock_at, submitted_by, status,
                  finished_at)
SELECT gen_random_uuid(), 'shop', 'sync', 'n' || n % 50, 'r' || n, '{{}}', 'claim', 'test', 'done',
       now()
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
def store(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as opened:
        opened.session.execute(FILL)
        opened.execute("VACUUM (ANALYZE)")
        yield opened


def claiming(store: Store, limit: int) -> tuple[sql.SQL, dict[str, Any]]:
    return store.plane.claiming("pick_ready", limit), {
        "project": "shop",
        "kinds": ["sync", "vacuum"],
        "worker_id": "worker 2",
        "lease": 60.0,
        "sequence": store.plane.sequence,
    }


def plan(
    store: Store, statement: sql.SQL, parameters: dict[str, Any], mode: str
) -> list[dict[str, Any]]:
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
        store.session.execute("PREPARE hot AS " + numbered)  # type: ignore[arg-type,operator]
        execute = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE hot")
        if names:
            execute = execute + sql.SQL("({})").format(given)
        row = store.session.execute(execute).fetchone()
        assert row is not None
        store.execute("DEALLOCATE hot")
    root = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return list(nodes(root[0]["Plan"]))


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", []):
        yield from nodes(below)


def scans_of(found: list[dict[str, Any]], relation: str) -> set[tuple[str, str | None]]:
    """How a table is read, and by which index."""
    return {
        (node["Node Type"], node.get("Index Name"))
        for node in found
        if node.get("Relation Name") == relation and node["Node Type"] != "ModifyTable"
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [1, 10])
def test_a_claim_reads_as_many_rows_as_it_takes(store: Store, mode: str, limit: int) -> None:
    found = plan(store, *claiming(store, limit), mode)
    # Without limits nobody counts how many are claimed.
    counting = [node for node in found if node.get("Index Name") == "job_queue_claimed"]
    assert [node["Actual Loops"] for node in counting] == [0]
    found = [node for node in found if node["Actual Loops"]]
    assert scans_of(found, "job_queue") == {
        ("Index Scan", "job_queue_ready"),
        ("Index Scan", "job_queue_pkey"),
    }
    assert scans_of(found, "jobs") == {("Index Scan", "jobs_pkey")}
    (picking,) = [node for node in found if node.get("Index Name") == "job_queue_ready"]
    assert picking["Actual Rows"] <= limit + CLAIMED
    assert sum(node["Actual Rows"] for node in found if node["Node Type"] == "Sort") <= 3 * limit


@pytest.mark.parametrize("mode", MODES)
def test_however_many_wait_for_a_place_what_is_used_up_is_counted_once(
    store: Store, mode: str
) -> None:
    waiting, others = ["full"], 3_000
    with store.session.transaction(force_rollback=True):
        first = "SELECT job_id FROM job_queue WHERE claimed_at IS NULL"
        store.execute("UPDATE job_queue SET limits = %s WHERE claimed_at IS NOT NULL", waiting)
        store.execute(
            f"UPDATE job_queue SET limits = %s, priority = 9 WHERE job_id IN ({first} LIMIT %s)",
            waiting,
            others,
        )
        store.execute("ANALYZE job_queue")
        found = plan(store, *claiming(store, 10), mode)
    (counting,) = [node for node in found if node.get("Index Name") == "job_queue_claimed"]
    assert (counting["Actual Loops"], counting["Actual Rows"]) == (1, CLAIMED)
    (picking,) = [node for node in found if node.get("Index Name") == "job_queue_ready"]
    assert picking["Actual Rows"] <= 10 + CLAIMED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("project", ["shop", None])
def test_looking_for_the_dead_reads_only_what_is_claimed(
    store: Store, mode: str, project: str | None
) -> None:
    statement = store.plane.statement("job_queue", "list_dead")
    found = plan(store, statement, {"resource": None, "project": project}, mode)
    assert scans_of(found, "job_queue") == {("Index Scan", "job_queue_claimed")}
    assert scans_of(found, "jobs") == {("Index Scan", "jobs_pkey")}
    assert found[0]["Actual Rows"] == CLAIMED


@pytest.mark.parametrize("mode", MODES)
def test_looking_for_half_cancelled_jobs_reads_only_what_is_claimed(
    store: Store, mode: str
) -> None:
    statement = store.plane.statement("job_queue", "list_half_cancelled")
    found = plan(store, statement, {"project": "shop"}, mode)
    assert scans_of(found, "job_queue") == {("Index Scan", "job_queue_claimed")}
    assert scans_of(found, "jobs") == {("Index Scan", "jobs_pkey")}


@pytest.mark.parametrize("mode", MODES)
def test_a_reclaim_goes_by_the_job(store: Store, mode: str) -> None:
    (job_id,) = store.execute("SELECT job_id::text FROM job_queue WHERE claimed_at IS NOT NULL")[0]
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
    found = plan(store, store.plane.statement("job_queue", "reclaim"), parameters, mode)
    assert scans_of(found, "job_queue") == {("Index Scan", "job_queue_pkey")}
    assert scans_of(found, "jobs") == {("Index Scan", "jobs_pkey")}
    assert found[0]["Actual Rows"] == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["list_workers", "prune_workers"])
def test_what_a_worker_holds_is_found_by_the_worker(store: Store, mode: str, name: str) -> None:
    found = plan(store, store.plane.statement("workers", name), {}, mode)
    assert {index for _, index in scans_of(found, "job_queue")} == {"job_queue_claimed"}


@pytest.mark.parametrize("mode", MODES)
def test_depth_is_counted_in_an_index_without_a_look_at_the_table(store: Store, mode: str) -> None:
    store.execute("VACUUM job_queue")
    found = plan(store, store.plane.statement("job_queue", "depth"), {}, mode)
    assert scans_of(found, "job_queue") == {("Index Only Scan", "job_queue_waiting")}
    (counting,) = [node for node in found if node["Node Type"] == "Index Only Scan"]
    assert counting["Actual Rows"] == WAITING
    # The pages of what is claimed may still be seen differently by others.
    assert counting["Heap Fetches"] < WAITING / 100


@pytest.mark.parametrize("mode", MODES)
def test_what_died_at_a_table_is_counted_among_its_own_jobs(store: Store, mode: str) -> None:
    statement = store.plane.statement("job_attempts", "count_died")
    found = plan(store, statement, {"resources": ["r1", "r2"]}, mode)
    assert "Seq Scan" not in {kind for kind, _ in scans_of(found, "jobs")}
    assert "jobs_resource" in {node.get("Index Name") for node in found}


def test_an_empty_queue_that_was_just_filled_is_claimed_from_by_its_index(
    server: EmbeddedServer,
) -> None:
    with open_store(server) as store:
        store.execute("ANALYZE job_queue")
        many = (request(resource=str(uuid4())) for _ in range(5_000))
        submit_many(store.session, store.plane, many, "test")
        for mode in MODES:
            found = plan(store, *claiming(store, 10), mode)
            (picking,) = [node for node in found if node.get("Index Name") == "job_queue_ready"]
            assert (picking["Node Type"], picking["Actual Rows"]) == ("Index Scan", 10)
