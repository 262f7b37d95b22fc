"""What was done to the service to stop it or to get in, and what it does about it now."""

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

import httpx
import psutil
import pytest

from databases import Databases
from integration.conftest import MakePlace, Place
from integration.raw_events import event_place
from integration.served import make_token, problem, serving
from tidegate.api import bodies, connections, door
from tidegate.model.access import Scope
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project

HOST = b"Host: localhost\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = (
    b"POST /events HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
)
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

    def wire(self, source: str = "127.0.0.1") -> socket.socket:
        host, port = self.client.base_url.host, self.client.base_url.port
        assert port is not None
        wire = socket.create_connection((host, port), 10, source_address=(source, 0))
        wire.settimeout(0.05)
        return wire


@pytest.fixture(scope="module")
def attacked(
    server: EmbeddedServer, kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Attacked]:
    """One service for all, whose patience is short."""
    names: list[str] = []

    def make(hint: str = "db") -> str:
        names.append(kept_databases.make(hint))
        return server.conninfo(names[-1])

    serve = {
        "max_request": "64KB",
        "max_events": 100,
        "max_connections": IN_ALL,
        "max_connections_per_address": PER_ADDRESS,
    }
    place = event_place(MakePlace(make, tmp_path_factory.mktemp("attacked")), serve=serve)
    with ExitStack() as stack:
        short = stack.enter_context(pytest.MonkeyPatch.context())
        short.setattr(connections, "REQUEST_SECONDS", SECONDS)
        short.setattr(connections, "WRITE_SECONDS", SECONDS)
        short.setattr(bodies, "SECONDS", SECONDS)
        short.setattr(door, "PLACE_SECONDS", SECONDS)
        project = stack.enter_context(place.open())
        admin = make_token(project, "admin", Scope.ADMIN)
        client = stack.enter_context(serving(project))
        client.headers["Connection"] = "close"
        yield Attacked(place, project, client, admin)
    kept_databases.give_back(*names)


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


def test_trailers_without_end_are_cut_off_and_fill_no_memory(attacked: Attacked) -> None:
    own = psutil.Process()
    with attacked.wire() as wire:
        wire.settimeout(3)
        wire.sendall(CHUNKED)
        before, sent = own.memory_info().rss, 0
        with suppress(OSError):
            while sent < 8 * 1024 * 1024:
                sent += wire.send(b"a: b\r\n" * 1000)
    # The rest of it lay in the buffers of the system.
    assert sent < 8 * 1024 * 1024
    assert own.memory_info().rss - before < 20 * 1024 * 1024


def test_a_token_in_a_trailer_opens_nothing(attacked: Attacked) -> None:
    token = attacked.admin["Authorization"].encode()
    with attacked.wire() as wire:
        wire.settimeout(3)
        wire.sendall(CHUNKED + b"Authorization: " + token + b"\r\n\r\n")
        assert b" 401 " in wire.recv(65536).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("sent", "drip", "reads"),
    [
        (b"", b"", True),
        (b"GET /healthz HTTP/1.1\r\n", b"a", True),
        (GET, b"G", True),
        (GET, b"\r\n", True),
        (GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 9999\r\n\r\n"), b"a", True),
        (GET.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), b"1\r\na\r\n", True),
        (CHUNKED, b"a: b\r\n", True),
        (b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n", b"", False),
    ],
    ids=[
        "silent",
        "slow head",
        "a byte after the answer",
        "empty lines after the answer",
        "answered before the body came",
        "answered before the chunks came",
        "slow trailers",
        "never reading",
    ],
)
def test_a_client_that_keeps_a_connection_for_nothing_is_ended(
    attacked: Attacked, sent: bytes, drip: bytes, reads: bool
) -> None:
    with attacked.wire() as wire:
        if not reads:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sent *= 200
        wire.sendall(sent)
        assert ended(wire, drip, reads=reads) < 4 * SECONDS + 1


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
        with attacked.wire("127.0.0.2") as wire:
            wire.settimeout(3)
            wire.sendall(GET)
            if b" 200 " in wire.recv(100):
                return
        assert time.monotonic() < deadline


def test_a_request_holds_only_so_many_events(attacked: Attacked) -> None:
    headers = attacked.admin | {"Content-Type": "application/x-ndjson"}
    answer = attacked.client.post("/events", content=b"{}\n" * 101, headers=headers)
    assert "100" in problem(answer, 413, "request-too-large")["detail"]
    answer = attacked.client.post("/events", content=b"{}\n" * 100, headers=headers)
    assert answer.status_code == 202


@pytest.mark.parametrize(
    "body",
    [
        {"actions": ["x" * 60_000]},
        {"actions": [f"x{number}" for number in range(8_000)]},
        {"actions": ["expire_snapshots"], "options": {"y" * 200 + str(n): {} for n in range(250)}},
        {f"field{number}": 1 for number in range(4_000)},
    ],
    ids=["long", "many", "options", "fields"],
)
def test_an_error_says_little_however_much_is_wrong(
    attacked: Attacked, body: dict[str, object]
) -> None:
    answer = attacked.client.post("/tables/a/b/maintenance", json=body, headers=attacked.admin)
    problem(answer, 422, "invalid-request")
    assert len(answer.content) < 16_000


def test_half_a_character_in_a_cursor_is_a_bad_cursor(attacked: Attacked) -> None:
    for count in (1, 2, 3):
        text = json.dumps(["\ud800"] * count)
        cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        for path in ("/jobs", "/tables", "/tasks", "/audit"):
            answer = attacked.client.get(f"{path}?cursor={cursor}", headers=attacked.admin)
            problem(answer, 422, "invalid-request")


def test_one_lock_does_not_stop_the_service(attacked: Attacked) -> None:
    """Whoever locks a table of ours holds up what needs it, for a bounded time, and no probe."""
    client = attacked.client
    with attacked.place.control.connect() as blocker, ThreadPoolExecutor(18) as threads:
        blocker.execute("BEGIN; LOCK TABLE tidegate_control.jobs")
        began = time.monotonic()
        asked = [threads.submit(client.get, "/jobs", headers=attacked.admin) for _ in range(18)]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while attacked.place.control.value(waiting) < 10:
            assert time.monotonic() - began < PATIENCE_SECONDS
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200
        for one in asked:
            answer = one.result()
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
        assert time.monotonic() - began < 8
        blocker.execute("ROLLBACK")
    assert client.get("/jobs", headers=attacked.admin).status_code == 200


def test_many_who_show_a_good_token_for_the_first_time_are_no_guesses(attacked: Attacked) -> None:
    token = make_token(attacked.project, "fresh", Scope.READ)
    with ThreadPoolExecutor(18) as threads:
        asked = [threads.submit(attacked.client.get, "/jobs", headers=token) for _ in range(18)]
        assert {one.result().status_code for one in asked} == {200}


def test_guesses_are_slowed_and_audited_and_good_tokens_go_on(attacked: Attacked) -> None:
    client, place = attacked.client, attacked.place
    lines = "SELECT count(*) FROM tidegate_control.access_audit WHERE action = 'authentication'"
    assert client.get("/jobs", headers=attacked.admin).status_code == 200
    wrong = [{"Authorization": f"Bearer tg_{number}"} for number in range(60)]
    found = [client.get("/jobs", headers=one) for one in wrong]
    slowed = [one for one in found if one.status_code == 429]
    assert found[0].status_code == 401
    assert len(slowed) > 30
    assert int(problem_headers(slowed[0])["retry-after"]) >= 1
    assert client.get("/jobs", headers=attacked.admin).status_code == 200
    assert client.put("/drain", json={"draining": False}, headers=attacked.admin).is_success
    assert place.control.value(lines) == 1
    (line,) = [
        one
        for one in client.get("/audit", headers=attacked.admin).json()["lines"]
        if one["action"] == "authentication"
    ]
    assert line["actor"] == "127.0.0.1 (HTTP)"
    assert line["outcome"] == "401 unauthorized"


def problem_headers(answer: httpx.Response) -> httpx.Headers:
    problem(answer, 429, "too-many-guesses")
    return answer.headers


def test_no_connection_is_left_behind(attacked: Attacked) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    port = attacked.client.base_url.port
    while [
        one
        for one in psutil.Process(os.getpid()).net_connections("tcp")
        if one.laddr.port == port and one.status == "ESTABLISHED"
    ]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
