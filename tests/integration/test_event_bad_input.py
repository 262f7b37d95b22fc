"""Bad events, sent to a real service and processed by real commands: each has its reason, none is
lost, and none keeps a good one out."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx

from integration.commands import DONE, tidegate
from integration.conftest import MakePlace, Place
from integration.raw_events import event_place
from integration.test_api_process import served

GOOD: dict[str, Any] = {
    "type": "purchase",
    "occurred_at": "2026-03-02T08:30:00Z",
    "account": {"id": "a"},
    "amount": 1,
    "currency": "EUR",
}
MARK = "\x1a"


def with_(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


def raw(member: str, text: str | bytes) -> bytes:
    """A good event in which one member is written like this."""
    written = text.encode() if isinstance(text, str) else text
    return with_(**{member: MARK}).replace(json.dumps(MARK).encode(), written)


def without(member: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != member}).encode()


@dataclass(frozen=True, slots=True)
class Bad:
    """What is sent, and what its reason must speak of; None for an event that is good."""

    body: bytes
    said: str | None
    payload: bool = True
    """whether jsonb takes it; only looked at where it is good"""


def at(text: str) -> bytes:
    return with_(occurred_at=text)


CASES = {
    # Not JSON, or no event.
    "words": Bad(b"nonsense", "not JSON"),
    "cut off": Bad(b'{"type": ', "not JSON"),
    "single quotes": Bad(b"{'type': 'purchase'}", "not JSON"),
    "a comma too many": Bad(with_()[:-1] + b",}", "not JSON"),
    "two events": Bad(with_() + with_(), "not JSON"),
    "a byte order mark": Bad(b"\xef\xbb\xbf" + with_(), "not JSON"),
    "UTF-16": Bad(with_().decode().encode("utf-16"), "not JSON"),
    "an array that does not end": Bad(b"[" + with_(), "not JSON"),
    "a comment": Bad(b"/* */" + with_(), "not JSON"),
    "NaN": Bad(raw("amount", "NaN"), "not JSON"),
    "Infinity": Bad(raw("amount", "-Infinity"), "not JSON"),
    "a line break in a string": Bad(raw("type", b'"a\nb"'), "not JSON"),
    "text": Bad(b'"text"', "not an object"),
    "null": Bad(b"null", "not an object"),
    "a number": Bad(b"17", "not an object"),
    "nothing in it": Bad(b"{}", "missing"),
    # Over the limit.
    "too large": Bad(with_(more="x" * 300_000), "large"),
    # Missing, or of another type.
    "without a time": Bad(without("occurred_at"), "occurred_at is missing"),
    "without a type": Bad(without("type"), "event_type is missing"),
    "without an account": Bad(without("account"), "account_id is missing"),
    "an empty time": Bad(with_(occurred_at=None), "occurred_at is missing"),
    "an account that is a text": Bad(with_(account="a"), "account_id"),
    "an account that is a list": Bad(with_(account=[{"id": "a"}]), "account_id"),
    "an account's id that is an object": Bad(with_(account={"id": {}}), "account_id"),
    "an account's id that is a number": Bad(with_(account={"id": 7}), "account_id"),
    "a type that is true": Bad(with_(type=True), "event_type"),
    "an amount in words": Bad(with_(amount="ten"), "amount"),
    "an amount that is true": Bad(with_(amount=True), "amount"),
    "an amount that is a list": Bad(with_(amount=[1]), "amount"),
    "an id that is no uuid": Bad(with_(event_id="17"), "event_id"),
    "a currency too long": Bad(with_(currency="EURO"), "currency"),
    "a key beyond what an index takes": Bad(with_(account={"id": "é" * 1_500}), "account_id"),
    # Huge numbers.
    "a number with many digits": Bad(raw("amount", "9" * 5_000), "amount"),
    "a number with a large exponent": Bad(raw("amount", "1e400"), "amount"),
    "a number with an absurd exponent": Bad(raw("amount", "1e999999999999"), "amount"),
    "a number with an absurd negative exponent": Bad(raw("amount", "1e-999999999"), "amount"),
    "digits that would be rounded": Bad(raw("amount", "1.005"), "amount"),
    "a huge number where jsonb is read": Bad(raw("properties", '{"n": 1e999999}'), "properties"),
    "a huge number where nothing is read": Bad(raw("more", "1e999999"), None, payload=False),
    "a large number where nothing is read": Bad(raw("more", "1e400"), None),
    # NUL, and what is no text.
    "a NUL byte": Bad(raw("type", b'"a\0b"'), "not JSON"),
    "a NUL in a key": Bad(with_(account={"id": "a\0b"}), "account_id"),
    "a NUL in jsonb": Bad(with_(properties={"a": "\0"}), "properties"),
    "a NUL where nothing is read": Bad(with_(more="\0"), None, payload=False),
    "half a pair": Bad(with_(account={"id": "\ud800"}), "account_id"),
    "half a pair where nothing is read": Bad(with_(more="\udc00"), None, payload=False),
    "bytes that are not UTF-8": Bad(raw("type", b'"\xff\xfe"'), "not JSON"),
    "a backslash before such a byte": Bad(raw("more", b'"\\\xff"'), "not JSON"),
    # Deep nesting.
    "deep": Bad(raw("more", "[" * 200 + "]" * 200), "nested"),
    "deeper": Bad(raw("more", '{"a":' * 30_000 + "1" + "}" * 30_000), "nested"),
    "deeper and without an end": Bad(raw("more", "[" * 200_000), "nested"),
    # Times.
    "year 1": Bad(at("0001-01-01T00:00:00Z"), "older"),
    "year 9999": Bad(at("9999-12-31T23:59:59Z"), "future"),
    "before year 1": Bad(at("0001-01-01T00:00:00+14:00"), "occurred_at"),
    "after year 9999": Bad(at("9999-12-31T23:59:59-12:00"), "occurred_at"),
    "year 0": Bad(at("0000-01-01T00:00:00Z"), "occurred_at"),
    "year 10000": Bad(at("10000-01-01T00:00:00Z"), "occurred_at"),
    "a day that there is not": Bad(at("2026-02-30T00:00:00Z"), "occurred_at"),
    "a time without a zone": Bad(at("2026-03-02T08:30:00"), "occurred_at"),
    "a zone that there is not": Bad(at("2026-03-02T08:30:00+99:00"), "occurred_at"),
    "a time in words": Bad(at("infinity"), "occurred_at"),
    "a time as a number": Bad(with_(occurred_at=1772440200), "occurred_at"),
}
SAME = {
    "as it is": with_(),
    "other order": json.dumps(dict(reversed(GOOD.items()))).encode(),
    "other zone": at("2026-03-02T14:15:00+05:45"),
    "other digits": raw("amount", "1.00"),
    "an exponent": raw("amount", "10e-1"),
    "as text": with_(amount="1.0"),
    "escaped": with_().replace(b'"purchase"', b'"\\u0070urchase"'),
    "spaces": json.dumps(GOOD, indent=4).encode(),
    "fractions of a second": at("2026-03-02T08:30:00.000000Z"),
    "a member twice, the last one counts": with_()[:-1] + b', "type": "purchase"}',
}


def send(address: str, bodies: dict[str, bytes]) -> dict[UUID, str]:
    """Send each for itself; the ids that they got, by which they can be found again."""
    found: dict[UUID, str] = {}
    with httpx.Client(base_url=address, timeout=30) as client:
        for name, body in bodies.items():
            headers = {"Content-Type": "application/json", "Event-Id": str(uuid.uuid4())}
            answer = client.post("/events", content=body, headers=headers)
            assert (answer.status_code, answer.json().get("accepted")) == (202, 1), name
            found[UUID(headers["Event-Id"])] = name
    return found


def outcomes(place: Place, names: dict[UUID, str]) -> dict[str, tuple[str, str | None, bool]]:
    rows = place.target.execute(
        "SELECT id, status, error, payload IS NOT NULL FROM raw_events ORDER BY received_at, id"
    )
    assert {row[0] for row in rows} == set(names)
    return {names[event_id]: (status, error, payload) for event_id, status, error, payload in rows}


def test_bad_events_fail_with_their_reasons_and_good_ones_pass(make_place: MakePlace) -> None:
    place = event_place(make_place, made=False)
    bodies = {name: one.body for name, one in CASES.items()}
    good = {f"good {place}": with_(event_id=str(uuid.uuid4())) for place in range(20)}
    with served(place.folder) as (_, told):
        names = send(told["address"], bodies | good)
    done = tidegate(place.folder, "event", "run", "--json")
    assert done.code == DONE, done.err
    found = outcomes(place, names)
    wrong = {
        name: (CASES[name].said, found[name])
        for name in CASES
        if found[name][0] != ("done" if CASES[name].said is None else "failed")
        or (CASES[name].said or "") not in (found[name][1] or "")
        or (CASES[name].said is None and found[name][2] != CASES[name].payload)
    }
    assert not wrong
    assert all(found[name][:2] == ("done", None) for name in good)
    failed = sum(one.said is not None for one in CASES.values())
    processed = done.document["processed"]
    assert (processed["failed"], processed["done"]) == (failed, len(names) - failed)
    status = tidegate(place.folder, "event", "status", "--json").document
    assert (status["pending"], status["failed"]) == (0, failed)
    # No month was made for a date that is absurd, and nothing is as it was only by chance.
    months = place.target.execute(
        "SELECT min(relid::text), max(relid::text) FROM pg_partition_tree('warehouse.fact_events')"
        " WHERE isleaf"
    )
    assert months[0][0] == "warehouse.fact_events_2026_03"
    assert months[0][1] < "warehouse.fact_events_2100"
    assert tidegate(place.folder, "event", "retry", "--all").code == DONE
    again = tidegate(place.folder, "event", "run", "--json").document["processed"]
    assert (again["failed"], again["facts"]) == (failed, 0)
    assert outcomes(place, names) == found


def test_what_says_the_same_in_other_words_is_one_fact(make_place: MakePlace) -> None:
    place = event_place(make_place, made=False)
    with served(place.folder) as (_, told):
        names = send(told["address"], SAME)
    processed = tidegate(place.folder, "event", "run", "--json").document["processed"]
    assert (processed["done"], processed["failed"]) == (len(SAME), 0), outcomes(place, names)
    assert processed["facts"] == 1
    facts = place.target.execute("SELECT amount::text, currency FROM warehouse.fact_events")
    assert facts == [("1.00", "EUR")]
