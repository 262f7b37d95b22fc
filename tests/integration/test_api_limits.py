"""What the service does not take: too large, too slow, too many, not HTTP at all, guesses."""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest

from acceptance.processes import until
from databases import Databases
from integration.conftest import Place
from integration.raw_events import event_place
from integration.served import make_token, problem, serving
from integration.shared_places import shared_places
from tidegate.core.identity import Scope
from tidegate.project import Project
from tidegate.service import connections, middleware

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST /events HTTP/1.1\r\n" + HOST + JSON + CHUNKS + b"\r\n2\r\n{}\r\n0\r\n"
LARGE = 70_000
PER_ADDRESS, IN_ALL = 20, 30
SECONDS = 0.5
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Attacked:
    """A service that has tokens, and the way to its socket."""

    place: Place
    project: Project
    client: httpx.Client
    admin: dict[str, str]

    def wire(self, source: str = "127.0.0.1", timeout: float = 0.05) -> socket.socket:
        host, port = self.client.base_url.host, self.client.base_url.port
        assert port is not None
        wire = socket.create_connection((host, port), 10, source_address=(source, 0))
        wire.settimeout(timeout)
        return wire

    def begin(self, *more: bytes) -> socket.socket:
        """A wire on which the head of a good request was sent, but for its last line."""
        wire = self.wire(timeout=10)
        token = b"Authorization: " + self.admin["Authorization"].encode() + b"\r\n"
        wire.sendall(b"".join((b"PUT /drain HTTP/1.1\r\n", HOST, JSON, token, *more)))
        return wire

    def put(self, body: bytes, kind: str | None = "application/json") -> httpx.Response:
        headers = self.admin | ({} if kind is None else {"Content-Type": kind})
        return self.client.put("/drain", content=body, headers=headers)

    def drains(self) -> bool:
        return bool(self.client.get("/drain", headers=self.admin).json()["draining"])


@pytest.fixture(scope="module")
def attacked(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Attacked]:
    """One service for all, whose patience is short."""
    serve = {
        "max_request": "64KB",
        "max_events": 100,
        "max_connections": IN_ALL,
        "max_connections_per_address": PER_ADDRESS,
    }
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("attacked")
        make_place = stack.enter_context(shared_places(kept_databases, folder))
        place = event_place(make_place, serve=serve)
        short = stack.enter_context(pytest.MonkeyPatch.context())
        short.setattr(connections, "REQUEST_SECONDS", SECONDS)
        short.setattr(connections, "WRITE_SECONDS", SECONDS)
        short.setattr(middleware, "SECONDS", SECONDS)
        short.setattr(middleware, "PLACE_SECONDS", SECONDS)
        project = stack.enter_context(place.open())
        admin = make_token(project, "admin", Scope.ADMIN)
        client = stack.enter_context(serving(project))
        client.headers["Connection"] = "close"
        yield Attacked(place, project, client, admin)


def received(wire: socket.socket) -> tuple[int, str]:
    """The status and the problem of an answer, after which the service hangs up."""
    parts = b""
    while piece := wire.recv(65536):
        parts += piece
    head, _, body = parts.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, head
    return int(head.split()[1]), json.loads(body)["type"]


def test_a_body_that_is_too_large_or_does_not_arrive_is_not_waited_for(attacked: Attacked) -> None:
    body = json.dumps({"draining": True, "x": "y" * LARGE}).encode()
    assert "65,536" in problem(attacked.put(body), 413, "request-too-large")["detail"]
    with attacked.begin(CHUNKS, b"\r\n") as wire:
        for _ in range(LARGE // 1000):
            wire.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert received(wire) == (413, "/problems/request-too-large")
    with attacked.begin(b"Content-Length: 100\r\n\r\n{") as wire:
        assert received(wire) == (408, "/problems/request-timeout")
    assert attacked.drains() is False
    # Below the limit it is taken in pieces.
    with attacked.begin(CHUNKS, b"Connection: close\r\n\r\n") as wire:
        for piece in (b'{"drai', b'ning": ', b"true}"):
            wire.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        wire.sendall(b"0\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 200")
    assert attacked.drains() is True
    assert attacked.put(b'{"draining": false}').status_code == 200


def test_a_body_that_is_not_json_is_refused(attacked: Attacked) -> None:
    for body in (b"{", b"{'draining': true}", b"\xff\xfe", b'{"draining": tru', b"\0"):
        problem(attacked.put(body), 400, "malformed-request")
    nested = attacked.put(b"[" * 30_000 + b"]" * 30_000)
    assert nested.status_code in (400, 422)
    assert nested.headers["content-type"] == "application/problem+json"
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        problem(attacked.put(b'{"draining": true}', kind), 415, "unsupported-media-type")
    assert attacked.drains() is False


def test_a_head_that_is_too_large_or_no_http_is_refused(attacked: Attacked) -> None:
    headers = attacked.admin | {f"X-{number}": "y" * 1000 for number in range(33)}
    problem(attacked.client.get("/jobs", headers=headers), 431, "headers-too-large")
    address = "/jobs?name=" + "x" * 9000
    problem(attacked.client.get(address, headers=attacked.admin), 413, "request-too-large")
    begun = b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n"
    endless = [b"X-%d: %b\r\n" % (number, b"y" * 1000) for number in range(33)]
    filled = b"y" * (middleware.LARGEST_HEAD - len(begun) - 3)
    for name, pieces in {
        "headers without end": [begun, *endless],
        "one header without end": [begun, b"X: " + filled, b"yy"],
        "TLS": [b"\x16\x03\x01 hello\r\n\r\n"],
        "no ASCII": [b"GET /\xff HTTP/1.1\r\n\r\n"],
    }.items():
        with attacked.wire(timeout=10) as wire:
            for piece in pieces:
                wire.sendall(piece)
            assert wire.recv(100).startswith(b"HTTP/1.1 400 "), name


def test_unknown_paths_and_methods_are_named_and_every_problem_and_route_has_a_page(
    attacked: Attacked,
) -> None:
    client, admin = attacked.client, attacked.admin
    problem(client.get("/nowhere", headers=admin), 404, "not-found")
    problem(client.get("/jobs/", headers=admin), 404, "not-found")
    answer = client.delete("/jobs", headers=admin)
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET"
    listed = client.get("/problems").json()["problems"]
    assert len(listed) > 20
    for one in listed:
        assert client.get(one["type"]).json() == one
    problem(client.get("/problems/none"), 404, "not-found")
    page = client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"<b>{method.upper()}</b> <code>{path}</code>" in page.text
    assert "<script" not in page.text
    assert "https://" not in page.text


def ended(wire: socket.socket, drip: bytes = b"", *, reads: bool = True) -> float:
    """After how many seconds the service hangs up on a client that drips on."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_SECONDS:
        try:
            if drip:
                wire.sendall(drip)
            if not reads:
                # Only an error tells: what there is to read stays unread.
                wire.sendall(b"")
                if wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or _reset(wire):
                    break
                time.sleep(0.05)
            elif wire.recv(65536) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


def _reset(wire: socket.socket) -> bool:
    """Whether the other side is gone, told by the state of the connection."""
    state = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != 1  # TCP_ESTABLISHED


KEPT_FOR_NOTHING: dict[str, tuple[bytes, bytes]] = {
    "silent": (b"", b""),
    "slow head": (b"GET /healthz HTTP/1.1\r\n", b"a"),
    "a byte after the answer": (GET, b"G"),
    "empty lines after the answer": (GET, b"\r\n"),
    "answered before the body came": (
        GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 9999\r\n\r\n"),
        b"a",
    ),
    "answered before the chunks came": (
        GET.replace(b"\r\n\r\n", b"\r\n" + CHUNKS + b"\r\n"),
        b"1\r\na\r\n",
    ),
    "slow trailers": (CHUNKED, b"a: b\r\n"),
    "never reading": ((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * 200, b""),
}


def test_clients_that_keep_a_connection_for_nothing_are_ended(attacked: Attacked) -> None:
    def keep(name: str) -> float:
        sent, drip = KEPT_FOR_NOTHING[name]
        with attacked.wire() as wire:
            reads = name != "never reading"
            if not reads:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            wire.sendall(sent)
            return ended(wire, drip, reads=reads)

    with ThreadPoolExecutor(len(KEPT_FOR_NOTHING)) as threads:
        took = dict(zip(KEPT_FOR_NOTHING, threads.map(keep, KEPT_FOR_NOTHING), strict=True))
    assert {name: one for name, one in took.items() if one >= 4 * SECONDS + 1} == {}


def test_trailers_without_end_are_cut_off_and_a_token_in_one_opens_nothing(
    attacked: Attacked,
) -> None:
    own = psutil.Process()
    with attacked.wire(timeout=3) as wire:
        wire.sendall(CHUNKED)
        before, sent = own.memory_info().rss, 0
        with suppress(OSError):
            while sent < 8 * 1024 * 1024:
                sent += wire.send(b"a: b\r\n" * 1000)
    # The rest of it lay in the buffers of the system.
    assert sent < 8 * 1024 * 1024
    assert own.memory_info().rss - before < 20 * 1024 * 1024
    token = attacked.admin["Authorization"].encode()
    with attacked.wire(timeout=3) as wire:
        wire.sendall(CHUNKED + b"Authorization: " + token + b"\r\n\r\n")
        assert b" 401 " in wire.recv(65536).partition(b"\r\n")[0]


def test_connections_are_capped_for_each_address_and_in_all(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", PATIENCE_SECONDS)
    with ExitStack() as stack:

        def refused(source: str, count: int) -> int:
            """How many of so many silent connections are answered."""
            wires = [stack.enter_context(attacked.wire(source)) for _ in range(count)]
            time.sleep(0.2)  # none of the others ever says anything
            answered, _, _ = select.select(wires, [], [], 0)
            assert all(b" 503 " in one.recv(100) for one in answered)
            return len(answered)

        assert refused("127.0.0.2", PER_ADDRESS + 3) == 3
        assert attacked.client.get("/healthz").status_code == 200
        assert refused("127.0.0.3", PER_ADDRESS) == 2 * PER_ADDRESS - IN_ALL
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        # What has ended gives its place back.
        with attacked.wire("127.0.0.2", timeout=3) as wire:
            wire.sendall(GET)
            if b" 200 " in wire.recv(100):
                break
        assert time.monotonic() < deadline
    port = attacked.client.base_url.port
    while [
        one
        for one in psutil.Process(os.getpid()).net_connections("tcp")
        if one.laddr.port == port and one.status == "ESTABLISHED"
    ]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


WRONG: list[dict[str, Any]] = [
    {"actions": ["x" * 60_000]},
    {"actions": [f"x{number}" for number in range(8_000)]},
    {"actions": ["expire_snapshots"], "options": {"y" * 200 + str(n): {} for n in range(250)}},
    {f"field{number}": 1 for number in range(4_000)},
]


def test_an_error_says_little_however_much_is_wrong(attacked: Attacked) -> None:
    client, admin = attacked.client, attacked.admin
    for body in WRONG:
        answer = client.post("/tables/a/b/maintenance", json=body, headers=admin)
        problem(answer, 422, "invalid-request")
        assert len(answer.content) < 16_000
    lines = admin | {"Content-Type": "application/x-ndjson"}
    answer = client.post("/events", content=b"{}\n" * 101, headers=lines)
    assert "100" in problem(answer, 413, "request-too-large")["detail"]
    assert client.post("/events", content=b"{}\n" * 100, headers=lines).status_code == 202
    # Half a character in a cursor.
    for count in (1, 2, 3):
        text = json.dumps(["\ud800"] * count)
        cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        for path in ("/jobs", "/tables", "/tasks", "/audit"):
            answer = client.get(f"{path}?cursor={cursor}", headers=admin)
            problem(answer, 422, "invalid-request")


def test_one_lock_does_not_stop_the_service(attacked: Attacked) -> None:
    """Whoever locks a table of ours holds up what needs it, for a bounded time, and no probe."""
    client = attacked.client
    with attacked.place.control.connect() as blocker, ThreadPoolExecutor(18) as threads:
        blocker.execute("BEGIN; LOCK TABLE tidegate_control.jobs")
        began = time.monotonic()
        asked = [threads.submit(client.get, "/jobs", headers=attacked.admin) for _ in range(18)]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: attacked.place.control.value(waiting) >= 10, "ten", PATIENCE_SECONDS)
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200
        for one in asked:
            answer = one.result()
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
        assert time.monotonic() - began < 8
        blocker.execute("ROLLBACK")
    assert client.get("/jobs", headers=attacked.admin).status_code == 200


def test_guesses_are_slowed_and_audited_and_good_tokens_go_on(attacked: Attacked) -> None:
    client, place = attacked.client, attacked.place
    # Many who show a good one for the first time are no guesses.
    token = make_token(attacked.project, "fresh", Scope.READ)
    with ThreadPoolExecutor(18) as threads:
        asked = [threads.submit(client.get, "/jobs", headers=token) for _ in range(18)]
        assert {one.result().status_code for one in asked} == {200}
    lines = "SELECT count(*) FROM tidegate_control.access_audit WHERE action = 'authentication'"
    wrong = [{"Authorization": f"Bearer tg_{number}"} for number in range(60)]
    found = [client.get("/jobs", headers=one) for one in wrong]
    slowed = [one for one in found if one.status_code == 429]
    assert found[0].status_code == 401
    assert len(slowed) > 30
    problem(slowed[0], 429, "too-many-guesses")
    assert int(slowed[0].headers["retry-after"]) >= 1
    assert client.get("/jobs", headers=attacked.admin).status_code == 200
    assert client.put("/drain", json={"draining": False}, headers=attacked.admin).is_success
    assert place.control.value(lines) == 1
    (line,) = [
        one
        for one in client.get("/audit", headers=attacked.admin).json()["lines"]
        if one["action"] == "authentication"
    ]
    assert (line["actor"], line["outcome"]) == ("127.0.0.1 (HTTP)", "401 unauthorized")
