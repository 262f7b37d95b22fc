"""Syncs, watermarks, markers and metrics over HTTP, after a real run."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.cached_lakes import ORDERS, cared_place, refresh, small_files
from integration.conftest import MakePlace, MakeProject
from integration.served import problem, serving

SYNC = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "updated_at"}
GROUP = {"name": "all", "source": "shop:public.c*", "target": "warehouse:raw.{table}"}


@pytest.fixture
def client(make_project: MakeProject) -> Iterator[httpx.Client]:
    project, place = make_project(SYNC, GROUP)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT n, now() - interval '1 day' FROM generate_series(1, 3) n",
        "CREATE TABLE customers (id int PRIMARY KEY, updated_at timestamptz NOT NULL)",
    )
    project.run("orders")
    with serving(project) as client:
        yield client


def test_syncs_watermarks_and_markers_say_what_a_run_has_left(client: httpx.Client) -> None:
    syncs = {one["sync"]: one for one in client.get("/syncs").json()["syncs"]}
    assert (syncs["orders"]["state"], syncs["orders"]["rows"]) == ("done", 3)
    assert (syncs["all"]["state"], syncs["all"]["is_group"]) == ("never ran", True)
    job = client.get(f"/jobs/{syncs['orders']['job_id']}").json()
    assert (job["kind"], job["status"], job["rows"]) == ("sync", "done", 3)
    live = {one["sync"]: one for one in client.get("/syncs?live=true").json()["syncs"]}
    assert set(live) == {"orders", "all.customers"}
    assert live["orders"]["lag"]["seconds"] > 80_000
    marks = {one["sync"]: one for one in client.get("/watermarks").json()["watermarks"]}
    assert marks["orders"]["rows"] == 3
    assert marks["orders"]["watermark"] == live["orders"]["watermark"]
    markers = client.get("/markers?connection=warehouse&table=raw.orders").json()["markers"]
    assert [one["table"] for one in markers] == ["raw.orders"]
    assert markers == client.get("/markers").json()["markers"]
    assert client.get("/markers?table=raw.others").json()["markers"] == []
    found = problem(client.get("/markers?connection=nowhere"), 422, "invalid-request")
    assert found["errors"][0]["known"] == ["shop", "warehouse"]
    for bad in ("table=%00", "table=a..b", "limit=0"):
        problem(client.get(f"/markers?{bad}"), 422, "invalid-request")
    samples = metrics(client)
    assert samples["tidegate_jobs", "sync", "done"] == 1
    assert samples["tidegate_sync_failed", "orders"] == 0
    assert samples["tidegate_sync_late_rows", "orders"] == 0


def test_metrics_tell_of_queue_tables_and_requests(make_place: MakePlace) -> None:
    place = cared_place(make_place)
    small_files(place, ORDERS, files=6)
    refresh(place)
    with place.open() as project, serving(project) as client:
        client.get("/tables")
        client.get("/tables")
        client.get("/nowhere/1")
        client.get("/nowhere/2")
        client.request("PROPFIND", "/jobs")
        client.post("/tables/raw/orders/maintenance", json={"actions": ["expire_snapshots"]})
        found = metrics(client)
    assert found["tidegate_queue_depth", "maintenance"] == 1
    assert found["tidegate_jobs", "maintenance", "pending"] == 1
    assert found["tidegate_jobs_running", "maintenance"] == 0
    assert 0 <= found["tidegate_queue_oldest_seconds", "maintenance"] < 60
    assert found["tidegate_table_data_files", "lake:raw.orders"] == 6
    assert found["tidegate_table_snapshots", "lake:raw.orders"] == 6
    assert found["tidegate_table_issues", "critical", "lake:raw.orders"] == 0
    assert 0 <= found["tidegate_table_cache_age_seconds", "lake"] < 60
    assert found["tidegate_table_cache_error", "lake"] == 0
    assert found["tidegate_draining",] == 0
    assert found["tidegate_http_requests_total", "GET", "/tables", "200"] == 2
    assert found["tidegate_http_requests_total", "GET", "(none)", "404"] == 2
    assert found["tidegate_http_requests_total", "other", "/jobs", "405"] == 1
    route = "/tables/{db}/{table}/maintenance"
    assert found["tidegate_http_requests_total", "POST", route, "202"] == 1
    assert found["tidegate_http_request_seconds_count", "/tables"] == 2


def metrics(client: httpx.Client) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    names = [one.name for one in families]
    assert len(names) == len(set(names))
    assert all(one.documentation for one in families)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
