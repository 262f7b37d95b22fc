"""Who is served: this machine without tokens, else whoever shows one that is large enough."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest

from acceptance.processes import until
from integration.commands import DONE, USAGE
from integration.conftest import MakePlace, Place
from integration.here import tidegate
from integration.served import make_token, problem, serving
from tidegate.admin.tokens import ApiTokens
from tidegate.core.identity import Scope
from tidegate.project import Project
from tidegate.service.middleware import Access
from tidegate.service.problems import HttpProblem
from tidegate.service.request_context import Service

UNKNOWN = "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f"
STRANGE: list[dict[str, str]] = [
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
]
NO_TOKENS = [
    "",
    "Bearer",
    "Bearer tg_wrong",
    "Basic dGc6",
    "tg_wrong",
    "Bearer \u00ff",
    "Bearer x y",
]


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place()


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with place.open() as opened:
        yield opened


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with serving(project) as client:
        yield client


def wait_for(client: httpx.Client, status: int, headers: dict[str, str] | None = None) -> None:
    """Reading is decided by what was known a second ago."""
    until(lambda: client.get("/jobs", headers=headers).status_code == status, f"{status}", 3)


def test_without_tokens_this_machine_may_everything_and_nobody_else_anything(
    project: Project, client: httpx.Client
) -> None:
    for host in ("localhost", "127.0.0.1:1", "[::1]:8787"):
        assert client.get("/jobs", headers={"Host": host}).status_code == 200, host
    assert client.put("/drain", json={"draining": False}).status_code == 200
    assert client.get("/audit").status_code == 200
    for headers in STRANGE:
        found = problem(client.get("/jobs", headers=headers), 403, "loopback-only")
        assert "tidegate token create" in found["hint"]
        answer = client.put("/drain", json={"draining": True}, headers=headers)
        problem(answer, 403, "loopback-only")
    assert client.get("/drain").json()["draining"] is False
    for sent, status in (
        (b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /jobs HTTP/1.0\r\nHost: localhost\r\n\r\n", 403),
    ):
        assert client.base_url.port is not None
        with socket.create_connection((client.base_url.host, client.base_url.port), 10) as wire:
            wire.sendall(sent)
            assert wire.recv(1000).startswith(b"HTTP/1.1 %d " % status), sent
    old = {"Authorization": "Bearer tg_old"}
    problem(client.get("/jobs", headers=old), 401, "unauthorized")
    access, headers_sent = Access(Service(project)), {b"host": b"localhost"}
    for address in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
        assert access.find(headers_sent, address).name == "loopback"
    for address in ("10.0.0.1", "0.0.0.0", "::ffff:10.0.0.1", "fe80::1", "x"):
        with pytest.raises(HttpProblem, match="comes from another machine"):
            access.find(headers_sent, address)


def test_with_tokens_everybody_needs_a_good_one_but_for_the_probes(
    project: Project, client: httpx.Client
) -> None:
    assert client.get("/jobs").status_code == 200
    make_token(project, "ci", Scope.ADMIN)
    wait_for(client, 401)
    for path in ("/jobs", "/tables", "/metrics", "/audit", "/drain", "/syncs", "/nowhere"):
        answer = client.get(path)
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    # Whoever changes something is looked at anew each time.
    problem(client.put("/drain", json={"draining": True}), 401, "unauthorized")
    for value in NO_TOKENS:
        headers = httpx.Headers({"Authorization": value}, encoding="latin-1")
        problem(client.get("/jobs", headers=headers), 401, "unauthorized")
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs", "/problems/table-busy"):
        assert client.get(path).status_code == 200, path


def test_each_scope_allows_what_it_says_and_a_refusal_is_in_the_audit(
    project: Project, client: httpx.Client
) -> None:
    for scope, allowed in (
        (Scope.EVENTS, [True, False, False, False, False, False]),
        (Scope.READ, [False, True, True, False, False, False]),
        (Scope.SUBMIT, [True, True, True, True, False, False]),
        (Scope.ADMIN, [True] * 6),
    ):
        token = make_token(project, scope.value, scope)
        requests = [
            client.post("/events", json={}, headers=token),
            client.get("/metrics", headers=token),
            client.get("/jobs", headers=token),
            client.post(f"/jobs/{UNKNOWN}/cancel", headers=token),
            client.put("/drain", json={"draining": False}, headers=token),
            client.get("/audit", headers=token),
        ]
        assert [one.status_code != 403 for one in requests] == allowed, scope
        for one in requests:
            if one.status_code == 403:
                assert problem(one, 403, "forbidden")["needed"] in list(Scope)
    expected = ("token read (HTTP)", "PUT /drain", "403 forbidden")

    def audited() -> list[tuple[str, ...]]:
        lines = client.get("/audit", headers=token).json()["lines"]
        return [(one["actor"], one["action"], one["outcome"]) for one in lines]

    # It is written when the answer is on its way.
    until(lambda: expected in audited(), "a line of the audit", 10)


def test_a_token_that_expired_or_was_revoked_opens_nothing_and_still_closes_the_door(
    place: Place, project: Project, client: httpx.Client
) -> None:
    expired = make_token(project, "short", Scope.ADMIN, expires_seconds=60)
    ended = "created_at = now() - interval '2 minutes', expires_at = now() - interval '1 minute'"
    place.control.execute(f"UPDATE tidegate_control.api_tokens SET {ended}")
    problem(client.get("/jobs", headers=expired), 401, "unauthorized")
    problem(client.get("/jobs"), 401, "unauthorized")
    token = make_token(project, "ops", Scope.ADMIN)
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


def test_only_the_hash_of_a_token_is_kept_and_it_is_shown_once(place: Place) -> None:
    made = tidegate(place.folder, "token", "create", "ci", "--scope", "submit", "--json")
    text = made.document["token"]
    assert (text[:3], len(text), made.document["scope"]) == ("tg_", 3 + 43, "submit")
    kept = "".join(
        place.control.value(f"SELECT string_agg(t::text, ' ') FROM tidegate_control.{table} t")
        for table in ("api_tokens", "access_audit")
    )
    assert text[3:] not in kept
    listed = tidegate(place.folder, "token", "list")
    assert "ci" in listed.out
    assert text not in listed.said
    plain = tidegate(place.folder, "token", "create", "ops", "--expires", "90 days")
    assert plain.out.strip().startswith("tg_")
    assert "not shown again" in plain.err


def test_tokens_are_made_listed_and_revoked_by_name_and_end_after_ninety_days(
    place: Place,
) -> None:
    def token(*arguments: str) -> str:
        done = tidegate(place.folder, "token", *arguments)
        assert done.code == DONE, done
        return done.out

    def refuse(*arguments: str) -> str:
        done = tidegate(place.folder, *arguments)
        assert done.code == USAGE, done
        return done.err

    assert "this machine only" in token("list")
    # Another address is not bound before there is a token.
    assert "tidegate token create" in refuse("serve", "--host", "0.0.0.0", "--port", "0")
    token("create", "ci")
    assert "token revoke ci" in refuse("token", "create", "ci")
    assert "the last good one" in token("revoke", "ci")
    refuse("token", "revoke", "ci")
    token("create", "ci")
    listed = tidegate(place.folder, "token", "list", "--json").document
    assert [one["state"] for one in listed] == ["good", "revoked"]
    for bad in (["a b"], ["x" * 64], ["c", "--expires", "soon"], ["d", "--expires", "0s"]):
        refuse("token", "create", *bad)
    for arguments, days in (([], 90), (["--expires", "30d"], 30), (["--expires", "never"], None)):
        made = tidegate(place.folder, "token", "create", f"t{days}", *arguments, "--json").document
        if days is None:
            assert made["expires_at"] is None
            continue
        created, ends = (datetime.fromisoformat(made[one]) for one in ("created_at", "expires_at"))
        assert (ends - created).days == days
