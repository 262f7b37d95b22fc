"""One event read by a model: what is good is exact, what is not has a reason, and none is lost."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.relation import Relation
from tidegate.events.model import Dimension, EventField, EventModel, FieldType, JsonPath
from tidegate.events.reader import EventLimits, EventReader, RawEvent, ReadEvent

RECEIVED = datetime(2026, 11, 16, 12, tzinfo=UTC)
LIMITS = EventLimits(max_bytes=4_096, max_age_seconds=400 * 86_400, max_ahead_seconds=31 * 86_400)
GOOD: dict[str, Any] = {
    "at": "2026-11-10T12:00:00Z",
    "user": {"id": "user-1", "name": "Ada"},
    "place": {"country": "DE", "city": "Berlin"},
    "cost": 12.5,
    "count": 3,
    "key": "6f1c2b8a-2f0e-4d39-9f0a-0a7f8d1c2e3b",
}


def field(name: str, type_: FieldType = FieldType.TEXT, path: str = "", **more: Any) -> EventField:
    return EventField(name, JsonPath.parse(path or f"$.{name}"), type_, **more)


MODEL = EventModel(
    Relation("warehouse", "fact_events"),
    (
        field("occurred_at", FieldType.TIMESTAMPTZ, "$.at", required=True),
        field("cost", FieldType.NUMERIC, precision=12, scale=2),
        field("count", FieldType.BIGINT),
        field("share", FieldType.DOUBLE),
        field("key", FieldType.UUID),
        field("day", FieldType.DATE),
        field("is_new", FieldType.BOOLEAN),
        field("more", FieldType.JSONB),
        field("kind", default="visit"),
        field("second", path="$.list[1].name"),
        field("short", max_length=3),
    ),
    "occurred_at",
    ("occurred_at", "cost", "count", "share", "user_id", "key", "day", "more"),
    (
        Dimension(
            "users",
            Relation("warehouse", "dim_users"),
            (field("user_id", path="$.user.id", required=True),),
            (field("user_name", path="$.user.name"),),
        ),
        Dimension(
            "places",
            Relation("warehouse", "dim_places"),
            (field("country", path="$.place.country"), field("city", path="$.place.city")),
            id_column="place_id",
        ),
    ),
)


def read(event: Any, **limits: Any) -> ReadEvent:
    body = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
    return EventReader(MODEL, replace(LIMITS, **limits)).read(RawEvent(uuid4(), body, RECEIVED))


def value(name: str, **changes: Any) -> Any:
    """What a column gets of the good event with some members changed."""
    found = read({**GOOD, **changes})
    assert found.error is None, found.error
    return found.values[[one.name for one in MODEL.fields].index(name)]


def why_not(**changes: Any) -> str:
    found = read({**GOOD, **changes})
    assert found.error is not None, found
    assert found == ReadEvent(found.error)
    return found.error


def test_an_event_is_read_by_paths_and_types() -> None:
    event = {
        **GOOD,
        "share": 0.25,
        "day": "2026-11-10",
        "is_new": True,
        "more": {"b": [1, 2.50], "a": None},
        "list": [{}, {"name": "Zoë"}],
    }
    found = read(event)
    assert found.error is None
    assert dict(zip((one.name for one in MODEL.fields), found.values, strict=True)) == {
        "occurred_at": datetime(2026, 11, 10, 12, tzinfo=UTC),
        "cost": Decimal("12.5"),
        "count": 3,
        "share": 0.25,
        "key": UUID(GOOD["key"]),
        "day": date(2026, 11, 10),
        "is_new": True,
        "more": '{"a":null,"b":[1,2.5]}',
        "kind": "visit",
        "second": "Zoë",
        "short": None,
        "user_id": "user-1",
        "user_name": "Ada",
        "country": "DE",
        "city": "Berlin",
    }
    assert found.payload == json.dumps(event, ensure_ascii=False)


def test_a_key_of_several_columns_stands_in_the_facts_as_the_hash_of_its_values() -> None:
    place = UUID(bytes=sha256('["DE","Köln"]'.encode()).digest()[:16])
    reader = EventReader(MODEL, LIMITS)
    for _ in range(2):  # made, then remembered
        body = json.dumps({**GOOD, "place": {"city": "Köln", "country": "DE"}})
        assert reader.read(RawEvent(uuid4(), body, RECEIVED)).ids == ("user-1", place)
    partly = read({**GOOD, "place": {"country": "DE"}}).ids[1]
    assert partly == UUID(bytes=sha256(b'["DE",null]').digest()[:16])
    assert read({**GOOD, "place": {}}).ids == ("user-1", None)
    assert read({**GOOD, "place": "Berlin"}).ids == ("user-1", None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON: Expecting value"),
        ("nonsense", "not JSON: Expecting value"),
        ('{"at": "2026-11-10T12:00:00Z"', "not JSON: Expecting ',' delimiter"),
        ('{"at": "2026-11-10T12:00:00Z"} {}', "not JSON: Extra data"),
        ('{"count": NaN}', "not JSON: NaN is no number"),
        ('{"count": -Infinity}', "not JSON: -Infinity is no number"),
        ('{"count": 01}', "not JSON: Expecting ',' delimiter"),
        ('{"a": "line\nbreak"}', "not JSON: Invalid control character at"),
        ('\\x00{"a": 1}', "not JSON: Expecting value"),
        ("\ufeff{}", "not JSON: Expecting value"),
        ("[]", "not an object but an array"),
        ('"text"', "not an object but a string"),
        ("17", "not an object but a number"),
        ("1e999999", "not an object but a number"),
        ("null", "not an object but null"),
        ("true", "not an object but true or false"),
        ("{}", "occurred_at is missing ($.at)"),
        ('{"deep": ' + "[" * 128 + "]" * 128 + "}", "nested deeper than 128 levels"),
        ("[" * 4_000, "nested deeper than 128 levels"),
        ('{"a":' * 800, "nested deeper than 128 levels"),
        ('"' + "x" * 4_096 + '"', "larger than 4096 bytes"),
        ('"' + "é" * 2_048 + '"', "larger than 4096 bytes"),
    ],
)
def test_what_is_no_event_fails_with_the_reason(body: str, reason: str) -> None:
    assert read(body) == ReadEvent(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"at": None}, "occurred_at is missing ($.at)"),
        ({"user": {}}, "user_id is missing ($.user.id)"),
        ({"user": [1]}, "user_id is missing ($.user.id)"),
        ({"user": {"id": None}}, "user_id is missing ($.user.id)"),
        ({"user": {"id": 5}}, "user_id is not a text but a number ($.user.id)"),
        ({"user": {"id": ["a"]}}, "user_id is not a text but an array ($.user.id)"),
        ({"user": {"id": True}}, "user_id is not a text but true or false ($.user.id)"),
        ({"user": {"id": "é" * 1_001}}, "user_id is longer than 2000 bytes ($.user.id)"),
        ({"short": "four"}, "short is longer than 3 characters ($.short)"),
        ({"cost": "much"}, "cost is not a numeric but a string ($.cost)"),
        ({"cost": "1e7777777"}, "cost is not a numeric but a string ($.cost)"),
        ({"cost": {}}, "cost is not a numeric but an object ($.cost)"),
        ({"cost": False}, "cost is not a numeric but true or false ($.cost)"),
        ({"cost": 0.001}, "cost is more than 2 digits after the point ($.cost)"),
        ({"cost": 10**10}, "cost is more than 10 digits before the point ($.cost)"),
        ({"count": 1.5}, "count is not a whole number ($.count)"),
        ({"count": 2**63}, "count is out of range of a bigint ($.count)"),
        ({"count": -(2**63) - 1}, "count is out of range of a bigint ($.count)"),
        ({"share": 10**400}, "share is out of range of a double precision ($.share)"),
        ({"share": []}, "share is not a double precision but an array ($.share)"),
        ({"key": "6f1c2b8a"}, "key is not a uuid ($.key)"),
        ({"key": "{6f1c2b8a-2f0e-4d39-9f0a-0a7f8d1c2e3b}"}, "key is not a uuid ($.key)"),
        ({"key": 7}, "key is not a uuid but a number ($.key)"),
        ({"day": "2026-02-30"}, "day is no such day ($.day)"),
        ({"day": "20260228"}, "day is not a date such as 2026-11-30 ($.day)"),
        ({"day": 20260228}, "day is not a date but a number ($.day)"),
        ({"is_new": "true"}, "is_new is not true or false but a string ($.is_new)"),
        ({"is_new": 1}, "is_new is not true or false but a number ($.is_new)"),
        ({"at": 1_770_000_000}, "occurred_at is not a timestamp but a number ($.at)"),
        ({"at": "2026-11-10T12:00:00"}, "occurred_at is a timestamp without a time zone ($.at)"),
        ({"at": "2026-11-31T12:00:00Z"}, "occurred_at is no such moment ($.at)"),
        ({"at": "2026-11-10T12:00:60Z"}, "occurred_at is no such moment ($.at)"),
        (
            {"at": "0001-01-01T00:00:00+14:00"},
            "occurred_at is outside of the years 1 to 9999 ($.at)",
        ),
        (
            {"at": "9999-12-31T23:59:59-01:00"},
            "occurred_at is outside of the years 1 to 9999 ($.at)",
        ),
        ({"at": "0001-01-01T00:00:00Z"}, "occurred_at is older than what is taken"),
        ({"at": "9999-12-31T23:59:59Z"}, "occurred_at is too far in the future"),
    ],
)
def test_a_missing_or_wrong_value_fails_and_names_the_field(
    changes: dict[str, Any], reason: str
) -> None:
    assert why_not(**changes) == reason


@pytest.mark.parametrize(
    "at", ["yesterday", "2026-W46-2T12:00:00Z", "20261110T120000Z", "24:00", ""]
)
def test_only_one_way_of_writing_moments_is_known(at: str) -> None:
    reason = "occurred_at is not a timestamp such as 2026-11-30T12:00:00Z ($.at)"
    assert why_not(at=at) == reason


def test_numbers_that_no_column_holds_fail_only_where_they_are_read() -> None:
    good = json.dumps(GOOD)[1:]
    for number in ("1e400000", "-1e-99999", "9" * 6_000 + "e131072", "1e99999999999999999999"):
        unread = read(f'{{"huge": [{number}], {good}', max_bytes=10_000)
        assert unread.error is None
        assert unread.payload is None
        for name, kind in (("cost", "numeric"), ("share", "double precision"), ("count", "bigint")):
            event = good.replace(f'"{name}": {GOOD.get(name)}', f'"{name}": {number}')
            event = event if name in event else f'"{name}": {number}, {good}'
            found = read(f'{{"x": 1, {event}', max_bytes=10_000)
            assert found.error == f"{name} is out of range of a {kind} ($.{name})"
        found = read(f'{{"more": {{"n": {number}}}, {good}', max_bytes=10_000)
        assert found.error == "more is out of range of a jsonb ($.more)"


def test_more_digits_than_python_reads_are_read() -> None:
    digits = "1" * 5_000
    found = read(f'{{"more": {digits}, {json.dumps(GOOD)[1:]}', max_bytes=10_000)
    assert found.error is None
    assert found.payload is not None
    assert value("count", count=2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("odd", ["\\u0000", "\\ud800", "\\udc00", "\\udc00\\ud800", "\\ud800x"])
def test_text_that_postgres_cannot_hold_fails_only_where_it_is_read(odd: str) -> None:
    good = json.dumps(GOOD)[1:]
    unread = read(f'{{"note": "{odd}", {good}')
    assert unread.error is None
    assert unread.payload is None
    # Also where a later member of the same name takes its place, which jsonb never sees.
    replaced = read(f'{{"kind": "{odd}", "kind": "ok", {good}')
    assert (replaced.error, replaced.payload) == (None, None)
    reason = "holds a NUL or half a character"
    assert read(f'{{"kind": "{odd}", {good}').error == f"kind {reason} ($.kind)"
    assert read(f'{{"more": {{"{odd}": 1}}, {good}').error == f"more {reason} ($.more)"
    assert read(f'{{"more": [["{odd}"]], {good}').error == f"more {reason} ($.more)"


def test_escapes_that_are_whole_are_text_like_any_other() -> None:
    found = read(f'{{"kind": "\\ud83d\\ude00 \\\\u0000 \\u00e9", {json.dumps(GOOD)[1:]}')
    assert found.error is None
    assert "😀 \\u0000 é" in found.values
    assert found.payload is not None


def test_age_is_counted_from_when_an_event_was_received() -> None:
    day = timedelta(days=1)
    for late in (400 * day, -31 * day):
        edge = RECEIVED - late
        assert read({**GOOD, "at": edge.isoformat()}).error is None
        beyond = edge - timedelta(microseconds=1 if late > 0 * day else -1)
        assert read({**GOOD, "at": beyond.isoformat()}).error is not None


def test_with_months_that_are_kept_older_ones_fail() -> None:
    kept = {**GOOD, "at": "2026-10-01T00:00:00Z"}
    gone = {**GOOD, "at": "2026-09-30T23:59:59.999999Z"}
    assert read(kept, keep_months=2).error is None
    assert read(gone, keep_months=2).error == "occurred_at is older than what is kept"
    assert read(gone, keep_months=0).error is None


def test_the_same_event_in_other_words_has_the_same_hash() -> None:
    first = read(
        '{"at":"2026-11-10T12:00:00.5Z","user":{"id":"u","name":"n"},"cost":1.5,"count":100,'
        '"share":0.1,"key":"6F1C2B8A2F0E4D399F0A0A7F8D1C2E3B","more":{"a":1,"b":[1.0,1e2]}}'
    )
    second = read(
        '{ "more": {"b": [1, 100.00], "a": 1.00}, "key": "6f1c2b8a-2f0e-4d39-9f0a-0a7f8d1c2e3b",'
        ' "share": 0.10, "count": 1e2, "cost": "1.50", "user": {"name": "n", "id": "\\u0075"},'
        ' "at": "2026-11-10 21:30:00.500000+09:30" }'
    )
    assert first.error is None
    assert first.event_hash == second.event_hash
    assert first.values == second.values
    assert repr(first.values) == repr(second.values)
    assert first.event_hash is not None
    assert len(first.event_hash) == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"at": "2026-11-10T12:00:00.000001Z"},
        {"cost": 12.51},
        {"cost": None},
        {"count": 4},
        {"user": {"id": "user-2"}},
        {"day": "2026-11-10"},
        {"more": {"a": None}},
    ],
)
def test_another_value_of_what_is_hashed_is_another_event(changes: dict[str, Any]) -> None:
    assert read({**GOOD, **changes}).event_hash != read(GOOD).event_hash


def test_what_is_not_hashed_does_not_make_another_event() -> None:
    same = {**GOOD, "kind": "other", "user": {"id": "user-1", "name": "Bob"}, "place": {}, "x": 1}
    assert read(same).event_hash == read(GOOD).event_hash


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = st.sampled_from([*GOOD, "share", "day", "is_new", "more", "kind", "list", "short"])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(MEMBERS, JSON_VALUES))
def test_whatever_an_event_holds_it_is_read_or_has_a_reason(event: dict[str, Any]) -> None:
    for whole in (event, {**GOOD, **event}):
        found = read(whole)
        if found.error is None:
            assert len(found.values) == len(MODEL.fields)
            assert len(found.ids) == len(MODEL.dimensions)
        else:
            assert not found.error.startswith("could not be read")
            assert found == ReadEvent(found.error)


@settings(max_examples=400, deadline=None)
@given(st.text())
def test_whatever_a_body_is_it_is_read_or_has_a_reason(body: str) -> None:
    found = read(body)
    assert found.error is not None
    assert not found.error.startswith("could not be read")


@settings(max_examples=200, deadline=None)
@given(
    moment=st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 1), timezones=st.just(UTC)),
    cost=st.decimals(-(10**9), 10**9, places=2),
    count=st.integers(-(2**63), 2**63 - 1),
    share=st.floats(allow_nan=False, allow_infinity=False),
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50),
    more=JSON_VALUES,
    seed=st.integers(),
)
def test_values_come_back_exactly_however_they_are_written(
    moment: datetime,
    cost: Decimal,
    count: int,
    share: float,
    name: str,
    more: Any,
    seed: int,
) -> None:
    rng = random.Random(seed)
    zone = timezone(timedelta(minutes=rng.randrange(-720, 840)))
    members = [
        ("at", json.dumps(moment.astimezone(zone).isoformat())),
        ("cost", f"{cost}{'0' * rng.randrange(3)}"),
        ("count", f"{count}{rng.choice(['', '.0', 'e0'])}"),
        ("share", repr(share)),
        ("user", json.dumps({"id": name}, ensure_ascii=rng.random() < 0.5)),
        ("more", json.dumps(more)),
    ]
    usual = read("{" + ",".join(f'"{key}":{text}' for key, text in members) + "}")
    rng.shuffle(members)
    shuffled = read("{ " + " , ".join(f'"{key}" : {text}' for key, text in members) + " }\n")
    assert usual.error == shuffled.error
    if usual.error is not None:
        assert usual.error.startswith("more holds a NUL")
        return
    found = dict(zip((one.name for one in MODEL.fields), usual.values, strict=True))
    assert found["occurred_at"] == moment
    assert found["occurred_at"].utcoffset() == timedelta(0)
    assert (found["cost"], found["count"], found["share"]) == (cost, count, share)
    assert found["user_id"] == name
    if more is not None:
        exact = {"parse_float": Decimal}
        assert json.loads(found["more"], **exact) == json.loads(json.dumps(more), **exact)
    assert (shuffled.event_hash, shuffled.values, shuffled.ids) == (
        usual.event_hash,
        usual.values,
        usual.ids,
    )


def test_a_body_that_nests_as_deep_as_may_be_is_read() -> None:
    body = f'{{"deep": {"[" * 127}"[[["{"]" * 127}, {json.dumps(GOOD)[1:]}'
    assert read(body).error is None


def test_many_brackets_in_text_are_not_depth() -> None:
    assert read({**GOOD, "kind": '[{\\"' * 300}).error is None


def test_reading_takes_about_as_long_as_a_few_times_parsing() -> None:
    """A guard against work that grows with the model for each event: 15 fields, 250 bytes."""
    reader, event = EventReader(MODEL, LIMITS), RawEvent(uuid4(), json.dumps(GOOD), RECEIVED)

    def seconds(work: Any) -> float:
        best = 1.0
        for _ in range(5):
            started = time.process_time()
            for _ in range(1_000):
                work()
            best = min(best, time.process_time() - started)
        return best

    assert seconds(lambda: reader.read(event)) < 20 * seconds(lambda: json.loads(event.body))
