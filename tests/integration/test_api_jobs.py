"""Jobs over HTTP: lists in pages, one job with its ETag, cancel, drain."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from integration.conftest import MakePlace
from integration.scheduling import Clockwork, open_clockwork
from integration.served import problem, serving
from tidegate.jobs.job import JobStatus


@pytest.fixture(scope="module")
def opened(places: MakePlace) -> Iterator[tuple[Clockwork, httpx.Client]]:
    with open_clockwork(places()) as jobs, serving(jobs.project) as client:
        yield jobs, client


@pytest.fixture
def jobs(opened: tuple[Clockwork, httpx.Client]) -> Clockwork:
    opened[0].clean()
    return opened[0]


@pytest.fixture
def client(jobs: Clockwork, opened: tuple[Clockwork, httpx.Client]) -> httpx.Client:
    return opened[1]


def test_jobs_come_in_pages_the_newest_first_each_once(
    jobs: Clockwork, client: httpx.Client
) -> None:
    made = [str(jobs.submit(f"job {number}")) for number in range(7)]
    seen: list[str] = []
    address: str | None = "/jobs?limit=3&kind=noop"
    pages = 0
    while address is not None:
        answer = client.get(address)
        page = answer.json()
        # What comes in meanwhile does not move the pages.
        jobs.submit("later")
        seen += [one["job_id"] for one in page["jobs"]]
        address = page["next"]
        assert ("link" in answer.headers) == (address is not None)
        pages += 1
    assert seen == made[::-1]
    assert pages == 3


def test_jobs_are_listed_by_status_kind_and_name_and_a_wrong_filter_is_named(
    jobs: Clockwork, client: httpx.Client
) -> None:
    wanted = str(jobs.submit("tables with % and ü"))
    jobs.submit("another")
    found = client.get("/jobs", params={"name": "tables with % and ü", "status": "pending"})
    assert [one["job_id"] for one in found.json()["jobs"]] == [wanted]
    assert client.get("/jobs", params={"status": "done"}).json()["jobs"] == []
    assert client.get("/jobs", params={"kind": "sync"}).json()["jobs"] == []
    for query, field in (
        ("status=lost", "status.0"),
        ("kind=dance", "kind.0"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("name=%00", "name.0"),
        ("cursor=bm8", "cursor"),
        ("cursor=!", "cursor"),
    ):
        refused = problem(client.get(f"/jobs?{query}"), 422, "invalid-request")
        assert [one["field"] for one in refused["errors"]] == [field], query


def test_a_job_that_has_not_changed_is_not_sent_again(
    jobs: Clockwork, client: httpx.Client
) -> None:
    job_id = jobs.submit()
    first = client.get(f"/jobs/{job_id}")
    assert first.json()["status"] == "pending"
    tag = first.headers["etag"]
    again = client.get(f"/jobs/{job_id}", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(f"/jobs/{job_id}").content == first.content
    client.post(f"/jobs/{job_id}/cancel")
    changed = client.get(f"/jobs/{job_id}", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.json()["status"] == "cancelled"
    assert changed.headers["etag"] != tag


def test_a_job_is_cancelled_once_and_the_audit_says_by_whom(
    jobs: Clockwork, client: httpx.Client
) -> None:
    job_id = str(jobs.submit("nothing"))
    done = client.post(f"/jobs/{job_id}/cancel")
    assert done.json() == {"job_id": job_id, "name": "nothing", "status": "cancelled"}
    ended = problem(client.post(f"/jobs/{job_id}/cancel"), 409, "job-ended")
    assert ended["job_status"] == JobStatus.CANCELLED
    lines = client.get("/audit").json()["lines"]
    assert [(one["actor"], one["outcome"], one["job_id"]) for one in lines] == [
        ("loopback (HTTP)", "409 job-ended", None),
        ("loopback (HTTP)", "cancelled", job_id),
    ]
    assert {one["action"] for one in lines} == {"POST /jobs/{job_id}/cancel"}
    unknown = "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f"
    problem(client.get(f"/jobs/{unknown}"), 404, "job-not-found")
    problem(client.post(f"/jobs/{unknown}/cancel"), 404, "job-not-found")
    problem(client.get("/jobs/nonsense"), 422, "invalid-request")


def test_it_drains_and_takes_in_again_and_says_so(jobs: Clockwork, client: httpx.Client) -> None:
    assert client.get("/drain").json()["draining"] is False
    bodies: list[object] = [
        {"draining": "yes"},
        {"draining": 1},
        {},
        {"draining": True, "x": 1},
        [],
    ]
    for body in bodies:
        problem(client.put("/drain", json=body), 422, "invalid-request")
        assert client.get("/drain").json()["draining"] is False
    jobs.clean()
    on = client.put("/drain", json={"draining": True}).json()
    assert (on["draining"], on["by"]) == (True, "loopback (HTTP)")
    assert client.get("/drain").json() == on
    refused = problem(client.get("/readyz"), 503, "not-ready")
    assert refused["reasons"] == ["no new jobs are taken in: it drains"]
    off = client.put("/drain", json={"draining": False}).json()
    assert off["draining"] is False
    assert client.get("/readyz").status_code == 200
    client.put("/drain", json={"draining": False})
    outcomes = [one["outcome"] for one in client.get("/audit").json()["lines"]]
    assert outcomes == ["off, as it was", "off", "on"]
