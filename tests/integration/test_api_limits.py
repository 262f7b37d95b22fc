"""What the service does not take: too large, too slow, of another type, not HTTP at all."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from integration.conftest import MakePlace
from integration.served import problem, serving
from tidegate.api import bodies, connections, door
from tidegate.project import Project

LARGE = 70_000


@pytest.fixture
def project(make_place: MakePlace) -> Iterator[Project]:
    with make_place(serve={"max_request": "64KB"}).open() as opened:
        yield opened


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with serving(project) as client:
        yield client


def wire(client: httpx.Client) -> socket.socket:
    host, port = client.base_url.host, client.base_url.port
    assert port is not None
    return socket.create_connection((host, port), timeout=10)


def received(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the document of an answer, after which the service hangs up."""
    parts = b""
    while piece := connection.recv(65536):
        parts += piece
    head, _, body = parts.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, head
    return int(head.split()[1]), json.loads(body)


def test_a_body_that_says_that_it_is_too_large_is_not_read(client: httpx.Client) -> None:
    body = json.dumps({"draining": True, "x": "y" * LARGE})
    answer = client.put("/drain", content=body, headers={"Content-Type": "application/json"})
    found = problem(answer, 413, "request-too-large")
    assert "65,536" in found["detail"]
    assert client.get("/drain").json()["draining"] is False


def test_a_body_without_a_length_is_read_up_to_the_limit_only(client: httpx.Client) -> None:
    with wire(client) as connection:
        connection.sendall(
            b"PUT /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(LARGE // 1000):
            connection.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        status, document = received(connection)
    assert (status, document["type"]) == (413, "/problems/request-too-large")


def test_a_body_below_the_limit_is_taken_in_pieces(client: httpx.Client) -> None:
    with wire(client) as connection:
        connection.sendall(
            b"PUT /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        for piece in (b'{"drai', b'ning": ', b"true}"):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_arrive_is_not_waited_for(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SECONDS", 0.2)
    with wire(client) as connection:
        connection.sendall(
            b"PUT /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        status, document = received(connection)
    assert (status, document["type"]) == (408, "/problems/request-timeout")


def test_a_head_that_does_not_arrive_is_not_waited_for(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with wire(client) as connection:
        connection.sendall(b"GET /jobs HTTP/1.1\r\nHost: loc")
        assert connection.recv(100) == b""


def test_a_head_that_does_not_end_is_refused_before_it_fills_the_memory(
    client: httpx.Client,
) -> None:
    with wire(client) as connection:
        connection.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(33):
            connection.sendall(b"X-%d: %b\r\n" % (number, b"y" * 1000))
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_head_that_is_too_large_is_refused(client: httpx.Client) -> None:
    headers = {f"X-{number}": "y" * 1000 for number in range(33)}
    problem(client.get("/jobs", headers=headers), 431, "headers-too-large")


def test_one_header_without_an_end_is_refused_as_well(client: httpx.Client) -> None:
    with wire(client) as connection:
        begun = b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX: "
        connection.sendall(begun + b"y" * (door.LARGEST_HEAD - len(begun)))
        connection.sendall(b"yy")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_an_address_that_is_too_long_is_refused(client: httpx.Client) -> None:
    problem(client.get("/jobs?name=" + "x" * 9000), 413, "request-too-large")


@pytest.mark.parametrize("sent", [b"\x16\x03\x01 hello\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"])
def test_what_is_not_http_is_told_so(client: httpx.Client, sent: bytes) -> None:
    with wire(client) as connection:
        connection.sendall(sent)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "body", [b"{", b"{'draining': true}", b"\xff\xfe", b'{"draining": tru', b"\0"]
)
def test_a_body_that_is_not_json_is_refused(client: httpx.Client, body: bytes) -> None:
    answer = client.put("/drain", content=body, headers={"Content-Type": "application/json"})
    problem(answer, 400, "malformed-request")


def test_a_body_nested_beyond_reason_is_refused(client: httpx.Client) -> None:
    body = b"[" * 30_000 + b"]" * 30_000
    answer = client.put("/drain", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_body_of_another_type_is_refused(client: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.put("/drain", content=b'{"draining": true}', headers=headers)
    problem(answer, 415, "unsupported-media-type")
    assert client.get("/drain").json()["draining"] is False


def test_a_path_that_there_is_not_and_a_method_that_it_does_not_take(client: httpx.Client) -> None:
    problem(client.get("/nowhere"), 404, "not-found")
    problem(client.get("/jobs/"), 404, "not-found")
    answer = client.delete("/jobs")
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET"


def test_every_problem_has_a_page(client: httpx.Client) -> None:
    listed = client.get("/problems").json()["problems"]
    assert len(listed) > 20
    for one in listed:
        assert client.get(one["type"]).json() == one
    problem(client.get("/problems/none"), 404, "not-found")


def test_the_page_for_people_shows_every_route_and_loads_nothing(client: httpx.Client) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"<b>{method.upper()}</b> <code>{path}</code>" in answer.text
    assert "<script" not in answer.text
    assert "https://" not in answer.text
