"""Who is served: this machine without tokens, else whoever shows one that is large enough."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest

from integration.commands import DONE, USAGE, tidegate
from integration.conftest import MakePlace, Place
from integration.served import make_token, problem, serving
from tidegate.api.access import Access
from tidegate.api.problems import Problem
from tidegate.api.service import Service
from tidegate.control.api_tokens import ApiTokens
from tidegate.model.access import Scope
from tidegate.project import Project

UNKNOWN = "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place()


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with place.open() as opened:
        opened.context.control_id()
        yield opened


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with serving(project) as client:
        yield client


def test_without_tokens_this_machine_may_everything(client: httpx.Client) -> None:
    assert client.get("/jobs").status_code == 200
    assert client.put("/drain", json={"draining": False}).status_code == 200
    assert client.get("/audit").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8787"},
        {"Host": "localhost.evil.example"},
        {"Host": ""},
        {"Host": "["},
        {"X-Forwarded-For": "203.0.113.7"},
        {"X-Forwarded-Proto": "https"},
        {"X-Forwarded-Anything": "x"},
        {"Forwarded": "for=203.0.113.7"},
        {"Via": "1.1 proxy"},
        {"X-Real-IP": "203.0.113.7"},
        {"CF-Connecting-IP": "203.0.113.7"},
        {"True-Client-IP": "203.0.113.7"},
        {"X-Envoy-External-Address": "203.0.113.7"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_without_tokens_no_other_site_or_proxy_is_served(
    client: httpx.Client, headers: dict[str, str]
) -> None:
    found = problem(client.get("/jobs", headers=headers), 403, "loopback-only")
    assert "tidegate token create" in found["hint"]
    answer = client.put("/drain", json={"draining": True}, headers=headers)
    problem(answer, 403, "loopback-only")
    assert client.get("/drain").json()["draining"] is False


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /jobs HTTP/1.0\r\nHost: localhost\r\n\r\n", 403),
    ],
)
def test_without_tokens_a_second_host_and_an_old_proxy_are_refused(
    client: httpx.Client, sent: bytes, status: int
) -> None:
    assert client.base_url.port is not None
    with socket.create_connection((client.base_url.host, client.base_url.port), 10) as wire:
        wire.sendall(sent)
        assert wire.recv(1000).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8787"])
def test_without_tokens_this_machine_is_served_under_all_its_names(
    client: httpx.Client, host: str
) -> None:
    assert client.get("/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("address", "served"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True)]
    + [(one, False) for one in ("10.0.0.1", "0.0.0.0", "::ffff:10.0.0.1", "fe80::1", "x")],
)
def test_without_tokens_another_machine_is_not_served(
    project: Project, address: str, served: bool
) -> None:
    access, headers = Access(Service(project)), {b"host": b"localhost"}
    if served:
        assert access.find(headers, address).name == "loopback"
    else:
        with pytest.raises(Problem, match="comes from another machine"):
            access.find(headers, address)


def test_with_tokens_everybody_needs_one_but_for_the_probes(
    project: Project, client: httpx.Client
) -> None:
    assert client.get("/jobs").status_code == 200
    make_token(project, "ci", Scope.READ)
    wait_for(client, 401)
    for path in ("/jobs", "/tables", "/metrics", "/audit", "/drain", "/syncs", "/nowhere"):
        answer = client.get(path)
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    # Whoever changes something is looked at anew each time.
    problem(client.put("/drain", json={"draining": True}), 401, "unauthorized")
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs", "/problems/table-busy"):
        assert client.get(path).status_code == 200, path


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer tg_wrong",
        "Basic dGc6",
        "tg_wrong",
        "Bearer \u00ff",
        "Bearer x y",
    ],
)
def test_a_token_that_is_none_opens_nothing(
    project: Project, client: httpx.Client, value: str
) -> None:
    make_token(project, "ci", Scope.ADMIN)
    headers = httpx.Headers({"Authorization": value}, encoding="latin-1")
    problem(client.get("/jobs", headers=headers), 401, "unauthorized")


def test_a_wrong_token_is_refused_even_where_there_is_none(client: httpx.Client) -> None:
    headers = {"Authorization": "Bearer tg_old"}
    problem(client.get("/jobs", headers=headers), 401, "unauthorized")


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (Scope.EVENTS, [True, False, False, False, False, False]),
        (Scope.READ, [False, True, True, False, False, False]),
        (Scope.SUBMIT, [True, True, True, True, False, False]),
        (Scope.ADMIN, [True] * 6),
    ],
)
def test_each_scope_allows_what_it_says(
    project: Project, client: httpx.Client, scope: Scope, allowed: list[bool]
) -> None:
    token = make_token(project, scope.value, scope)
    requests = [
        client.post("/events", json={}, headers=token),
        client.get("/metrics", headers=token),
        client.get("/jobs", headers=token),
        client.post(f"/jobs/{UNKNOWN}/cancel", headers=token),
        client.put("/drain", json={"draining": False}, headers=token),
        client.get("/audit", headers=token),
    ]
    assert [one.status_code != 403 for one in requests] == allowed
    for one in requests:
        if one.status_code == 403:
            assert problem(one, 403, "forbidden")["needed"] in list(Scope)


def test_a_refusal_for_want_of_scope_is_in_the_audit(
    project: Project, client: httpx.Client
) -> None:
    reader, admin = make_token(project, "r", Scope.READ), make_token(project, "a", Scope.ADMIN)
    client.put("/drain", json={"draining": True}, headers=reader)
    # It is written when the answer is on its way.
    deadline = time.monotonic() + 10
    while not (lines := client.get("/audit", headers=admin).json()["lines"]):
        assert time.monotonic() < deadline
    line = lines[0]
    assert (line["actor"], line["action"], line["outcome"]) == (
        "token r (HTTP)",
        "PUT /drain",
        "403 forbidden",
    )


def test_a_token_that_has_expired_opens_nothing_and_still_closes_the_door(
    project: Project, client: httpx.Client
) -> None:
    token = make_token(project, "short", Scope.ADMIN, expires_seconds=0.001)
    time.sleep(0.01)
    problem(client.get("/jobs", headers=token), 401, "unauthorized")
    problem(client.get("/jobs"), 401, "unauthorized")


def test_a_revoked_token_changes_nothing_any_more_and_soon_reads_nothing(
    project: Project, client: httpx.Client
) -> None:
    token = make_token(project, "ops", Scope.ADMIN)
    make_token(project, "other", Scope.READ)
    tokens = ApiTokens(project.context.plane)
    with project.context.plane.connect() as control:
        assert client.get("/jobs", headers=token).status_code == 200
        # At once, while what was just found out about it is still remembered.
        tokens.revoke(control, project.name, "ops", actor="test")
    answer = client.put("/drain", json={"draining": True}, headers=token)
    problem(answer, 401, "unauthorized")
    wait_for(client, 401, token)


def test_revoking_the_last_token_opens_nothing_and_opening_takes_a_command(
    place: Place, project: Project, client: httpx.Client
) -> None:
    assert client.get("/jobs").status_code == 200
    make_token(project, "only", Scope.ADMIN)
    refused = tidegate(place.folder, "token", "open", "--yes")
    assert refused.code == USAGE
    assert "revoke" in refused.err
    revoked = tidegate(place.folder, "token", "revoke", "only")
    assert "tidegate token open --yes" in revoked.out
    problem(client.put("/drain", json={"draining": True}), 401, "unauthorized")
    wait_for(client, 401)
    bound = tidegate(place.folder, "token", "open")
    assert (bound.code, "--yes" in bound.err) == (USAGE, True)
    opened = tidegate(place.folder, "token", "open", "--yes", "--json")
    assert opened.document == {"project": "shop", "forgotten": 1}
    wait_for(client, 200)
    assert client.put("/drain", json={"draining": False}).status_code == 200
    assert [one["action"] for one in client.get("/audit").json()["lines"]][:2] == [
        "PUT /drain",
        "token open",
    ]


def test_a_token_ends_after_ninety_days_unless_said_otherwise(place: Place) -> None:
    for arguments, days in (([], 90), (["--expires", "30d"], 30), (["--expires", "never"], None)):
        made = tidegate(place.folder, "token", "create", f"t{days}", *arguments, "--json").document
        if days is None:
            assert made["expires_at"] is None
            continue
        lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(
            made["created_at"]
        )
        assert lasts.days == days


def test_old_lines_of_the_audit_are_forgotten(place: Place, project: Project) -> None:
    place.control.execute(
        "INSERT INTO tidegate_control.access_audit (project, at, actor, action, outcome)"
        " SELECT 'shop', now() - days * interval '1 day', 'a', days::text, 'o'"
        " FROM unnest(ARRAY[1, 364, 366, 900]) AS days"
    )
    with project.context.plane.connect() as control:
        project.sweeper("w").run_once(control, tidy=True)
    left = place.control.execute("SELECT action FROM tidegate_control.access_audit ORDER BY id")
    assert left == [("1",), ("364",)]


def test_when_a_token_is_used_is_noted_once_a_minute(
    place: Place, project: Project, client: httpx.Client
) -> None:
    token = make_token(project, "ci", Scope.ADMIN)
    text = "SELECT used_at, xmin::text FROM tidegate_control.api_tokens"
    assert place.control.execute(text)[0][0] is None
    client.put("/drain", json={"draining": False}, headers=token)
    first = place.control.execute(text)
    assert first[0][0] is not None
    client.put("/drain", json={"draining": False}, headers=token)
    assert place.control.execute(text) == first
    place.control.execute(
        "UPDATE tidegate_control.api_tokens SET used_at = now() - interval '2 minutes'"
    )
    client.put("/drain", json={"draining": False}, headers=token)
    assert place.control.value(
        "SELECT now() - used_at < '1 minute' FROM tidegate_control.api_tokens"
    )


def test_only_the_hash_of_a_token_is_kept_and_it_is_shown_once(place: Place) -> None:
    made = tidegate(place.folder, "token", "create", "ci", "--scope", "submit", "--json")
    text = made.document["token"]
    assert text.startswith("tg_")
    assert len(text) == 3 + 43
    assert made.document["scope"] == "submit"
    dump = place.control.value("SELECT string_agg(t::text, ' ') FROM tidegate_control.api_tokens t")
    kept = place.control.value(
        "SELECT string_agg(t::text, ' ') FROM tidegate_control.access_audit t"
    )
    assert text not in dump + kept
    assert text[3:] not in dump + kept
    listed = tidegate(place.folder, "token", "list")
    assert "ci" in listed.out
    assert text not in listed.said
    plain = tidegate(place.folder, "token", "create", "ops", "--expires", "90 days")
    assert plain.out.strip().startswith("tg_")
    assert "not shown again" in plain.err


def test_tokens_are_made_listed_and_revoked_by_name(place: Place) -> None:
    assert "this machine only" in tidegate(place.folder, "token", "list").out
    assert tidegate(place.folder, "token", "list", "--json").document == []
    tidegate(place.folder, "token", "create", "ci")
    again = tidegate(place.folder, "token", "create", "ci")
    assert again.code == USAGE
    assert "token revoke ci" in again.err
    revoked = tidegate(place.folder, "token", "revoke", "ci")
    assert "the last good one" in revoked.out
    assert tidegate(place.folder, "token", "revoke", "ci").code == USAGE
    assert tidegate(place.folder, "token", "create", "ci").code == DONE
    states = [one["state"] for one in tidegate(place.folder, "token", "list", "--json").document]
    assert states == ["good", "revoked"]
    for bad in (["create", "a b"], ["create", "x" * 64], ["create", "c", "--expires", "soon"]):
        refused = tidegate(place.folder, "token", *bad)
        assert refused.code == USAGE, bad
    assert tidegate(place.folder, "token", "create", "d", "--expires", "0s").code == USAGE


def test_another_address_is_not_bound_before_there_is_a_token(place: Place) -> None:
    refused = tidegate(place.folder, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == USAGE
    assert "tidegate token create" in refused.err


def wait_for(client: httpx.Client, status: int, headers: dict[str, str] | None = None) -> None:
    """Reading is decided by what was known a second ago."""
    deadline = time.monotonic() + 3
    while client.get("/jobs", headers=headers).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.05)
