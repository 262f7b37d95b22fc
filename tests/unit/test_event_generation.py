"""Events that are made up: the same by the same seed, and counted before they are written."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.admin import scaffold
from tidegate.events.generator import EventGenerator, Generation
from tidegate.events.model import EventModel
from tidegate.events.model_file import read_event_model
from tidegate.events.reader import EventLimits, EventReader, RawEvent
from tidegate.events.samples import BROKEN_KINDS

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
