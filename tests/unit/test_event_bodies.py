"""Events as text: bodies cut apart unread, and made-up events counted before they are written."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.admin import scaffold
from tidegate.events.generator import EventGenerator, Generation
from tidegate.events.intake import body_text, cut_array, cut_lines, find_id, storable
from tidegate.events.model import EventModel
from tidegate.events.model_file import read_event_model
from tidegate.events.reader import EventLimits, EventReader, RawEvent
from tidegate.events.samples import BROKEN_KINDS

ONE = UUID("5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e7f")
TWO = UUID("5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e70")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
SPACES = st.text(alphabet=" \t\r\n", max_size=2)


@given(
    st.lists(st.tuples(VALUES, st.booleans()), max_size=6), st.lists(SPACES, min_size=14), SPACES
)
def test_the_elements_of_an_array_are_cut_out_as_they_were_written(
    values: list[tuple[object, bool]], spaces: list[str], end: str
) -> None:
    texts = [json.dumps(value, ensure_ascii=ascii) for value, ascii in values]
    written = ",".join(f"{spaces[i * 2]}{text}{spaces[i * 2 + 1]}" for i, text in enumerate(texts))
    body = f"{end}[{written}]{end}".encode("utf-8", "surrogatepass")
    assert cut_array(body) == [text.encode("utf-8", "surrogatepass") for text in texts]


@pytest.mark.parametrize(
    ("body", "pieces"),
    [
        (b"[]", []),
        (b" [ ] ", []),
        (b"[1]", [b"1"]),
        (b'[{"a": 1.00}, {broken, {"b": 2}]', None),
        (b'[{"a": 1.00}, broken, {"b": 2}]', [b'{"a": 1.00}', b"broken", b'{"b": 2}']),
        (b'["a,]", "\\"]"]', [b'"a,]"', b'"\\"]"']),
        (b"[\xff, 1]", [b"\xff", b"1"]),
        (b"[1, 2", None),
        (b"[1, 2]]", None),
        (b"[1, 2] 3", None),
        (b"[1] [2]", None),
        (b"[1,]", None),
        (b"[,1]", None),
        (b"[1,,2]", None),
        (b"[[1}]", None),
        (b'["a]', None),
        (b"", None),
        (b'{"a": [1]}', None),
        (b"nonsense", None),
    ],
)
def test_what_is_no_whole_array_is_not_cut(body: bytes, pieces: list[bytes] | None) -> None:
    assert cut_array(body) == pieces


def test_an_array_that_is_made_to_be_slow_is_not() -> None:
    began = time.process_time()
    assert cut_array(b"[" * 1_000_000) is None
    assert cut_array(b'["' + b'\\"' * 500_000) is None
    assert len(cut_array(b"[" + b"1," * 300_000 + b"1]") or ()) == 300_001
    assert find_id(b'{"id": ' * 150_000) is None
    assert time.process_time() - began < 5


def test_lines_are_events_but_for_blank_ones() -> None:
    assert cut_lines(b'{"a": 1}\r\n\n  \n{"b":\t2} \nnonsense') == [
        b'{"a": 1}',
        b'{"b":\t2}',
        b"nonsense",
    ]
    assert cut_lines(b"\n\n") == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f'{{"id": "{ONE}"}}', ONE),
        (f'{{"event_id": "{ONE}"}}', ONE),
        (f' {{ "a": [1, {{}}], "event_id" : "{str(ONE).upper()}" }}', ONE),
        (f'{{"id": "{ONE}", "event_id": "{TWO}"}}', TWO),
        (f'{{"event_id": "x", "id": "{ONE}"}}', ONE),
        (f'{{"id": "{TWO}", "id": "{ONE}"}}', ONE),
        (f'{{"user": {{"id": "{ONE}"}}}}', None),
        (f'{{"users": [{{"id": "{ONE}"}}]}}', None),
        (f'{{"id": {{"id": "{ONE}"}}}}', None),
        (f'[{{"id": "{ONE}"}}]', None),
        (f'"{{\\"id\\": \\"{ONE}\\"}}"', None),
        (f'{{"text": "\\"id\\": \\"{ONE}\\""}}', None),
        (f'{{"a": "id", "b": "{ONE}"}}', None),
        (f'{{}} {{"id": "{ONE}"}}', None),
        ('{"id": "17"}', None),
        ('{"id": 17}', None),
        (f'{{"id": "{{{ONE}}}"}}', None),
        (f'{{"id": "{UUID(int=0)}"}}', None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_an_event_is_known_by_its_own_id_and_by_that_of_nothing_in_it(
    body: str, found: UUID | None
) -> None:
    assert find_id(body.encode()) == found


@given(st.binary())
@example(b'{"a": "\\\xff"}')
@example(b'{"a": "\\\\\xff"}')
@example(b'{"a": "\\\x00"}')
@example(b'{"a": "\xed\xa0\x80"}')
def test_every_body_is_kept_as_text_and_none_becomes_json_by_it(body: bytes) -> None:
    text = body_text(body)
    assert "\0" not in text
    stored = text.encode("utf-8")
    if stored != body:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
    restored = re.sub(rb"\\x([0-9a-f]{2})", lambda one: bytes.fromhex(one[1].decode()), stored)
    assert restored == body or rb"\x" in body


@given(st.binary(), st.binary())
def test_what_is_not_text_never_makes_a_json_string(before: bytes, after: bytes) -> None:
    body = b'"' + before + b"\xff" + after + b'"'
    with pytest.raises(json.JSONDecodeError):
        json.loads(body_text(body))


@given(st.text(alphabet=st.characters()))
@example("\ud800")
@example("\0")
def test_text_that_a_program_made_is_kept_too(text: str) -> None:
    kept = storable(text)
    kept.encode("utf-8")
    assert "\0" not in kept
    assert kept == text or "\0" in text or re.search("[\ud800-\udfff]", text)


UNTIL = datetime(2026, 11, 16, tzinfo=UTC)
LIMITS = EventLimits(262_144, 1826 * 86_400.0, 31 * 86_400.0)
SENSORS = Path(__file__).parents[2] / "examples" / "sensors" / "events.toml"
# All types, paths into arrays and odd names, and a hash of the moment alone.
PLAIN = """
[facts]
table = "w.facts"
partition = "at"
hashed = ["at"]
[facts.columns]
at = { path = "$.head[1].at", type = "timestamptz", required = true }
name = { path = '$["odd name"]', max_length = 4 }
kind = { path = "$.head[0].kind", required = true, examples = ["a", "b"] }
total = { type = "numeric" }
few = { type = "numeric(2,2)" }
count = { type = "bigint" }
share = { type = "double precision" }
key = { type = "uuid" }
day = { type = "date" }
seen = { type = "timestamptz" }
flag = { type = "boolean", examples = [true, false] }
more = { type = "jsonb" }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EventModel]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "plain.toml").write_text(PLAIN)
    for name, text in scaffold.other_files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return {
        "template": read_event_model(folder / "events.toml"),
        "sensors": read_event_model(SENSORS),
        "plain": read_event_model(folder / "plain.toml"),
    }


def work_off(model: EventModel, events: list[tuple[Any, str]]) -> dict[str, Any]:
    """What a reader makes of events, in the shape of the totals."""
    reader = EventReader(model, LIMITS)
    names = [one.name for one in model.fields]
    facts: dict[bytes, tuple[dict[str, Any], tuple[Any, ...]]] = {}
    failed = duplicates = 0
    for event_id, body in events:
        found = reader.read(RawEvent(event_id, body, UNTIL))
        if found.error is not None:
            failed += 1
            continue
        assert found.event_hash is not None
        fact = dict(zip(names, found.values, strict=True)), found.ids
        if found.event_hash in facts:
            duplicates += 1
            assert facts[found.event_hash] == fact, "said in other words, and the same"
        facts.setdefault(found.event_hash, fact)
    sums: dict[str, Decimal] = {}
    for values, _ in facts.values():
        for column in model.columns:
            value = values[column.name]
            if column.type in ("numeric", "bigint") and value is not None:
                sums[column.name] = sums.get(column.name, Decimal(0)) + value
    at = model.partition_column
    return {
        "events": len(events),
        "facts": len(facts),
        "duplicates": duplicates,
        "failed": failed,
        "months": dict(sorted(Counter(f"{v[at]:%Y-%m}" for v, _ in facts.values()).items())),
        "sums": sums,
        "dimensions": {
            one.name: len({ids[place] for _, ids in facts.values()} - {None})
            for place, one in enumerate(model.dimensions)
        },
    }


@pytest.mark.parametrize("name", ["template", "sensors", "plain"])
def test_what_a_reader_finds_is_what_the_generator_counted(
    models: dict[str, EventModel], name: str
) -> None:
    plan = Generation(3_000, 5, UNTIL, duplicates=0.2, malformed=0.1, late=0.05)
    generator = EventGenerator(models[name], plan)
    events = list(generator.events())
    found = work_off(models[name], events)
    totals = generator.totals.document()
    assert {one: Decimal(text) for one, text in totals["sums"].items()} == found.pop("sums")
    assert {key: totals[key] for key in found} == found
    assert min(found["facts"], found["duplicates"], found["failed"]) > 200
    assert set(totals["malformed"]) == set(BROKEN_KINDS)
    assert len({event_id for event_id, _ in events}) == len(events)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 300),
    days=st.integers(1, 400),
    shares=st.sampled_from([(0.0, 0.0), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.3, 0.1)]),
)
def test_for_any_plan_the_totals_are_right(
    models: dict[str, EventModel], seed: int, count: int, days: int, shares: tuple[float, float]
) -> None:
    for model in models.values():
        generator = EventGenerator(model, Generation(count, seed, UNTIL, days, *shares, late=0.3))
        found = work_off(model, list(generator.events()))
        found.pop("sums")
        totals = generator.totals.document()
        assert {key: totals[key] for key in found} == found


def test_the_same_plan_gives_the_same_events_and_another_gives_others(
    models: dict[str, EventModel],
) -> None:
    plan = Generation(100, 1, UNTIL)
    plans = (plan, replace(plan, seed=2), replace(plan, until=UNTIL - timedelta(days=1)))
    ids: list[Any] = []
    for model in models.values():
        for one in plans:
            events = list(EventGenerator(model, one).events())
            assert events == list(EventGenerator(model, one).events())
            ids += [event_id for event_id, _ in events]
    assert len(set(ids)) == len(ids) == 900


def test_a_field_that_the_template_gained_is_made_up_too(
    models: dict[str, EventModel], tmp_path: Path
) -> None:
    for name, text in scaffold.other_files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        grown = 'device = { path = "$.device.os", required = true, examples = ["linux"] }'
        text = text.replace("[facts.columns]", f"[facts.columns]\n{grown}")
        (tmp_path / name).write_text(text)
    plan = Generation(50, 1, UNTIL, malformed=0)
    generator = EventGenerator(read_event_model(tmp_path / "events.toml"), plan)
    bodies = [json.loads(body) for _, body in generator.events()]
    assert {one["device"]["os"] for one in bodies} == {"linux"}
    assert {"signup", "page_viewed"} <= {one["type"] for one in bodies}
