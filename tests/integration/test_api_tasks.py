"""The history over HTTP: runs in pages, one run with its traceback, and its events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from integration.conftest import MakePlace
from integration.orders import ORDERS
from integration.recorded import Bench, open_bench
from integration.served import problem, serving
from tidegate.model.job import VACUUM
from tidegate.runtime.attempt import LiveAttempt


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


def test_runs_are_listed_by_everything_that_is_known_of_them(
    bench: Bench, client: httpx.Client
) -> None:
    job_id = bench.work(succeed)
    bench.work(succeed, "customers", kind=VACUUM)
    with pytest.raises(RuntimeError):
        bench.work(break_down)
    now = datetime.now(UTC)

    def names(**asked: Any) -> list[tuple[str, str]]:
        answer = client.get("/tasks", params=asked)
        assert answer.status_code == 200, answer.text
        return [(one["name"], one["status"]) for one in answer.json()["tasks"]]

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


def test_one_run_is_told_whole_with_its_events(bench: Bench, client: httpx.Client) -> None:
    with pytest.raises(RuntimeError):
        bench.work(break_down)
    (listed,) = client.get("/tasks").json()["tasks"]
    assert "traceback" not in listed
    found = client.get(f"/tasks/{listed['id']}").json()
    assert found == listed | {"traceback": found["traceback"]}
    assert found["traceback"].endswith("RuntimeError: the disk is full\n")
    events = client.get(f"/tasks/{listed['id']}/events").json()["events"]
    assert [one["event"] for one in events] == ["pending", "started", "failed"]
    assert events[-1]["detail"] == {"error": "RuntimeError: the disk is full"}


def test_what_a_run_cost_spark_is_told_with_it(bench: Bench, client: httpx.Client) -> None:
    bench.work(succeed)
    (run,) = bench.tasks()
    cost = {"jobs": 1, "tasks": 4, "executor_run_ms": 1200}
    bench.place.control.execute(
        f"UPDATE tidegate_control.tasks SET metrics = metrics || '{json.dumps({'spark': cost})}'"
    )
    found = client.get(f"/tasks/{run.id}").json()
    assert found["metrics"] == (run.metrics or {}) | {"spark": cost}


def test_what_is_not_there_or_not_meant_is_a_problem(bench: Bench, client: httpx.Client) -> None:
    bench.work(succeed)
    for unknown in (uuid4(), "ffffffff-ffff-ffff-ffff-ffffffffffff"):
        problem(client.get(f"/tasks/{unknown}"), 404, "task-not-found")
        problem(client.get(f"/tasks/{unknown}/events"), 404, "task-not-found")
        assert client.get("/tasks", params={"job_id": str(unknown)}).json()["tasks"] == []
    for wrong in ("param=day", "param==x", "since=yesterday", "status=broken", "cursor=abc"):
        problem(client.get(f"/tasks?{wrong}"), 422, "invalid-request")


def test_runs_of_another_project_are_not_told(
    bench: Bench, client: httpx.Client, make_place: MakePlace
) -> None:
    with open_bench(make_place(ORDERS, name="other", beside=bench.place)) as other:
        other.work(succeed)
        (theirs,) = other.tasks()
    assert client.get("/tasks").json()["tasks"] == []
    problem(client.get(f"/tasks/{theirs.id}"), 404, "task-not-found")
    problem(client.get(f"/tasks/{theirs.id}/events"), 404, "task-not-found")
