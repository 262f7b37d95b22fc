"""What is read over HTTP: syncs, watermarks, markers, metrics, runs; and a table made well."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.cached_lakes import ORDERS as TABLE
from integration.cached_lakes import cared_place, small_files
from integration.conftest import MakePlace, open_without_spark
from integration.orders import ORDERS
from integration.recorded import Bench, open_bench
from integration.served import problem, serving
from tidegate.jobs.attempt import LiveAttempt
from tidegate.jobs.job import VACUUM
from tidegate.spark.session import SparkSessions

GROUP = {"name": "all", "source": "shop:public.c*", "target": "warehouse:raw.{table}"}
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "service.md"
MAINTENANCE = "/tables/raw/orders/maintenance"
REWRITE = {
    "actions": ["rewrite_data_files"],
    "options": {"rewrite_data_files": {"min_input_files": 2}},
}


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


def test_syncs_watermarks_and_markers_say_what_a_run_has_left(make_place: MakePlace) -> None:
    place = make_place(ORDERS, GROUP)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT n, now() - interval '1 day' FROM generate_series(1, 3) n",
        "CREATE TABLE customers (id int PRIMARY KEY, updated_at timestamptz NOT NULL)",
    )
    project = open_without_spark(place)
    project.run("orders")
    with closing(project.context.databases), serving(project) as client:
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


def test_the_requests_of_the_page_lead_from_bad_health_to_good(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    block = re.search(r"^```sh\n(curl .*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert block is not None
    lines = block.group(1).splitlines()
    assert len(lines) > 6
    place = cared_place(make_place)
    small_files(place, TABLE, files=22)
    project = place.open(warm_spark)
    with closing(project.context.databases), serving(project) as client:
        told = []
        for line in lines:
            done = subprocess.run(
                ["sh", "-c", f"{line} --fail-with-body"],
                env={"TIDEGATE": str(client.base_url).rstrip("/"), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            told.append(done.stdout)
        answers = [json.loads(text) for text in told[:-1]]
        assert answers[0]["read"] == 1
        assert answers[1]["tables"][0]["table"] == "lake:raw.orders"
        assert answers[2]["state"] == "warning"
        assert "rewrite_data_files" in answers[3]["predicted"]
        assert answers[4]["predicted"]["rewrite_data_files"]["after"]["files"] == 1
        queued = answers[5]["job_id"]
        assert [one["job_id"] for one in answers[6]["jobs"]] == [queued]
        assert [one["dry_run"] for one in answers[7]["jobs"]] == [False, True]
        look_at_metrics(client)

        # A real worker, with Spark, does what is asked for.
        client.post(f"/jobs/{queued}/cancel")
        job = client.post(MAINTENANCE, json=REWRITE).headers["location"]
        tag = client.get(job).headers["etag"]
        assert client.get(job).json()["state"] == "waiting"
        project.worker(kinds=["maintenance"], once=True).run()
        ended = client.get(job, headers={"If-None-Match": tag}).json()
        assert (ended["status"], ended["error"]) == ("done", None)
        (action,) = ended["actions"]
        assert (action["detail"]["files_before"], action["detail"]["files_after"]) == (22, 1)
        assert action["detail"]["predicted"]["after"]["files"] == 1
        assert client.get("/tables/raw/orders/health?live=true").json()["state"] == "good"
        history = client.get(f"{MAINTENANCE}/history").json()["jobs"]
        assert [(one["status"], one["dry_run"]) for one in history] == [
            ("done", False),
            ("cancelled", False),
            ("done", True),
        ]
        problem(client.post(f"{job}/cancel"), 409, "job-ended")


def look_at_metrics(client: httpx.Client) -> None:
    """One job waits by now, and the table has 22 files."""
    client.get("/nowhere/1")
    client.get("/nowhere/2")
    client.request("PROPFIND", "/jobs")
    found = metrics(client)
    assert found["tidegate_queue_depth", "maintenance"] == 1
    assert found["tidegate_jobs", "maintenance", "pending"] == 1
    assert found["tidegate_jobs_running", "maintenance"] == 0
    assert 0 <= found["tidegate_queue_oldest_seconds", "maintenance"] < 60
    assert found["tidegate_table_data_files", "lake:raw.orders"] == 22
    assert found["tidegate_table_snapshots", "lake:raw.orders"] == 22
    assert found["tidegate_table_issues", "critical", "lake:raw.orders"] == 0
    assert 0 <= found["tidegate_table_cache_age_seconds", "lake"] < 60
    assert found["tidegate_table_cache_error", "lake"] == 0
    assert found["tidegate_draining",] == 0
    requests = "tidegate_http_requests_total"
    assert found[requests, "GET", "/tables", "200"] == 1
    assert found[requests, "GET", "(none)", "404"] == 2
    assert found[requests, "other", "/jobs", "405"] == 1
    assert found[requests, "POST", "/tables/{db}/{table}/maintenance", "202"] == 2
    assert found["tidegate_http_request_seconds_count", "/tables"] == 1


@pytest.fixture
def bench(make_place: MakePlace) -> Iterator[Bench]:
    with open_bench(make_place(ORDERS)) as opened:
        yield opened


@pytest.fixture
def client(bench: Bench) -> Iterator[httpx.Client]:
    with serving(bench.project) as client:
        yield client


def succeed(attempt: LiveAttempt) -> dict[str, Any]:
    attempt.record("load", {"rows": 3})
    return {"rows": 3}


def break_down(_: LiveAttempt) -> dict[str, Any]:
    raise RuntimeError("the disk is full")


def test_runs_come_in_pages_the_newest_first_each_once(bench: Bench, client: httpx.Client) -> None:
    for _ in range(5):
        bench.work(succeed)
    seen: list[str] = []
    address: str | None = "/tasks?limit=2&name=orders"
    while address is not None:
        page = client.get(address).json()
        bench.work(succeed, "later")
        seen += [one["id"] for one in page["tasks"]]
        address = page["next"]
    made = [str(one.id) for one in bench.tasks() if one.name == "orders"]
    assert seen == made[::-1]
    assert len(seen) == 5


def test_runs_are_listed_by_everything_that_is_known_of_them_and_told_whole(
    bench: Bench, client: httpx.Client
) -> None:
    job_id = bench.work(succeed)
    bench.work(succeed, "customers", kind=VACUUM)
    with pytest.raises(RuntimeError):
        bench.work(break_down)
    now = datetime.now(UTC)

    def tasks(**asked: Any) -> list[dict[str, Any]]:
        answer = client.get("/tasks", params=asked)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["tasks"])

    def names(**asked: Any) -> list[tuple[str, str]]:
        return [(one["name"], one["status"]) for one in tasks(**asked)]

    broken, vacuumed, done = ("orders", "failed"), ("customers", "done"), ("orders", "done")
    assert names() == [broken, vacuumed, done]
    assert names(name="orders") == [broken, done]
    assert names(name=["orders", "customers"], kind="vacuum") == [vacuumed]
    assert names(status="failed") == [broken]
    assert names(status=["failed", "done"], limit=2) == [broken, vacuumed]
    assert names(param="target=warehouse:raw.customers") == [vacuumed]
    assert names(param=["target=warehouse:raw.orders", "full_refresh=false"]) == [broken, done]
    assert names(param=["target=warehouse:raw.orders", "full_refresh=true"]) == []
    assert names(job_id=str(job_id)) == [done]
    assert names(since=(now + timedelta(minutes=1)).isoformat()) == []
    assert names(until=(now - timedelta(days=400)).isoformat()) == []
    assert names(since=(now - timedelta(minutes=10)).isoformat(), until=now.isoformat()) == names()

    (failed,) = tasks(status="failed")
    assert "traceback" not in failed
    found = client.get(f"/tasks/{failed['id']}").json()
    assert found == failed | {"traceback": found["traceback"]}
    assert found["traceback"].endswith("RuntimeError: the disk is full\n")
    events = client.get(f"/tasks/{failed['id']}/events").json()["events"]
    assert [one["event"] for one in events] == ["pending", "started", "failed"]
    assert events[-1]["detail"] == {"error": "RuntimeError: the disk is full"}

    run = bench.tasks()[0]
    cost = {"jobs": 1, "tasks": 4, "executor_run_ms": 1200}
    bench.place.control.execute(
        f"UPDATE tidegate_control.tasks SET metrics = metrics || '{json.dumps({'spark': cost})}'"
        f" WHERE id = '{run.id}'"
    )
    found = client.get(f"/tasks/{run.id}").json()
    assert found["metrics"] == (run.metrics or {}) | {"spark": cost}


def test_what_is_not_there_not_meant_or_of_another_project_is_a_problem(
    bench: Bench, client: httpx.Client, make_place: MakePlace
) -> None:
    with open_bench(make_place(ORDERS, name="other", beside=bench.place)) as other:
        other.work(succeed)
        (theirs,) = other.tasks()
    assert client.get("/tasks").json()["tasks"] == []
    for unknown in (uuid4(), "ffffffff-ffff-ffff-ffff-ffffffffffff", theirs.id):
        problem(client.get(f"/tasks/{unknown}"), 404, "task-not-found")
        problem(client.get(f"/tasks/{unknown}/events"), 404, "task-not-found")
        assert client.get("/tasks", params={"job_id": str(unknown)}).json()["tasks"] == []
    for wrong in ("param=day", "param==x", "since=yesterday", "status=broken", "cursor=abc"):
        problem(client.get(f"/tasks?{wrong}"), 422, "invalid-request")
