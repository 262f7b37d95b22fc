"""Maintenance over HTTP: one job a table, one job a key, and every refusal in its place."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from integration.cached_lakes import ITEMS, ORDERS, cared_place, refresh, small_files
from integration.conftest import MakePlace, Place
from integration.served import make_token, problem, serving
from tidegate.model.access import Scope
from tidegate.project import Project

PATH = "/tables/raw/orders/maintenance"
EXPIRE = {"actions": ["expire_snapshots"]}


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = cared_place(make_place)
    small_files(place, ORDERS, files=6)
    small_files(place, ITEMS, files=1)
    refresh(place)
    return place


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with place.open() as opened:
        yield opened


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with serving(project) as client:
        yield client


def jobs(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/jobs").json()["jobs"]
    return found


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
    assert (job["kind"], job["name"], job["priority"]) == ("maintenance", "lake:raw.orders", 7)
    assert list(job["payload"]["order"]) == ["expire_snapshots", "rewrite_data_files"]
    assert job["payload"]["order"]["expire_snapshots"] == {
        "older_than_seconds": 172_800.0,
        "retain_last": 1,
    }
    assert job["submitted_by"] == "loopback (HTTP)"
    history = client.get(f"{PATH}/history").json()
    assert [one["job_id"] for one in history["jobs"]] == [job_id]
    line = client.get("/audit").json()["lines"][0]
    assert (line["object"], line["outcome"], line["job_id"]) == (
        "lake:raw.orders",
        "queued",
        job_id,
    )


def test_of_two_hundred_submissions_at_once_one_is_taken(
    project: Project, client: httpx.Client
) -> None:
    start = threading.Barrier(200)

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

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(submit, range(200)))
    assert Counter(status for status, _ in answers) == {202: 1, 409: 199}
    assert len({job_id for _, job_id in answers}) == 1
    assert len(jobs(client)) == 1
    lines = client.get("/audit?limit=500").json()["lines"]
    outcomes = Counter(one["outcome"] for one in lines if not one["outcome"].startswith("503"))
    assert outcomes == {"queued": 1, "409 table-busy": 199}


def test_the_same_key_gives_the_same_job_however_often_and_at_once(
    client: httpx.Client,
) -> None:
    headers = {"Idempotency-Key": "tonight % ünd"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: client.post(PATH, json=EXPIRE, headers=headers_of(headers)), range(20)
            )
        )
    assert {one.status_code for one in answers} == {202}
    assert len({one.headers["location"] for one in answers}) == 1
    replays = [one.headers.get("idempotent-replay") for one in answers]
    assert Counter(replays) == {None: 1, "true": 19}
    job_id = answers[0].json()["job_id"]
    client.post(f"/jobs/{job_id}/cancel")
    after = client.post(PATH, json=EXPIRE, headers=headers_of(headers))
    assert (after.status_code, after.json()["job_id"]) == (202, job_id)
    assert after.json()["job"]["status"] == "cancelled"
    assert len(jobs(client)) == 1


def headers_of(headers: dict[str, str]) -> httpx.Headers:
    return httpx.Headers(headers, encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"actions": ["rewrite_manifests"]}),
        (PATH, EXPIRE | {"options": {"expire_snapshots": {"retain_last": 9}}}),
        (PATH, EXPIRE | {"dry_run": True}),
        ("/tables/raw/items/maintenance", EXPIRE),
    ],
)
def test_a_key_that_was_given_to_other_work_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    headers = {"Idempotency-Key": "k"}
    client.post(PATH, json=EXPIRE, headers=headers)
    problem(client.post(path, json=body, headers=headers), 422, "idempotency-key-reused")
    assert len(jobs(client)) == 1


def test_a_refusal_leaves_the_key_free(client: httpx.Client) -> None:
    holder = client.post(PATH, json=EXPIRE).json()["job_id"]
    headers = {"Idempotency-Key": "k"}
    problem(client.post(PATH, json=EXPIRE, headers=headers), 409, "table-busy")
    client.post(f"/jobs/{holder}/cancel")
    client.put("/drain", json={"draining": True})
    problem(client.post(PATH, json=EXPIRE, headers=headers), 503, "draining")
    client.put("/drain", json={"draining": False})
    other = {"actions": ["rewrite_manifests"]}
    assert client.post(PATH, json=other, headers=headers).status_code == 202


def test_whatever_is_wrong_besides_a_drain_is_told_first_and_then_the_body_and_then_the_table(
    client: httpx.Client,
) -> None:
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


@pytest.mark.parametrize(
    ("body", "field", "known"),
    [
        ({"actions": ["dance"]}, "actions", "rewrite_manifests"),
        ({"actions": []}, "actions", "expire_snapshots"),
        ({"actions": "expire_snapshots"}, "actions", None),
        ({}, "actions", None),
        (EXPIRE | {"dry_run": "yes"}, "dry_run", None),
        (EXPIRE | {"colour": 1}, "colour", None),
        (EXPIRE | {"priority": 5000}, "priority", None),
        (EXPIRE | {"options": {"dance": {}}}, "options.dance", "expire_snapshots"),
        (EXPIRE | {"options": {"rewrite_manifests": {}}}, "options.rewrite_manifests", None),
        (
            EXPIRE | {"options": {"expire_snapshots": {"older": 1}}},
            "options.expire_snapshots.older",
            "older_than",
        ),
        (
            EXPIRE | {"options": {"expire_snapshots": {"retain_last": 0}}},
            "options.expire_snapshots.retain_last",
            None,
        ),
        (
            EXPIRE | {"options": {"expire_snapshots": {"older_than": "soon\ud800"}}},
            "options.expire_snapshots.older_than",
            None,
        ),
        (
            {
                "actions": ["remove_orphan_files"],
                "options": {"remove_orphan_files": {"older_than": "1 hour"}},
            },
            "options.remove_orphan_files.older_than",
            None,
        ),
        ({"actions": ["\ud800"]}, "actions", "expire_snapshots"),
    ],
)
def test_what_there_is_not_is_refused_by_its_name_and_what_there_is_is_told(
    client: httpx.Client, body: dict[str, Any], field: str, known: str | None
) -> None:
    answer = client.post(
        PATH, content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    found = problem(answer, 422, "invalid-request")
    assert [one["field"] for one in found["errors"]] == [field]
    assert found["errors"][0]["message"]
    assert known is None or known in found["errors"][0]["known"]
    assert jobs(client) == []


def test_a_dry_run_says_what_would_change_and_takes_nothing(client: httpx.Client) -> None:
    held = client.post(PATH, json=EXPIRE).json()["job_id"]
    wish = {
        "actions": ["rewrite_data_files"],
        "options": {"rewrite_data_files": {"min_input_files": 2}},
        "dry_run": True,
    }
    answer = client.post(PATH, json=wish, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 202, answer.text
    effect = answer.json()["predicted"]["rewrite_data_files"]
    assert effect["before"]["files"] == 6
    assert effect["after"]["files"] == 1
    job = client.get(answer.headers["location"]).json()
    assert (job["status"], job["actions"], job["attempts"]) == ("done", [], [])
    again = client.post(PATH, json=wish, headers={"Idempotency-Key": "k"})
    assert again.headers["location"] == answer.headers["location"]
    assert again.headers["idempotent-replay"] == "true"
    assert again.json() == answer.json()
    assert client.get(f"/jobs/{held}").json()["status"] == "pending"
    shown = client.get(f"{PATH}/history").json()["jobs"]
    assert [one["dry_run"] for one in shown] == [True, False]


def test_history_comes_in_pages(client: httpx.Client) -> None:
    made = [client.post(PATH, json=EXPIRE | {"dry_run": True}).json()["job_id"] for _ in range(5)]
    seen, address = [], f"{PATH}/history?limit=2"
    while address:
        page = client.get(address).json()
        seen += [one["job_id"] for one in page["jobs"]]
        address = page["next"]
    assert seen == made[::-1]


def test_the_job_says_which_token_asked_for_it(project: Project, client: httpx.Client) -> None:
    token = make_token(project, "nightly", Scope.SUBMIT)
    job = client.post(PATH, json=EXPIRE, headers=token).json()["job"]
    assert job["submitted_by"] == "token nightly (HTTP)"
    assert job["payload"]["requested_by"] == "token nightly (HTTP)"


@pytest.mark.parametrize(
    ("action", "options", "needed"),
    [
        ("expire_snapshots", {"older_than": "0s"}, "admin"),
        ("remove_orphan_files", {"older_than": "1 day"}, "admin"),
        ("remove_orphan_files", {"older_than": "30 days"}, "submit"),
    ],
)
def test_what_keeps_less_than_the_policy_needs_more_than_submit(
    project: Project, client: httpx.Client, action: str, options: dict[str, str], needed: str
) -> None:
    token = make_token(project, "t", Scope.SUBMIT)
    wish = {"actions": [action], "options": {action: options}}
    predicted = client.post(PATH, json={**wish, "dry_run": True}, headers=token)
    assert predicted.status_code == 202, predicted.text
    answer = client.post(PATH, json=wish, headers=token)
    if needed == "submit":
        assert answer.status_code == 202, answer.text
        return
    assert problem(answer, 403, "forbidden")["needed"] == needed
    admin = make_token(project, "a", Scope.ADMIN)
    assert client.post(PATH, json=wish, headers=admin).status_code == 202
