"""Tables and their maintenance over HTTP: what is told, one job a table, and every refusal."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from psycopg import sql

from databases import Databases
from integration.cached_lakes import (
    ITEMS,
    ORDERS,
    TARGET,
    add_files,
    cared_place,
    forget_all,
    refresh,
    small_files,
)
from integration.conftest import Place
from integration.filled_lakes import schema_of
from integration.served import make_token, problem, serving
from integration.shared_places import shared_places
from tidegate.core.identity import Scope
from tidegate.core.relation import Endpoint, Relation
from tidegate.maintenance.facts import read_facts
from tidegate.maintenance.table_cache import TableCache
from tidegate.project import Project

GROWING = Relation("raw", "growing")
PATH = "/tables/raw/orders/maintenance"
EXPIRE = {"actions": ["expire_snapshots"]}
ODD = (
    Relation("raw", "with.dot"),
    Relation("a.b", "c"),
    Relation("raw", "a/b"),
    Relation("raw", "100%"),
    Relation("raw", "%2F"),
    Relation("raw", 'quo"ted'),
    Relation("raw", "ünïcode ☃"),
    Relation("raw", "with space?and#more"),
    Relation("raw", "a:b"),
    Relation("..", ".."),
)


@pytest.fixture(scope="module")
def shared(kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """raw.orders has six small files, raw.items one; a second lake has no table."""
    settings = {"thresholds": {"small_files": 8}, "refresh": "1 hour"}
    with shared_places(kept_databases, tmp_path_factory.mktemp("tables")) as make:
        place = cared_place(
            make, '[connections.second]\ntype = "iceberg"', databases=1, maintenance=settings
        )
        small_files(place, ORDERS)
        small_files(place, ITEMS, files=1)
        yield place


@pytest.fixture
def place(shared: Place) -> Place:
    """Nothing was asked for yet, and nothing is cached."""
    forget_all(shared)
    return shared


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with place.open() as opened:
        yield opened


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with serving(project) as client:
        yield client


@pytest.fixture
def cached(place: Place) -> None:
    refresh(place)


def remember(project: Project, *targets: Endpoint) -> None:
    """Put tables into the cache, whatever the catalog says."""
    facts = read_facts(project.context.catalog("lake"), ORDERS)
    assert facts is not None
    tables = TableCache(project.context.plane, project.name)
    with project.context.plane.connect() as control:
        for target in targets:
            tables.put(control, target, facts, tables.clock(control))


def jobs(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/jobs").json()["jobs"]
    return found


def test_what_is_cached_changes_by_a_refresh_and_live_is_what_is_there(
    place: Place, client: httpx.Client
) -> None:
    table = "/tables/raw/growing"
    small_files(place, GROWING, files=6)
    assert client.get("/tables").json()["tables"] == []
    problem(client.get(f"{table}/status/cached"), 404, "table-not-found")
    assert client.post("/tables/refresh").json()["read"] == 3
    listed = client.get("/tables").json()
    names = ["lake:raw.growing", "lake:raw.items", "lake:raw.orders"]
    assert [one["table"] for one in listed["tables"]] == names
    assert listed["catalogs"][0]["stale_reason"] is None
    first = client.get("/tables?limit=2").json()
    second = client.get(first["next"]).json()
    found = [one["table"] for page in (first, second) for one in page["tables"]]
    assert (found, second["next"]) == (names, None)

    cached = client.get(f"{table}/status/cached").json()
    assert (cached["facts"]["data"]["files"], cached["live"], cached["stale"]) == (6, False, False)
    assert client.get(f"{table}/health").json()["state"] == "good"
    add_files(place, GROWING, files=3)
    assert client.get(f"{table}/status/cached").json()["facts"]["data"]["files"] == 6
    assert client.get(f"{table}/health").json()["state"] == "good"
    live = client.get(f"{table}/status").json()
    assert (live["live"], live["facts"]["data"]["files"]) == (True, 9)
    bad = client.get(f"{table}/health?live=true").json()
    assert bad["state"] == "warning"
    assert [one["action"] for one in bad["health"]["issues"]] == ["rewrite_data_files"]
    advice = client.get(f"{table}/maintenance/recommendation?predict=true").json()
    assert "rewrite_data_files" in advice["order"]
    assert advice["predicted"]["rewrite_data_files"]["before"]["files"] == 9
    client.post("/tables/refresh")
    assert client.get(f"{table}/status/cached").json()["facts"]["data"]["files"] == 9
    assert client.get("/tables").json()["tables"][0]["state"] == "warning"

    rows = sql.Identifier(schema_of(place), "iceberg_tables")
    gone = sql.SQL("DELETE FROM {} WHERE table_name = 'growing'")
    place.control.execute(gone.format(rows))
    assert client.get(f"{table}/status/cached").status_code == 200
    problem(client.get(f"{table}/status"), 404, "table-not-found")
    problem(client.get(f"{table}/status/cached"), 404, "table-not-found")


def test_a_table_of_any_name_is_found_and_one_that_is_not_there_is_not(
    project: Project, client: httpx.Client
) -> None:
    remember(project, *(Endpoint("lake", one) for one in (ORDERS, *ODD)))
    for relation in ODD:
        for db in (relation.schema, f"lake:{relation.schema}"):
            path = f"/tables/{quote(db, safe='')}/{quote(relation.name, safe='')}"
            path = path.replace("..", "%2E%2E")
            found = client.get(httpx.URL(str(client.base_url) + path + "/status/cached"))
            assert found.status_code == 200, found.text
            names = (found.json()["namespace"], found.json()["name"])
            assert names == (relation.schema, relation.name)
        assert client.get(f"{path}/health").json()["state"] == "good"
        assert client.get(f"{path}/maintenance/history").json()["jobs"] == []
    for name in ("nothing", "%00", "a%00b", "%ff", "%F0%28%8C%BC", "x" * 3000):
        for route in ("status", "status/cached", "health", "maintenance/recommendation"):
            problem(client.get(f"/tables/raw/{name}/{route}"), 404, "table-not-found")
            problem(client.get(f"/tables/{name}/orders/{route}"), 404, "table-not-found")

    # A table that several lakes have is asked for with its lake.
    remember(project, Endpoint("second", ORDERS))
    ambiguous = client.get("/tables/raw/orders/status/cached")
    told = problem(ambiguous, 422, "table-ambiguous")
    assert sorted(told["choices"]) == ["lake:raw.orders", "second:raw.orders"]
    assert "lake:raw.orders" in told["detail"]
    assert "second:raw.orders" in told["detail"]
    for lake in ("lake", "second"):
        answer = client.get(f"/tables/{lake}:raw/orders/status/cached")
        assert answer.json()["table"] == f"{lake}:raw.orders"


@pytest.mark.usefixtures("cached")
def test_maintenance_is_queued_with_the_options_of_the_project_and_of_the_request(
    client: httpx.Client,
) -> None:
    wish = {
        "actions": ["rewrite_data_files", "expire_snapshots"],
        "options": {"expire_snapshots": {"older_than": "2 days"}},
        "priority": 7,
    }
    answer = client.post(PATH, json=wish)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["job_id"]
    assert answer.headers["location"] == f"/jobs/{job_id}"
    assert "idempotent-replay" not in answer.headers
    job = client.get(answer.headers["location"]).json()
    assert job == answer.json()["job"]
    assert (job["kind"], job["name"], job["priority"]) == ("maintenance", str(TARGET), 7)
    order = job["payload"]["order"]
    assert list(order) == ["expire_snapshots", "rewrite_data_files"]
    assert order["expire_snapshots"] == {"older_than_seconds": 172_800.0, "retain_last": 1}
    assert job["submitted_by"] == "loopback (HTTP)"
    line = client.get("/audit").json()["lines"][0]
    assert (line["object"], line["outcome"], line["job_id"]) == (str(TARGET), "queued", job_id)

    # A dry run takes nothing; history has both, in pages.
    wish = {
        "actions": ["rewrite_data_files"],
        "options": {"rewrite_data_files": {"min_input_files": 2}},
        "dry_run": True,
    }
    dry = client.post(PATH, json=wish, headers={"Idempotency-Key": "k"})
    assert dry.status_code == 202, dry.text
    effect = dry.json()["predicted"]["rewrite_data_files"]
    assert (effect["before"]["files"], effect["after"]["files"]) == (6, 1)
    found = client.get(dry.headers["location"]).json()
    assert (found["status"], found["actions"], found["attempts"]) == ("done", [], [])
    again = client.post(PATH, json=wish, headers={"Idempotency-Key": "k"})
    assert again.headers["location"] == dry.headers["location"]
    assert again.headers["idempotent-replay"] == "true"
    assert again.json() == dry.json()
    assert client.get(f"/jobs/{job_id}").json()["status"] == "pending"
    more = [client.post(PATH, json=EXPIRE | {"dry_run": True}).json()["job_id"] for _ in range(2)]
    seen, address = [], f"{PATH}/history?limit=2"
    while address:
        page = client.get(address).json()
        seen += [(one["job_id"], one["dry_run"]) for one in page["jobs"]]
        address = page["next"]
    assert seen == [*((one, True) for one in [*more[::-1], found["job_id"]]), (job_id, False)]


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.chaos)])
def test_of_many_submissions_at_once_one_is_taken(client: httpx.Client, count: int) -> None:
    start = threading.Barrier(count)

    def submit(_: int) -> tuple[int, str | None]:
        start.wait()
        answer = client.post(PATH, json=EXPIRE)
        while answer.status_code == 503:
            # So many at once wait for a place, and are asked to come again.
            assert answer.headers["retry-after"]
            answer = client.post(PATH, json=EXPIRE)
        body = answer.json()
        holder = body.get("holder")
        assert holder == answer.headers.get("holder")
        return answer.status_code, holder or body["job_id"]

    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(submit, range(count)))
    assert Counter(status for status, _ in answers) == {202: 1, 409: count - 1}
    assert len({job_id for _, job_id in answers}) == 1
    assert len(jobs(client)) == 1
    lines = client.get("/audit?limit=500").json()["lines"]
    outcomes = Counter(one["outcome"] for one in lines if not one["outcome"].startswith("503"))
    assert outcomes == {"queued": 1, "409 table-busy": count - 1}


@pytest.mark.usefixtures("cached")
def test_the_same_key_gives_the_same_job_and_is_refused_for_other_work(
    client: httpx.Client,
) -> None:
    headers = httpx.Headers({"Idempotency-Key": "tonight % ünd"}, encoding="utf-8")
    with ThreadPoolExecutor(8) as pool:
        sent = pool.map(lambda _: client.post(PATH, json=EXPIRE, headers=headers), range(20))
        answers = list(sent)
    assert {one.status_code for one in answers} == {202}
    assert len({one.headers["location"] for one in answers}) == 1
    replays = [one.headers.get("idempotent-replay") for one in answers]
    assert Counter(replays) == {None: 1, "true": 19}
    for path, body in (
        (PATH, {"actions": ["rewrite_manifests"]}),
        (PATH, EXPIRE | {"options": {"expire_snapshots": {"retain_last": 9}}}),
        (PATH, EXPIRE | {"dry_run": True}),
        ("/tables/raw/items/maintenance", EXPIRE),
    ):
        problem(client.post(path, json=body, headers=headers), 422, "idempotency-key-reused")
    assert len(jobs(client)) == 1

    # A refusal leaves another key free.
    job_id = answers[0].json()["job_id"]
    free = {"Idempotency-Key": "k"}
    problem(client.post(PATH, json=EXPIRE, headers=free), 409, "table-busy")
    client.post(f"/jobs/{job_id}/cancel")
    after = client.post(PATH, json=EXPIRE, headers=headers)
    assert (after.status_code, after.json()["job_id"]) == (202, job_id)
    assert after.json()["job"]["status"] == "cancelled"
    assert len(jobs(client)) == 1
    client.put("/drain", json={"draining": True})
    problem(client.post(PATH, json=EXPIRE, headers=free), 503, "draining")
    client.put("/drain", json={"draining": False})
    other = {"actions": ["rewrite_manifests"]}
    assert client.post(PATH, json=other, headers=free).status_code == 202


@pytest.mark.usefixtures("cached")
def test_what_is_wrong_is_told_in_order_a_drain_the_body_the_table(client: httpx.Client) -> None:
    expire, orphans = "expire_snapshots", "remove_orphan_files"
    for body, field, known in (
        ({"actions": ["dance"]}, "actions", "rewrite_manifests"),
        ({"actions": []}, "actions", expire),
        ({"actions": expire}, "actions", None),
        ({}, "actions", None),
        (EXPIRE | {"dry_run": "yes"}, "dry_run", None),
        (EXPIRE | {"colour": 1}, "colour", None),
        (EXPIRE | {"priority": 5000}, "priority", None),
        (EXPIRE | {"options": {"dance": {}}}, "options.dance", expire),
        (EXPIRE | {"options": {"rewrite_manifests": {}}}, "options.rewrite_manifests", None),
        (EXPIRE | {"options": {expire: {"older": 1}}}, f"options.{expire}.older", "older_than"),
        (EXPIRE | {"options": {expire: {"retain_last": 0}}}, f"options.{expire}.retain_last", None),
        (
            EXPIRE | {"options": {expire: {"older_than": "soon\ud800"}}},
            f"options.{expire}.older_than",
            None,
        ),
        (
            {"actions": [orphans], "options": {orphans: {"older_than": "1 hour"}}},
            f"options.{orphans}.older_than",
            None,
        ),
        ({"actions": ["\ud800"]}, "actions", expire),
    ):
        sent = {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}
        found = problem(client.post(PATH, **sent), 422, "invalid-request")  # type: ignore[arg-type]
        assert [one["field"] for one in found["errors"]] == [field]
        assert found["errors"][0]["message"]
        assert known is None or known in found["errors"][0]["known"]
    assert jobs(client) == []

    nowhere, nonsense = "/tables/raw/nothing/maintenance", {"actions": ["dance"]}
    client.post(PATH, json=EXPIRE)
    client.put("/drain", json={"draining": True})
    for path, body in ((nowhere, nonsense), (PATH, nonsense), (PATH, EXPIRE), (PATH, {})):
        answer = client.post(path, json=body)
        problem(answer, 503, "draining")
        assert int(answer.headers["retry-after"]) > 0
    client.put("/drain", json={"draining": False})
    problem(client.post(nowhere, json=nonsense), 422, "invalid-request")
    problem(client.post(nowhere, json=EXPIRE), 404, "table-not-found")
    problem(client.post(PATH, json=EXPIRE), 409, "table-busy")


@pytest.mark.usefixtures("cached")
def test_what_keeps_less_than_the_policy_needs_more_than_submit(
    project: Project, client: httpx.Client
) -> None:
    token = make_token(project, "nightly", Scope.SUBMIT)
    admin = make_token(project, "a", Scope.ADMIN)
    for action, older, allowed in (
        ("expire_snapshots", "0s", admin),
        ("remove_orphan_files", "1 day", admin),
        ("remove_orphan_files", "30 days", token),
    ):
        wish = {"actions": [action], "options": {action: {"older_than": older}}}
        dry = client.post(PATH, json={**wish, "dry_run": True}, headers=token)
        assert dry.status_code == 202, dry.text
        if allowed is admin:
            refused = problem(client.post(PATH, json=wish, headers=token), 403, "forbidden")
            assert refused["needed"] == "admin"
        answer = client.post(PATH, json=wish, headers=allowed)
        assert answer.status_code == 202, answer.text
        job = answer.json()["job"]
        client.post(f"/jobs/{job['job_id']}/cancel", headers=admin)
    # The last one says which token asked for it.
    assert job["submitted_by"] == "token nightly (HTTP)"
    assert job["payload"]["requested_by"] == "token nightly (HTTP)"
