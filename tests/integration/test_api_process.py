"""`tidegate serve` as a process: how it starts and leaves, and a database that goes and comes."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from acceptance.processes import until
from forked import Forked
from integration.cached_lakes import ORDERS, cared_place, refresh, small_files
from integration.commands import BUSY, DONE, USAGE
from integration.conftest import MakePlace
from integration.here import tidegate
from integration.served import plain_client, problem, serving
from tidegate.postgres.embedded import EmbeddedServer


@contextmanager
def served(
    folder: Path, *arguments: str, log: Path | None = None
) -> Iterator[tuple[Forked, dict[str, Any]]]:
    """A process that serves, and what it said when it began to."""
    ours, theirs = os.pipe()
    quiet = os.open(os.devnull, os.O_RDWR)
    errors = os.dup(quiet) if log is None else os.open(log, os.O_WRONLY | os.O_CREAT)
    process = Forked(
        ["tidegate", "serve", "--port", "0", "--json", *arguments],
        (quiet, theirs, errors),
        os.environ,
        folder,
    )
    for one in (theirs, quiet, errors):
        os.close(one)
    try:
        with os.fdopen(ours) as said:
            text = ""
            while not text.rstrip().endswith("}"):
                line = said.readline()
                assert line, "it ended"
                text += line
            yield process, json.loads(text)
    finally:
        process.kill()
        process.wait(10)


def sweeper_age(client: httpx.Client) -> float:
    """Of the sweep that the service does itself."""
    deadline = time.monotonic() + 10
    while True:
        found = client.get("/readyz").json().get("sweeper_age_seconds")
        if found is not None:
            return float(found)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_blocked(conninfo: str) -> None:
    text = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        until(lambda: connection.execute(text).fetchone() is not None, "a session that waits", 10)


def address_of(url: str) -> tuple[str, int]:
    parsed = httpx.URL(url)
    assert parsed.port is not None
    return parsed.host, parsed.port


def test_it_says_where_it_listens_and_leaves_even_while_a_request_waits_for_the_database(
    make_place: MakePlace,
) -> None:
    place = make_place()
    with served(place.folder) as (process, said), plain_client(said["address"]) as client:
        assert said["tokens_needed"] is False
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/jobs").json()["jobs"] == []
        assert sweeper_age(client) < 60
        with (
            place.control.connect() as blocker,
            socket.create_connection(address_of(said["address"])) as waiting,
        ):
            blocker.execute("BEGIN")
            blocker.execute("LOCK TABLE tidegate_control.control_plane IN ACCESS EXCLUSIVE MODE")
            waiting.sendall(b"GET /drain HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until_blocked(place.control.conninfo)
            told = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(10)
            assert time.monotonic() - told < 2.2


def test_with_a_token_another_address_is_bound(make_place: MakePlace) -> None:
    place = make_place()
    text = tidegate(place.folder, "token", "create", "ci").out.strip()
    with served(place.folder, "--host", "0.0.0.0") as (process, said):
        assert said["tokens_needed"] is True
        port = address_of(said["address"])[1]
        with plain_client(f"http://127.0.0.1:{port}") as client:
            problem(client.get("/jobs"), 401, "unauthorized")
            headers = {"Authorization": f"Bearer {text}", "Host": "tidegate.example"}
            assert client.get("/jobs", headers=headers).status_code == 200
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - told < 2


def test_a_port_that_is_taken_or_none_is_refused_and_the_description_needs_no_project(
    make_place: MakePlace, tmp_path: Path
) -> None:
    place = make_place()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = tidegate(place.folder, "serve", "--port", str(taken.getsockname()[1]))
    assert done.code == BUSY
    assert "--port" in done.err
    for port in ("-1", "65536", "x"):
        assert tidegate(place.folder, "serve", "--port", port).code == USAGE
    described = tidegate(tmp_path, "serve", "--openapi")
    assert described.code == DONE
    assert described.document["openapi"].startswith("3.1")


def test_it_speaks_tls_and_logs_requests_as_json(make_place: MakePlace, tmp_path: Path) -> None:
    place = make_place(serve={"log": "json", "max_connections": 10})
    cert, key, log = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "log"
    make = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        f" -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    )
    subprocess.run(make.split(), check=True, capture_output=True)
    refused = tidegate(place.folder, "serve", "--tls-cert", str(tmp_path / "none.pem"))
    assert (refused.code, "none.pem" in refused.err) == (2, True)
    trusted = ssl.create_default_context(cafile=str(cert))
    arguments = ["--tls-cert", str(cert), "--tls-key", str(key)]
    with served(place.folder, *arguments, log=log) as (_, said), ExitStack() as silent:
        assert said["address"].startswith("https://")
        host, port = address_of(said["address"])
        # Nobody of these ever begins a handshake; each has a place, as the others do.
        wires = [
            silent.enter_context(socket.create_connection((host, port), 10)) for _ in range(10)
        ]
        time.sleep(0.3)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{said['address']}/healthz", verify=trusted)
        for one in wires:
            one.close()
        given = {"X-Request-Id": "mine-1"}
        with httpx.Client(base_url=said["address"], verify=trusted) as client:
            deadline = time.monotonic() + 10
            while True:
                try:
                    answer = client.get("/jobs", headers=given)
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine-1")
            other = client.get("/nowhere", headers={"X-Request-Id": "not good\x7f"})
            assert len(other.headers["x-request-id"]) == 32
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (line,) = [one for one in lines if one.get("request_id") == "mine-1"]
    assert (line["event"], line["path"], line["status"]) == ("request", "/jobs", 200)
    assert line["actor"] == "loopback (HTTP)"


def test_a_database_that_is_down_is_said_as_such_and_all_is_well_when_it_is_back(
    make_place: MakePlace, server: EmbeddedServer
) -> None:
    place = cared_place(make_place)
    small_files(place, ORDERS, files=2)
    refresh(place)
    wish = {"actions": ["expire_snapshots"]}
    with place.open() as project, serving(project) as client:
        assert client.get("/jobs").status_code == 200
        server.stop("immediate")
        try:
            time.sleep(1.1)  # what was known a second ago counts no more
            requests = [
                client.get("/jobs"),
                client.get("/tables"),
                client.get("/tables/raw/orders/status/cached"),
                client.get("/tables/raw/orders/health"),
                client.get("/metrics"),
                client.get("/syncs"),
                client.get("/watermarks"),
                client.put("/drain", json={"draining": True}),
                client.post("/tables/raw/orders/maintenance", json=wish),
            ]
            for answer in requests:
                found = problem(answer, 503, "database-unavailable")
                assert int(answer.headers["retry-after"]) > 0
                assert "password" not in str(found)
                assert "127.0.0.1" not in str(found)
            ready = problem(client.get("/readyz"), 503, "not-ready")
            assert ready["reasons"] == ["the control database does not answer"]
            assert client.get("/healthz").status_code == 200
        finally:
            server.start()
        assert client.get("/tables/raw/orders/status/cached").status_code == 200
        assert client.get("/readyz").status_code == 200
        assert client.post("/tables/raw/orders/maintenance", json=wish).status_code == 202


def test_nobody_sweeping_or_a_database_of_another_version_is_not_ready(
    make_place: MakePlace,
) -> None:
    place = make_place()
    with place.open() as project, serving(project) as client:
        assert client.get("/readyz").status_code == 200
        place.control.execute(
            "INSERT INTO tidegate_control.sweeps VALUES ('shop', now() - interval '1 hour', 'x')"
        )
        found = problem(client.get("/readyz"), 503, "not-ready")
        assert "nobody has swept for 36" in found["reasons"][0]
        place.control.execute(
            "DELETE FROM tidegate_control.sweeps",
            "UPDATE tidegate_control.schema_migrations SET version = 999",
        )
        found = problem(client.get("/readyz"), 503, "not-ready")
        assert "has schema version 999, this service needs 1" in found["reasons"][0]
    place.control.execute("DROP SCHEMA tidegate_control CASCADE")  # of use to nobody


def test_up_runs_the_service_beside_the_workers_and_ends_both(make_place: MakePlace) -> None:
    place = make_place()
    ours, theirs = os.pipe()
    quiet = os.open(os.devnull, os.O_RDWR)
    command = ["tidegate", "--set", "serve.port=0", "up", "--serve"]
    process = Forked(command, (quiet, theirs, quiet), os.environ, place.folder)
    os.close(theirs)
    os.close(quiet)
    with os.fdopen(ours) as said:
        try:
            lines = iter(said.readline, "")
            line = next(one for one in lines if one.startswith("service | shop is served at "))
            url = line.split()[6]
            assert httpx.get(f"{url}/healthz").status_code == 200
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
