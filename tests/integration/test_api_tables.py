"""Tables over HTTP: listed, cached and live, their health, and names of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import psycopg
import pytest

from integration.cached_lakes import ITEMS, ORDERS, add_files, cared_place, refresh, small_files
from integration.conftest import MakePlace, Place
from integration.served import problem, serving
from tidegate.control.lake_tables import LakeTables
from tidegate.lake.table_facts import read_facts
from tidegate.model.relation import Endpoint, Relation
from tidegate.project import Project

STATUS = "/tables/raw/orders/status"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = cared_place(make_place, maintenance={"thresholds": {}, "refresh": "1 hour"})
    small_files(place, ORDERS, files=6)
    return place


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with place.open() as opened:
        yield opened


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with serving(project) as client:
        yield client


def test_a_refresh_finds_the_tables_and_what_is_cached_changes_only_by_one(
    place: Place, client: httpx.Client
) -> None:
    assert client.get("/tables").json()["tables"] == []
    problem(client.get(f"{STATUS}/cached"), 404, "table-not-found")
    assert client.post("/tables/refresh").json()["read"] == 1
    listed = client.get("/tables").json()
    assert [one["table"] for one in listed["tables"]] == ["lake:raw.orders"]
    assert listed["catalogs"][0]["stale_reason"] is None
    cached = client.get(f"{STATUS}/cached").json()
    assert cached["facts"]["data"]["files"] == 6
    assert (cached["live"], cached["stale"]) == (False, False)
    add_files(place)
    assert client.get(f"{STATUS}/cached").json()["facts"]["data"]["files"] == 6
    live = client.get(STATUS).json()
    assert (live["live"], live["facts"]["data"]["files"]) == (True, 7)
    client.post("/tables/refresh")
    assert client.get(f"{STATUS}/cached").json()["facts"]["data"]["files"] == 7


def test_tables_come_in_pages_each_once(place: Place, client: httpx.Client) -> None:
    small_files(place, ITEMS, files=1)
    small_files(place, Relation("Other", "a/b"), files=1)
    refresh(place)
    first = client.get("/tables?limit=2").json()
    second = client.get(first["next"]).json()
    found = [one["table"] for page in (first, second) for one in page["tables"]]
    assert found == ['lake:"Other"."a/b"', "lake:raw.items", "lake:raw.orders"]
    assert second["next"] is None


@pytest.mark.parametrize(
    "relation",
    [
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
    ],
    ids=str,
)
def test_a_table_of_any_name_is_found(
    project: Project, client: httpx.Client, relation: Relation
) -> None:
    remember(project, Endpoint("lake", relation))
    for db in (relation.schema, f"lake:{relation.schema}"):
        path = f"/tables/{quote(db, safe='')}/{quote(relation.name, safe='')}"
        path = path.replace("..", "%2E%2E")
        found = client.get(httpx.URL(str(client.base_url) + path + "/status/cached"))
        assert found.status_code == 200, found.text
        assert (found.json()["namespace"], found.json()["name"]) == (
            relation.schema,
            relation.name,
        )
        assert client.get(f"{path}/health").json()["state"] == "good"
        assert client.get(f"{path}/maintenance/history").json()["jobs"] == []


@pytest.mark.parametrize("name", ["nothing", "%00", "a%00b", "%ff", "%F0%28%8C%BC", "x" * 3000])
def test_a_table_that_is_not_there_is_not_found(
    project: Project, client: httpx.Client, name: str
) -> None:
    remember(project, Endpoint("lake", ORDERS))
    for route in ("status", "status/cached", "health", "maintenance/recommendation"):
        problem(client.get(f"/tables/raw/{name}/{route}"), 404, "table-not-found")
        problem(client.get(f"/tables/{name}/orders/{route}"), 404, "table-not-found")


def test_a_table_that_several_lakes_have_is_asked_for_with_its_lake(
    make_place: MakePlace,
) -> None:
    place = cared_place(make_place)
    toml = place.folder / "tidegate.toml"
    toml.write_text(toml.read_text() + '\n[connections.second]\ntype = "iceberg"\n')
    with place.open() as project, serving(project) as client:
        small_files(place, ORDERS, files=2)
        remember(project, Endpoint("lake", ORDERS))
        remember(project, Endpoint("second", ORDERS), like=Endpoint("lake", ORDERS))
        found = problem(client.get(f"{STATUS}/cached"), 422, "table-ambiguous")
        assert sorted(found["choices"]) == ["lake:raw.orders", "second:raw.orders"]
        assert "lake:raw.orders" in found["detail"]
        assert "second:raw.orders" in found["detail"]
        for lake in ("lake", "second"):
            answer = client.get(f"/tables/{lake}:raw/orders/status/cached")
            assert answer.json()["table"] == f"{lake}:raw.orders"


def test_health_says_what_is_not_well_and_what_helps(place: Place, client: httpx.Client) -> None:
    refresh(place)
    good = client.get("/tables/raw/orders/health").json()
    assert good["state"] == "good"
    add_files(place, files=16)
    assert client.get("/tables/raw/orders/health").json()["state"] == "good"
    bad = client.get("/tables/raw/orders/health?live=true").json()
    assert bad["state"] == "warning"
    assert [one["action"] for one in bad["health"]["issues"]] == ["rewrite_data_files"]
    advice = client.get("/tables/raw/orders/maintenance/recommendation?predict=true").json()
    assert "rewrite_data_files" in advice["order"]
    assert advice["predicted"]["rewrite_data_files"]["before"]["files"] == 22
    assert client.get("/tables").json()["tables"][0]["state"] == "warning"


def test_a_table_that_is_gone_is_forgotten(place: Place, client: httpx.Client) -> None:
    refresh(place)
    with psycopg.connect(place.control.conninfo, autocommit=True) as connection:
        schema = connection.execute(
            "SELECT schemaname FROM pg_tables WHERE tablename = 'iceberg_tables'"
        ).fetchone()
        assert schema is not None
        connection.execute(f'DELETE FROM "{schema[0]}".iceberg_tables')  # type: ignore[arg-type]
    assert client.get(f"{STATUS}/cached").status_code == 200
    problem(client.get(STATUS), 404, "table-not-found")
    problem(client.get(f"{STATUS}/cached"), 404, "table-not-found")


def remember(project: Project, target: Endpoint, like: Endpoint | None = None) -> None:
    """Put a table into the cache, whatever the catalog says."""
    source = like or Endpoint("lake", ORDERS)
    facts = read_facts(project.context.catalog(source.connection), source.relation)
    assert facts is not None
    tables = LakeTables(project.context.plane, project.name)
    with project.context.plane.connect() as control:
        tables.put(control, target, facts, tables.clock(control))
