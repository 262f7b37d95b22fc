"""Events through the service: each is kept once, whatever it holds and however often it comes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from databases import Databases
from integration.conftest import MakePlace, Place
from integration.raw_events import event_place, run_phases
from integration.served import make_token, plain_client, problem, serving
from integration.shared_places import shared_places
from integration.test_api_process import served, wait_until_blocked
from tidegate.core.identity import Scope
from tidegate.core.relation import Relation
from tidegate.events import intake
from tidegate.events.intake import accept_events, copy_in
from tidegate.events.status import retry_events
from tidegate.project import Project

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
GOOD: dict[str, Any] = {
    "type": "purchase",
    "occurred_at": "2026-03-02T08:30:00Z",
    "account": {"id": "a"},
    "amount": 1,
    "currency": "EUR",
}


@pytest.fixture(scope="module")
def shared(kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with shared_places(kept_databases, tmp_path_factory.mktemp("events")) as make:
        yield event_place(make, serve={"max_request": "64KB"})


@pytest.fixture
def place(shared: Place) -> Place:
    """No event has come, and there is no token."""
    shared.target.execute(
        "TRUNCATE raw_events, tidegate_control.api_tokens, tidegate_control.access_audit CASCADE"
    )
    return shared


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with place.open() as opened:
        yield opened


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with serving(project) as client:
        yield client


def kept(place: Place) -> dict[UUID, str]:
    """What was taken in; all of it waits."""
    rows = place.target.execute("SELECT id, body, payload, status, error FROM raw_events")
    assert all(row[2:] == (None, "pending", None) for row in rows)
    return {row[0]: row[1] for row in rows}


def test_events_are_kept_one_by_one_and_what_is_sent_again_is_known(
    place: Place, client: httpx.Client
) -> None:
    def post(content: Any, **headers: str) -> Any:
        return client.post("/events", content=content, headers=headers).json()

    several = ['{"n": 1}', "nonsense", '{"n": 3}']
    for headers, body in (
        (LINES, b'{"n": 1}\n\nnonsense\r\n{"n": 3}\n'),
        (JSON, b'[{"n": 1}, nonsense, {"n": 3}]'),
    ):
        answer = post(body, **headers)
        assert (answer["accepted"], answer["known"]) == (3, 0)
        held = kept(place)
        assert [held[UUID(one)] for one in answer["ids"]] == several
    place.target.execute("TRUNCATE raw_events")

    event_id = uuid4()
    named = JSON | {"Event-Id": str(event_id)}
    for sent, said in (
        ('{"v":1}', (1, 0, [])),
        ('{"v":1}', (0, 1, [])),
        ('{"v":2}', (0, 1, [str(event_id)])),
    ):
        answer = post(sent, **named)
        assert (answer["accepted"], answer["known"], answer["differing"]) == said
        assert answer["ids"] == [str(event_id)]
    assert kept(place) == {event_id: '{"v":1}'}

    # A request with its key adds nothing, and what it has more is new.
    body = b'{"n": 1}\n{"n": 1}\n{"n": 2}'
    keyed = LINES | {"Idempotency-Key": "hour 7"}
    first, again = post(body, **keyed), post(body, **keyed)
    assert (first["accepted"], again["accepted"], again["known"]) == (3, 0, 3)
    assert first["ids"] == again["ids"]
    longer = post(body + b'\n{"n": 3}', **keyed)
    assert (longer["accepted"], longer["known"]) == (1, 3)
    assert post(body, **(LINES | {"Idempotency-Key": "hour 8"}))["accepted"] == 3
    assert len(kept(place)) == 8

    # Events are known by the ids that they carry.
    one, two, user = uuid4(), uuid4(), uuid4()
    events = json.dumps(
        [
            {"event_id": str(one), "n": 1},
            {"id": str(two), "n": 2},
            {"user": {"id": str(user)}, "n": 3},
            {"event_id": str(one), "n": 1},
            {"event_id": str(one), "n": 9},
        ]
    )
    first, again = post(events, **JSON), post(events, **JSON)
    assert (first["accepted"], first["known"], first["differing"]) == (3, 2, [str(one)])
    assert (again["accepted"], again["known"]) == (1, 4)
    held = kept(place)
    assert (json.loads(held[one])["n"], json.loads(held[two])["n"]) == (1, 2)
    assert user not in held
    assert len(held) == 12


def test_a_request_that_is_wrong_itself_is_refused_and_leaves_nothing(
    place: Place, client: httpx.Client
) -> None:
    assert client.post("/events", content=b"[]", headers=JSON).json()["ids"] == []
    assert client.post("/events", content=b"\n", headers=LINES).json()["accepted"] == 0
    problem(client.post("/events", content=b" \n", headers=JSON), 400, "malformed-request")
    problem(client.post("/events"), 400, "malformed-request")
    for headers, status, kind in (
        ({"Content-Type": "text/plain"}, 415, "unsupported-media-type"),
        ({}, 415, "unsupported-media-type"),
        (JSON | {"Content-Encoding": "gzip"}, 415, "unsupported-media-type"),
        (JSON | {"Event-Id": "17"}, 422, "invalid-request"),
        (JSON | {"Event-Id": str(uuid4())}, 422, "invalid-request"),
        (JSON | {"Idempotency-Key": "x" * 201}, 422, "invalid-request"),
        (JSON | {"Idempotency-Key": ""}, 422, "invalid-request"),
    ):
        problem(client.post("/events", content=b'[{"n": 1}, 2]', headers=headers), status, kind)
    body = b"\n".join(b'{"n": %d}' % number for number in range(10_000))
    found = problem(client.post("/events", content=body, headers=LINES), 413, "request-too-large")
    assert "65,536" in found["detail"]
    # Lines are taken here and nowhere else.
    answer = client.put("/drain", content=b'{"draining": true}', headers=LINES)
    problem(answer, 415, "unsupported-media-type")
    assert kept(place) == {}


def test_events_need_a_token_that_may_submit_and_are_kept_with_their_sender(
    place: Place, project: Project, client: httpx.Client
) -> None:
    client.post("/events", json={"a": 1})
    # The table is from a time when senders were not kept.
    place.target.execute("ALTER TABLE raw_events DROP COLUMN sender")
    client.post("/events", json={"a": 2})
    reader = make_token(project, "r", Scope.READ)
    problem(client.post("/events", json={}), 401, "unauthorized")
    problem(client.post("/events", json={}, headers=reader), 403, "forbidden")
    assert len(kept(place)) == 2
    # The same key of two senders means different events.
    for name, scope in (("web", Scope.EVENTS), ("tills", Scope.SUBMIT)):
        token = make_token(project, name, scope) | {"Idempotency-Key": "1"}
        answer = client.post("/events", json={"from": name}, headers=token)
        assert (answer.status_code, answer.json()["accepted"]) == (202, 1)
    rows = place.target.execute("SELECT sender FROM raw_events ORDER BY received_at")
    assert rows == [(None,), ("loopback",), ("web",), ("tills",)]
    # What was refused is in the audit; what was taken in is in its own table.
    admin = make_token(project, "a", Scope.ADMIN)
    lines = client.get("/audit", headers=admin).json()["lines"]
    assert [(one["action"], one["outcome"]) for one in lines if "events" in one["action"]] == [
        ("POST /events", "403 forbidden")
    ]


def test_a_project_without_events_or_without_their_database_says_so(make_place: MakePlace) -> None:
    def answers(client: httpx.Client) -> tuple[httpx.Response, httpx.Response]:
        return client.post("/events", json={}), client.get("/events/status")

    place = make_place()
    with place.open() as project, serving(project) as client:
        for answer in answers(client):
            found = problem(answer, 422, "refused")
            assert "events.connection" in found["detail"]
            assert "--template events" in found["hint"]
        assert "tidegate_events_pending" not in client.get("/metrics").text

    place = event_place(make_place, made=False)
    toml = place.folder / "tidegate.toml"
    text = toml.read_text()
    nobody = "postgresql://nobody@127.0.0.1:1/none"
    away = text.replace("warehouse = ", "was = ", 1)
    toml.write_text(away.replace("[connections]\n", f'[connections]\nwarehouse = "{nobody}"\n'))
    with place.open() as project, serving(project) as client:
        for answer in answers(client):
            problem(answer, 503, "database-unavailable")
            assert "nobody" not in answer.text
        assert "tidegate_events_unreadable 1.0" in client.get("/metrics").text

    # The first event finds its table made, and a wrong model keeps none out of it.
    toml.write_text(text)
    with place.open() as project, serving(project) as client:
        with ThreadPoolExecutor(4) as pool:
            sent = pool.map(lambda _: client.post("/events", json={}), range(8))
            assert [one.status_code for one in sent] == [202] * 8
        assert len(kept(place)) == 8
        (place.folder / "events.toml").write_text("facts = 17", encoding="utf-8")
        assert client.post("/events", json={}).status_code == 202
        assert "tidegate_events_unreadable 1.0" in client.get("/metrics").text
        place.target.execute("DROP TABLE raw_events")
        for answer in answers(client):
            assert "events.toml" in problem(answer, 422, "refused")["detail"]


def test_how_events_stand_is_told(place: Place, project: Project, client: httpx.Client) -> None:
    client.post("/events", json=[{"n": 1}, {"n": 2}], headers={"Idempotency-Key": "k"})
    client.post("/events", json=[{"n": 1}], headers={"Idempotency-Key": "k"})
    figures = client.get("/metrics").text
    assert 'tidegate_events_taken_in_total{outcome="accepted"} 2.0' in figures
    assert 'tidegate_events_taken_in_total{outcome="known"} 1.0' in figures
    found = client.get("/events/status").json()
    assert (found["pending"], found["failed"], found["is_provisioned"]) == (2, 0, True)
    assert 0 <= found["lag_seconds"] < 60
    run_phases(project)
    figures = client.get("/metrics").text
    assert "tidegate_events_pending 0.0" in figures
    assert "tidegate_events_failed 2.0" in figures
    assert 'tidegate_event_view_behind{view="analytics.mv_revenue_summary"} 0.0' in figures
    found = poll(client, lambda one: one["pending"] == 0)
    assert found["failed"] == 2
    assert sum(one["events"] for one in found["reasons"]) == 2
    assert found["last_hour"]["failed"] == 2
    assert {one["view"] for one in found["views"]} >= {"analytics.mv_revenue_summary"}


def poll(client: httpx.Client, good: Callable[[Any], bool]) -> Any:
    """What is told, which may be a second old."""
    deadline = time.monotonic() + 5
    while not good(found := client.get("/events/status").json()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def written(member: str, text: str | bytes) -> bytes:
    """A good event in which one member is written like this."""
    given = text if isinstance(text, bytes) else text.encode()
    return json.dumps(GOOD | {member: "?"}).encode().replace(b'"?"', given)


# What is sent, and what its reason must speak of; for good ones, whether jsonb takes them.
JUDGED: dict[bytes, str | bool] = {
    json.dumps(GOOD, indent=4).encode(): True,
    written("occurred_at", '"2026-03-02T14:15:00+05:45"'): True,
    written("amount", "10e-1"): True,
    written("type", '"\\u0070urchase"'): True,
    written("more", "1e400"): True,
    written("more", "1e999999"): False,
    written("more", '"\\u0000"'): False,
    written("more", '"\\udc00"'): False,
    b'{ "b":1.00,\n "a": "\\u00e9\xc3\xa9" }\n': "missing",
    b"nonsense": "not JSON",
    b"[1, 2": "not JSON",
    b"\xef\xbb\xbf{}": "not JSON",
    b"{" * 30_000: "nested",
    json.dumps(GOOD).encode("utf-16"): "not JSON",
    written("type", b'"a\0b"'): "not JSON",
    b"null": "not an object",
    b"{}": "missing",
    written("more", '"' + "x" * 300_000 + '"'): "large",
    written("account", '{"id": "' + "é" * 1_500 + '"}'): "account_id",
    written("account", '{"id": "\\ud800"}'): "account_id",
    written("amount", "9" * 5_000): "amount",
    written("amount", "1e999999999999"): "amount",
    written("amount", "1.005"): "amount",
    written("properties", '{"n": 1e999999}'): "properties",
    written("properties", '{"a": "\\u0000"}'): "properties",
    written("more", "[" * 200_000): "nested",
    written("occurred_at", '"0001-01-01T00:00:00Z"'): "older",
    written("occurred_at", '"9999-12-31T23:59:59Z"'): "future",
    written("occurred_at", '"2026-02-30T00:00:00Z"'): "occurred_at",
}


def test_whatever_is_sent_is_kept_bad_events_have_a_reason_and_good_ones_pass(
    make_place: MakePlace,
) -> None:
    place = event_place(make_place, more={"spark_from": 1_000_000})
    sent: dict[UUID, bytes] = {}
    found = "SELECT id, status, error, payload IS NOT NULL FROM raw_events ORDER BY id"
    with place.open() as project, serving(project) as client:
        for body in JUDGED:
            answer = client.post("/events", content=body, headers=JSON)
            assert answer.status_code == 202, body[:80]
            (event_id,) = answer.json()["ids"]
            assert answer.json() == {"accepted": 1, "known": 0, "ids": [event_id], "differing": []}
            sent[UUID(event_id)] = body
        assert kept(place) == {
            event_id: body.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
            for event_id, body in sent.items()
        }
        processed = run_phases(project)[0]
        rows = place.target.execute(found)
        for event_id, status, error, has_payload in rows:
            judged = JUDGED[sent[event_id]]
            if isinstance(judged, bool):
                assert (status, error, has_payload) == ("done", None, judged), sent[event_id][:80]
            else:
                assert status == "failed", sent[event_id][:80]
                assert judged in error
        failed = sum(isinstance(one, str) for one in JUDGED.values())
        assert (processed.failed, processed.done) == (failed, len(sent) - failed)
        # What says the same in other words is one fact.
        assert processed.facts == 1
        facts = place.target.execute("SELECT amount::text, currency FROM warehouse.fact_events")
        assert facts == [("1.00", "EUR")]
        # No month was made for a date that is absurd.
        (months,) = place.target.execute(
            "SELECT min(relid::text), max(relid::text)"
            " FROM pg_partition_tree('warehouse.fact_events') WHERE isleaf"
        )
        assert months[0] == "warehouse.fact_events_2026_03"
        assert months[1] < "warehouse.fact_events_2100"
        assert retry_events(project.context) == failed
        again = run_phases(project)[0]
        assert (again.failed, again.facts) == (failed, 0)
        assert place.target.execute(found) == rows


def test_a_locked_table_is_not_waited_for_without_end_nor_does_order_deadlock(
    place: Place, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_events = [{"event_id": str(UUID(int=number))} for number in (2, 1)]
    insert = "INSERT INTO raw_events (id, body) VALUES (%s, '{}')"
    with place.target.connect() as other, ThreadPoolExecutor(1) as pool:
        with other.transaction():
            other.execute(insert, [UUID(int=1)])
            sent = pool.submit(client.post, "/events", json=sent_events)
            wait_until_blocked(place.target.conninfo)
            # The request holds nothing yet that we could wait for.
            other.execute(insert, [UUID(int=2)])
        assert (sent.result().status_code, sent.result().json()["known"]) == (202, 2)

    monkeypatch.setattr("tidegate.service.middleware.LOCK_SECONDS", 0.2)
    with place.target.connect() as other, other.transaction():
        other.execute("LOCK TABLE raw_events IN ACCESS EXCLUSIVE MODE")
        problem(client.post("/events", json={}), 503, "database-unavailable")
    assert len(kept(place)) == 2
    # Drained or not, events come in.
    client.put("/drain", json={"draining": True})
    assert client.post("/events", json={}).status_code == 202
    client.put("/drain", json={"draining": False})
    assert len(kept(place)) == 3


def test_a_service_that_is_killed_while_clients_send_loses_and_doubles_nothing(
    place: Place,
) -> None:
    senders, requests, events = 4, 15, 20
    batches = [
        [
            {
                "event_id": str(UUID(int=(sender // 2 << 64) + (number << 32) + place + 1)),
                "n": place,
            }
            for place in range(events)
        ]
        for sender in range(senders)
        for number in range(requests)
    ]
    # Each batch is sent twice at the same time, once backwards, and again until it was answered.
    waiting = sorted(enumerate(batches), key=lambda one: one[0] % requests)
    answered: set[int] = set()
    lock, begun = threading.Lock(), threading.Event()
    address = [""]

    def send() -> None:
        with plain_client(address[0]) as client:
            while True:
                with lock:
                    if not waiting:
                        return
                    number, batch = waiting.pop(0)
                sent = batch if number % 2 else batch[::-1]
                try:
                    answer = client.post("/events", json=sent)
                except httpx.TransportError:
                    with lock:
                        waiting.append((number, batch))
                    return
                assert answer.status_code == 202, answer.text
                assert answer.json()["differing"] == []
                with lock:
                    answered.add(number)
                    if len(answered) > len(batches) // 4:
                        begun.set()

    for killed in (True, False):
        with served(place.folder) as (process, said), ThreadPoolExecutor(4) as pool:
            address[0] = said["address"]
            sending = [pool.submit(send) for _ in range(4)]
            if killed:
                assert begun.wait(60)
                os.kill(process.pid, signal.SIGKILL)
            for one in sending:
                one.result(60)
        if killed:
            assert waiting
    assert answered == set(range(len(batches)))
    expected = {UUID(str(event["event_id"])) for batch in batches for event in batch}
    assert set(kept(place)) == expected
    assert place.target.value("SELECT count(*) FROM raw_events") == len(expected)


def test_a_bulk_of_events_is_copied_in_and_given_again_adds_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "COPIED_TOGETHER", 200)
    at = datetime(2026, 11, 2, tzinfo=UTC)
    raw = Relation("public", "raw_events")
    events: list[tuple[UUID, str, datetime | None]] = [
        (UUID(int=number + 1), f'{{"n": {number}, "s": "\\\\é\t\0"}}', at if number % 2 else None)
        for number in range(450)
    ]
    with place.open() as project, project.context.databases.lease("warehouse") as connection:
        assert copy_in(connection, raw, events[:300]) == 300
        assert copy_in(connection, raw, events + events[:10]) == 150
        assert copy_in(connection, raw, []) == 0
        assert accept_events(connection, raw, [(UUID(int=1), events[0][1])]).known == 1
    held = kept(place)
    assert len(held) == 450
    assert held[UUID(int=8)] == '{"n": 7, "s": "\\\\é\t\\x00"}'
    told = place.target.execute("SELECT count(*) FROM raw_events WHERE received_at = '2026-11-02Z'")
    assert told == [(225,)]


def test_names_of_tables_are_never_part_of_a_statement(make_place: MakePlace) -> None:
    name = '"odd % schema"."raw ""events"" %s"'
    place = event_place(make_place, more={"raw_table": name})
    with place.open() as project, serving(project) as client:
        assert client.post("/events", json={}, headers={"Idempotency-Key": "k"}).status_code == 202
        assert client.post("/events", json={}, headers={"Idempotency-Key": "k"}).json()["known"]
        raw = Relation.parse(name)
        with project.context.databases.lease("warehouse") as connection:
            assert copy_in(connection, raw, [(uuid4(), "{}", None)]) == 1
    assert place.target.value(f"SELECT count(*) FROM {raw}") == 2
