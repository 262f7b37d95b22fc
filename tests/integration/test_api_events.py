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

from integration.conftest import MakePlace, Place
from integration.raw_events import event_place, run_phases
from integration.served import make_token, problem, serving
from integration.test_api_process import served, wait_until_blocked
from tidegate.model.access import Scope
from tidegate.model.relation import Relation
from tidegate.pipeline.event_intake import copy_in, take_in
from tidegate.project import Project

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return event_place(make_place, serve={"max_request": "64KB"})


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


def test_one_event_is_kept_as_it_was_sent(place: Place, client: httpx.Client) -> None:
    body = b'{ "b":1.00,\n "a": "\\u00e9\xc3\xa9" }\n'
    answer = client.post("/events", content=body, headers=JSON)
    assert answer.status_code == 202, answer.text
    (event_id,) = answer.json()["ids"]
    assert answer.json() == {"accepted": 1, "known": 0, "ids": [event_id], "differing": []}
    assert kept(place) == {UUID(event_id): body.decode()}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (LINES, b'{"n": 1}\n\nnonsense\r\n{"n": 3}\n'),
        (JSON, b'[{"n": 1}, nonsense, {"n": 3}]'),
    ],
)
def test_events_of_one_request_are_kept_one_by_one(
    place: Place, client: httpx.Client, headers: dict[str, str], body: bytes
) -> None:
    answer = client.post("/events", content=body, headers=headers).json()
    assert (answer["accepted"], answer["known"]) == (3, 0)
    held = kept(place)
    assert [held[UUID(one)] for one in answer["ids"]] == ['{"n": 1}', "nonsense", '{"n": 3}']


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"nonsense", "nonsense"),
        (b'{"a": ', '{"a": '),
        (b"[1, 2", "[1, 2"),
        (b'"text"', '"text"'),
        (b"null", "null"),
        (b'{"a": "\0"}', '{"a": "\\x00"}'),
        (b'{"a": "\\u0000"}', '{"a": "\\u0000"}'),
        (b'{"a": "\xff\xfe"}', '{"a": "\\xff\\xfe"}'),
        (b'{"a": 1e999999}', '{"a": 1e999999}'),
        (b'{"a": ' + b"9" * 5_000 + b"}", '{"a": ' + "9" * 5_000 + "}"),
        (b"{" * 30_000, "{" * 30_000),
        (b'{"a": ' * 9_000 + b"1" + b"}" * 9_000, '{"a": ' * 9_000 + "1" + "}" * 9_000),
        (b'{"at": "0001-01-01T00:00:00Z"}', '{"at": "0001-01-01T00:00:00Z"}'),
        (b'{"at": "9999-12-31T23:59:59Z"}', '{"at": "9999-12-31T23:59:59Z"}'),
        (b'{"a": "' + b"x" * 60_000 + b'"}', '{"a": "' + "x" * 60_000 + '"}'),
        (b"\xef\xbb\xbf{}", "\ufeff{}"),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
def test_whatever_is_sent_is_kept(
    place: Place, client: httpx.Client, body: bytes, stored: str
) -> None:
    answer = client.post("/events", content=body, headers=JSON)
    assert answer.status_code == 202
    assert list(kept(place).values()) == [stored]


def test_the_same_event_sent_again_is_known(place: Place, client: httpx.Client) -> None:
    event_id = uuid4()
    for sent, said in (({"v": 1}, (1, 0, [])), ({"v": 1}, (0, 1, []))):
        answer = client.post("/events", json=sent, headers={"Event-Id": str(event_id)}).json()
        assert (answer["accepted"], answer["known"], answer["differing"]) == said
        assert answer["ids"] == [str(event_id)]
    another = client.post("/events", json={"v": 2}, headers={"Event-Id": str(event_id)}).json()
    assert (another["known"], another["differing"]) == (1, [str(event_id)])
    assert kept(place) == {event_id: '{"v":1}'}


def test_a_request_sent_again_with_its_key_adds_nothing(place: Place, client: httpx.Client) -> None:
    body = b'{"n": 1}\n{"n": 1}\n{"n": 2}'
    headers = LINES | {"Idempotency-Key": "hour 7"}
    first = client.post("/events", content=body, headers=headers).json()
    again = client.post("/events", content=body, headers=headers).json()
    assert (first["accepted"], again["accepted"], again["known"]) == (3, 0, 3)
    assert first["ids"] == again["ids"]
    longer = client.post("/events", content=body + b'\n{"n": 3}', headers=headers).json()
    assert (longer["accepted"], longer["known"]) == (1, 3)
    other = client.post(
        "/events", content=body, headers=LINES | {"Idempotency-Key": "hour 8"}
    ).json()
    assert other["accepted"] == 3
    assert len(kept(place)) == 7


def test_the_same_key_of_two_senders_means_different_events(
    place: Place, project: Project, client: httpx.Client
) -> None:
    for name in ("phones", "tills"):
        token = make_token(project, name, Scope.SUBMIT)
        answer = client.post(
            "/events", json={"from": name}, headers=token | {"Idempotency-Key": "1"}
        )
        assert answer.json()["accepted"] == 1
    assert len(kept(place)) == 2


def test_events_are_known_by_the_ids_that_they_carry(place: Place, client: httpx.Client) -> None:
    one, two, user = uuid4(), uuid4(), uuid4()
    events = [
        {"event_id": str(one), "n": 1},
        {"id": str(two), "n": 2},
        {"user": {"id": str(user)}, "n": 3},
        {"event_id": str(one), "n": 1},
        {"event_id": str(one), "n": 9},
    ]
    first = client.post("/events", json=events).json()
    assert (first["accepted"], first["known"], first["differing"]) == (3, 2, [str(one)])
    again = client.post("/events", json=events).json()
    assert (again["accepted"], again["known"]) == (1, 4)
    held = kept(place)
    assert json.loads(held[one])["n"] == 1
    assert json.loads(held[two])["n"] == 2
    assert user not in held
    assert len(held) == 4


def test_nothing_to_take_in_is_said(place: Place, client: httpx.Client) -> None:
    assert client.post("/events", content=b"[]", headers=JSON).json()["ids"] == []
    assert client.post("/events", content=b"\n", headers=LINES).json()["accepted"] == 0
    problem(client.post("/events", content=b" \n", headers=JSON), 400, "malformed-request")
    problem(client.post("/events"), 400, "malformed-request")
    assert kept(place) == {}


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"Content-Type": "text/plain"}, 415, "unsupported-media-type"),
        ({}, 415, "unsupported-media-type"),
        (JSON | {"Content-Encoding": "gzip"}, 415, "unsupported-media-type"),
        (JSON | {"Event-Id": "17"}, 422, "invalid-request"),
        (JSON | {"Event-Id": str(uuid4())}, 422, "invalid-request"),
        (JSON | {"Idempotency-Key": "x" * 201}, 422, "invalid-request"),
        (JSON | {"Idempotency-Key": ""}, 422, "invalid-request"),
    ],
)
def test_a_request_that_is_wrong_itself_is_refused_and_leaves_nothing(
    place: Place, client: httpx.Client, headers: dict[str, str], status: int, kind: str
) -> None:
    problem(client.post("/events", content=b'[{"n": 1}, 2]', headers=headers), status, kind)
    assert kept(place) == {}


def test_lines_are_taken_here_and_nowhere_else(client: httpx.Client) -> None:
    answer = client.put("/drain", content=b'{"draining": true}', headers=LINES)
    problem(answer, 415, "unsupported-media-type")


def test_a_request_over_the_limit_is_refused_whole(place: Place, client: httpx.Client) -> None:
    body = b"\n".join(b'{"n": %d}' % number for number in range(10_000))
    found = problem(client.post("/events", content=body, headers=LINES), 413, "request-too-large")
    assert "65,536" in found["detail"]
    assert kept(place) == {}


def test_events_need_a_token_that_may_submit(
    place: Place, project: Project, client: httpx.Client
) -> None:
    reader = make_token(project, "r", Scope.READ)
    problem(client.post("/events", json={}), 401, "unauthorized")
    problem(client.post("/events", json={}, headers=reader), 403, "forbidden")
    assert kept(place) == {}
    sender, admin = make_token(project, "s", Scope.SUBMIT), make_token(project, "a", Scope.ADMIN)
    assert client.post("/events", json={}, headers=sender).status_code == 202
    # What was refused is in the audit; what was taken in is in its own table.
    lines = client.get("/audit", headers=admin).json()["lines"]
    assert [(one["action"], one["outcome"]) for one in lines if "events" in one["action"]] == [
        ("POST /events", "403 forbidden")
    ]


def test_a_project_without_events_says_how_to_have_them(make_place: MakePlace) -> None:
    with make_place().open() as opened, serving(opened) as client:
        for answer in (client.post("/events", json={}), client.get("/events/status")):
            found = problem(answer, 422, "refused")
            assert "events.connection" in found["detail"]
            assert "--template events" in found["hint"]
        assert "tidegate_events_pending" not in client.get("/metrics").text


def test_the_first_event_finds_its_table_made(make_place: MakePlace) -> None:
    place = event_place(make_place, made=False)
    with place.open() as project, serving(project) as client, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.post("/events", json={}), range(8)))
        assert [one.status_code for one in answers] == [202] * 8
    assert len(kept(place)) == 8


def test_a_model_that_is_wrong_keeps_no_event_out(place: Place, client: httpx.Client) -> None:
    (place.folder / "events.toml").write_text("facts = 17", encoding="utf-8")
    assert client.post("/events", json={}).status_code == 202
    place.target.execute("DROP TABLE raw_events")
    found = problem(client.post("/events", json={}), 422, "refused")
    assert "events.toml" in found["detail"]


def test_events_that_came_in_are_counted(client: httpx.Client) -> None:
    client.post("/events", json=[{"n": 1}, {"n": 2}], headers={"Idempotency-Key": "k"})
    client.post("/events", json=[{"n": 1}], headers={"Idempotency-Key": "k"})
    figures = client.get("/metrics").text
    assert 'tidegate_events_taken_in_total{outcome="accepted"} 2.0' in figures
    assert 'tidegate_events_taken_in_total{outcome="known"} 1.0' in figures


def test_how_events_stand_is_told(place: Place, project: Project, client: httpx.Client) -> None:
    client.post("/events", json=[{"event_id": str(UUID(int=7))}, {}])
    found = client.get("/events/status").json()
    assert (found["pending"], found["failed"], found["is_provisioned"]) == (2, 0, True)
    assert 0 <= found["lag_seconds"] < 60
    run_phases(project)
    project_metrics = client.get("/metrics").text
    assert "tidegate_events_pending 0.0" in project_metrics
    assert "tidegate_events_failed 2.0" in project_metrics
    assert 'tidegate_event_view_behind{view="analytics.mv_revenue_summary"} 0.0' in project_metrics
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


def test_events_that_cannot_be_looked_at_do_not_take_the_other_figures_along(
    place: Place, client: httpx.Client
) -> None:
    (place.folder / "events.toml").write_text("facts = 17", encoding="utf-8")
    assert "tidegate_events_unreadable 1.0" in client.get("/metrics").text
    assert "events.toml" in problem(client.get("/events/status"), 422, "refused")["detail"]


def test_a_database_that_is_away_is_said_and_the_rest_is_served(make_place: MakePlace) -> None:
    nobody = "postgresql://nobody@127.0.0.1:1/none"
    place = event_place(make_place, made=False)
    toml = place.folder / "tidegate.toml"
    text = toml.read_text().replace("warehouse = ", "was = ", 1)
    toml.write_text(text.replace("[connections]\n", f'[connections]\nwarehouse = "{nobody}"\n'))
    with place.open() as project, serving(project) as client:
        for answer in (client.post("/events", json={}), client.get("/events/status")):
            problem(answer, 503, "database-unavailable")
            assert "nobody" not in answer.text
        assert "tidegate_events_unreadable 1.0" in client.get("/metrics").text


def test_a_table_that_somebody_locks_is_not_waited_for_without_end(
    place: Place, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.api.door.LOCK_SECONDS", 0.2)
    with place.target.connect() as other, other.transaction():
        other.execute("LOCK TABLE raw_events IN ACCESS EXCLUSIVE MODE")
        problem(client.post("/events", json={}), 503, "database-unavailable")
    assert kept(place) == {}
    assert client.post("/events", json={}).status_code == 202


def test_drained_or_not_events_come_in(place: Place, client: httpx.Client) -> None:
    client.put("/drain", json={"draining": True})
    assert client.post("/events", json={}).status_code == 202
    assert len(kept(place)) == 1


def test_a_service_that_is_killed_while_clients_send_loses_and_doubles_nothing(
    place: Place,
) -> None:
    senders, requests, events = 4, 25, 40
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
        while True:
            with lock:
                if not waiting:
                    return
                number, batch = waiting.pop(0)
            sent = batch if number % 2 else batch[::-1]
            try:
                answer = httpx.post(address[0] + "/events", json=sent, timeout=30)
                assert answer.status_code == 202, answer.text
                assert answer.json()["differing"] == []
                with lock:
                    answered.add(number)
                    if len(answered) > len(batches) // 4:
                        begun.set()
            except httpx.TransportError:
                with lock:
                    waiting.append((number, batch))
                return

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
    expected = {UUID(event["event_id"]) for batch in batches for event in batch}
    assert set(kept(place)) == expected
    assert place.target.value("SELECT count(*) FROM raw_events") == len(expected)


def test_requests_with_the_same_events_in_another_order_never_deadlock(
    place: Place, client: httpx.Client
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


def test_a_bulk_of_events_is_copied_in_and_given_again_adds_nothing(place: Place) -> None:
    at = datetime(2026, 11, 2, tzinfo=UTC)
    raw = Relation("public", "raw_events")
    events: list[tuple[UUID, str, datetime | None]] = [
        (UUID(int=number + 1), f'{{"n": {number}, "s": "\\\\é\t\0"}}', at if number % 2 else None)
        for number in range(45_000)
    ]
    with place.open() as project, project.context.databases.lease("warehouse") as connection:
        assert copy_in(connection, raw, events[:30_000]) == 30_000
        assert copy_in(connection, raw, events + events[:10]) == 15_000
        assert copy_in(connection, raw, []) == 0
        assert take_in(connection, raw, [(UUID(int=1), events[0][1])]).known == 1
    held = kept(place)
    assert len(held) == 45_000
    assert held[UUID(int=8)] == '{"n": 7, "s": "\\\\é\t\\x00"}'
    told = place.target.execute("SELECT count(*) FROM raw_events WHERE received_at = '2026-11-02Z'")
    assert told == [(22_500,)]


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


def test_who_sent_an_event_is_kept_with_it(
    place: Place, project: Project, client: httpx.Client
) -> None:
    """Also where the table is from a time when that was not so."""
    client.post("/events", json={"a": 1})
    place.target.execute("ALTER TABLE raw_events DROP COLUMN sender")
    client.post("/events", json={"a": 2})
    token = make_token(project, "web", Scope.EVENTS)
    assert client.post("/events", json={"a": 3}, headers=token).status_code == 202
    rows = place.target.execute("SELECT sender FROM raw_events ORDER BY received_at")
    assert rows == [(None,), ("loopback",), ("web",)]
