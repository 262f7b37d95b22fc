"""Any model and any value: what a reader lets through is what Postgres takes."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from integration.conftest import Database, MakePlace
from tidegate.core.relation import Relation
from tidegate.events.generator import Generation, generate_events
from tidegate.events.model import Dimension, EventField, EventModel, FieldType, JsonPath
from tidegate.events.model_file import read_event_model
from tidegate.events.process import process
from tidegate.events.project_events import find_events
from tidegate.events.provision import provision
from tidegate.events.reader import EventLimits, EventReader, RawEvent
from tidegate.events.refresh import refresh

RECEIVED = datetime(2026, 11, 16, tzinfo=UTC)
LIMITS = EventLimits(1_000_000, 4_000 * 365 * 86_400.0, 9_000 * 365 * 86_400.0)
NUMERIC = {"precision": 12, "scale": 3}
TYPES: dict[str, tuple[FieldType, dict[str, int]]] = {
    "t": (FieldType.TEXT, {}),
    "n": (FieldType.NUMERIC, {}),
    "p": (FieldType.NUMERIC, NUMERIC),
    "i": (FieldType.BIGINT, {}),
    "f": (FieldType.DOUBLE, {}),
    "u": (FieldType.UUID, {}),
    "d": (FieldType.DATE, {}),
    "m": (FieldType.TIMESTAMPTZ, {}),
    "b": (FieldType.BOOLEAN, {}),
    "j": (FieldType.JSONB, {}),
}
MODEL = EventModel(
    Relation("w", "facts"),
    (
        EventField("at", JsonPath.parse("$.at"), FieldType.TIMESTAMPTZ, required=True),
        *(
            EventField(name, JsonPath.parse(f"$.{name}"), type_, **more)
            for name, (type_, more) in TYPES.items()
        ),
    ),
    "at",
    ("at", "t", "n", "p", "i", "f", "u", "d", "m", "b", "j"),
)
COLUMNS = [one.name for one in MODEL.fields]


def number(rng: random.Random) -> str:
    kind = rng.randrange(8)
    if kind == 0:
        edges = ("131071", "131072", "-16383", "-16384", "308", "309", "-400", "2000000000")
        digits = rng.choice(["1", "0", "9.99", "1.0", "123456789"])
        return f"{digits}{rng.choice('eE')}{rng.choice(edges)}"
    if kind == 1:
        return rng.choice(["9" * 5_000, "0." + "0" * 16_382 + "1", "0." + "0" * 16_383 + "1", "-0"])
    if kind == 2:
        return str(rng.choice([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**19]))
    if kind == 3:
        return f"{rng.randrange(10**6)}.{rng.randrange(10**4)}"
    return f"{rng.randrange(-100, 100)}{rng.choice(['', '.0', '.50', 'e1', 'E-2', '.125'])}"


def string(rng: random.Random) -> str:
    parts = [
        "a",
        "é",
        "😀",
        "\\n",
        '\\"',
        "\\\\u0000",
        "\\u0041",
        "\\ud83d\\ude00",
        *(["\\u0000", "\\ud800", "\\udc00", "\\ude00\\ud83d"] if rng.random() < 0.3 else []),
    ]
    words = ["2026-11-10", "2026-02-29", "0001-01-01", "9999-12-31", "12", "-1.50", "1e5"]
    words += ["2026-11-10T12:00:00.123456789+05:45", "0001-01-01T00:00:00Z", "1e140000"]
    words += ["9999-12-31 23:59:59.999999-00:00", "2026-11-10T12:00Z", str(uuid4()), uuid4().hex]
    if rng.random() < 0.4:
        return f'"{rng.choice(words)}"'
    return '"' + "".join(rng.choices(parts, k=rng.randrange(4))) + '"'


def value(rng: random.Random, depth: int = 0) -> str:
    kind = rng.randrange(6 if depth < 3 else 4)
    if kind == 4:
        return "[" + ",".join(value(rng, depth + 1) for _ in range(rng.randrange(3))) + "]"
    if kind == 5:
        members = (f"{string(rng)}:{value(rng, depth + 1)}" for _ in range(rng.randrange(4)))
        return "{" + ",".join(members) + "}"
    if kind == 3:
        return rng.choice(["true", "false", "null"])
    return number(rng) if kind == 2 else string(rng)


FITTING = {"t": string, "n": number, "p": number, "i": number, "f": number, "j": value}


def body(rng: random.Random) -> str:
    """Often fitting, with members that come twice and members that nobody reads."""
    members = []
    for name in rng.choices([*TYPES, "x", "x", "x"], k=rng.randrange(5)):
        make = FITTING.get(name, string) if name != "x" and rng.random() < 0.8 else value
        members.append(f'"{name}":{make(rng)}')
    members.insert(rng.randrange(len(members) + 1), '"at":"2026-11-10T00:00:00Z"')
    return "{" + ",".join(members) + "}"


def test_a_payload_is_what_jsonb_takes_and_values_are_what_their_columns_take(
    database: Database,
) -> None:
    rng, reader = random.Random(3), EventReader(MODEL, LIMITS)
    events = [body(rng) for _ in range(3_000)]
    found = [reader.read(RawEvent(uuid4(), one, RECEIVED)) for one in events]
    good = [(text, one) for text, one in zip(events, found, strict=True) if one.error is None]
    assert len(good) > 1_000
    assert len({one.error for one in found}) > 20
    assert not [one for one in found if (one.error or "").startswith("could not be read")]
    with database.connect() as connection:
        judged = connection.execute(
            "SELECT pg_input_is_valid(body, 'jsonb') FROM unnest(%s::text[]) AS body",
            ([text for text, _ in good],),
        ).fetchall()
        for (text, one), (is_taken,) in zip(good, judged, strict=True):
            assert one.payload in (None, text)
            assert (one.payload is not None) == is_taken, text[:300]
        assert sum(one.payload is None for _, one in good) > 25

        connection.execute(
            "CREATE TABLE facts (place bigint, at timestamptz, t text, n numeric, p numeric(12,3),"
            " i bigint, f double precision, u uuid, d date, m timestamptz, b boolean, j jsonb)"
        )
        with connection.cursor().copy("COPY facts FROM STDIN") as copy:
            for place, (_, one) in enumerate(good):
                copy.write_row((place, *one.values))
        connection.execute("SET TimeZone = 'UTC'")
        kept = connection.execute(
            "SELECT t, n, p, i, f, u, d, m, b, j::text FROM facts ORDER BY place"
        )
        for row, (_, one) in zip(kept.fetchall(), good, strict=True):
            values: dict[str, Any] = dict(zip(COLUMNS, one.values, strict=True))
            expected = [values[name] for name in TYPES]
            assert list(row[:-1]) == expected[:-1]
            if expected[-1] is not None:
                exact = {"parse_float": Decimal, "parse_int": Decimal}
                assert json.loads(row[-1], **exact) == json.loads(expected[-1], **exact)


@pytest.mark.parametrize("type_", [FieldType.TEXT, FieldType.NUMERIC])
def test_what_is_a_key_always_fits_into_an_index(database: Database, type_: FieldType) -> None:
    key = EventField("k", JsonPath.parse("$.k"), type_)
    at = EventField("at", JsonPath.parse("$.at"), FieldType.TIMESTAMPTZ, required=True)
    dimension = Dimension("keys", Relation("w", "keys"), (key,))
    model = EventModel(Relation("w", "facts"), (at,), "at", ("at",), (dimension,))
    rng = random.Random(4)
    database.execute(f"CREATE TABLE keys (k {type_} PRIMARY KEY)")
    taken = refused = 0
    for length in (1_990, 2_000, 2_001, 2_700, 2_712, 9_000):
        # Noise, so that nothing can be compressed.
        text = "".join(rng.choices("123456789", k=length))
        written = f'"{text}"' if type_ is FieldType.TEXT else text
        raw = f'{{"at": "2026-11-10T00:00:00Z", "k": {written}}}'
        one = EventReader(model, LIMITS).read(RawEvent(uuid4(), raw, RECEIVED))
        if one.error is not None:
            refused += 1
            continue
        taken += 1
        with database.connect() as connection:
            connection.execute("INSERT INTO keys VALUES (%s)", (one.ids[0],))
    assert (taken, refused) == (2, 4)


KEY_TYPES = [one for one in FieldType if one is not FieldType.JSONB]
ODD = ['"odd name"', '"ünïcode"', '"select"', "'with \"quotes\"'", '"%s"', '"{x}"', '"Upper"']


def random_model(seed: int) -> str:
    """A model with odd names, every type, and dimensions that share fields with the facts."""
    rng = random.Random(seed)
    lines = ["[facts]", 'table = "My Facts.the facts"', 'partition = "at"']
    columns = {"at": '{ type = "timestamptz", required = true }'}
    for place, one in enumerate([*KEY_TYPES, FieldType.JSONB]):
        type_ = f"{one}({rng.randrange(6, 20)},{rng.randrange(4)})" if one == "numeric" else one
        required = ", required = true" if rng.random() < 0.3 else ""
        columns[f"c{place}"] = f'{{ path = "$.c[{place}].v", type = "{type_}"{required} }}'
    for name in rng.sample(ODD, 3):
        columns[name] = '{ path = "$.odd", type = "bigint" }'
    hashed = ["at", *rng.sample([one for one in columns if one.startswith("c")], 3)]
    lines += [f"hashed = {hashed}".replace("'", '"'), "[facts.columns]"]
    lines += [f"{name} = {text}" for name, text in columns.items()]
    for place, one in enumerate(KEY_TYPES):
        lines += [f"[dimensions.d{place}]", f'table = "My Facts.dim {place}"']
        lines += [f'key.k{place} = {{ path = "$.k.k{place}", type = "{one}" }}']
        if rng.random() < 0.6:
            lines += [f'attributes.a{place} = {{ type = "{rng.choice(list(FieldType))}" }}']
    parts = rng.sample(KEY_TYPES, 4)
    lines += ["[dimensions.all]", 'table = "My Facts.all"', 'id = "all id"']
    lines += [f'key.p{place} = {{ type = "{one}" }}' for place, one in enumerate(parts)]
    lines += ['attributes.c0 = { path = "$.c[0].v", type = "text"' + _required(columns) + " }"]
    lines += ["[[views]]", 'name = "My Views.by day"', 'unique = ["the day"]']
    lines += ["query = '''SELECT (at AT TIME ZONE 'UTC')::date AS \"the day\", count(*) AS events"]
    lines += ['FROM "My Facts"."the facts" GROUP BY 1\'\'\'']
    return "\n".join(lines)


def _required(columns: dict[str, str]) -> str:
    return ", required = true" if "required" in columns["c0"] else ""


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in (2, 3, 4))]
)
def test_the_tables_of_any_model_hold_what_the_generator_counted(
    make_place: MakePlace, seed: int
) -> None:
    place = make_place(events={"connection": "warehouse", "raw_table": '"In".raw events'})
    (place.folder / "events.toml").write_text(random_model(seed))
    model = read_event_model(place.folder / "events.toml")
    until = datetime(2026, 11, 16, tzinfo=UTC)
    with place.open() as project, project.connect("warehouse") as connection:
        context, events = project.context, find_events(project.context)
        plan = Generation(600, seed, until, duplicates=0.2, malformed=0.1, late=0.05)
        totals = generate_events(context, plan).totals
        provision(context, events, connection)
        done = process(
            context,
            events,
            attempt_id="a" * 32,
            budget_seconds=120,
            check_alive=lambda: None,
            provision=lambda months: None,
        )
        (view,) = refresh(context, events, connection, check_alive=lambda: None)
        assert view.error is None
    assert (done.facts, done.duplicates) == (totals.facts, totals.duplicates)
    assert done.failed == totals.malformed.total()
    facts = '"My Facts"."the facts"'
    assert place.target.value(f"SELECT count(*) FROM {facts}") == totals.facts
    for name, total in totals.sums.items():
        quoted = '"' + name.replace('"', '""') + '"'
        found = place.target.value(f"SELECT sum({quoted})::numeric FROM {facts}")
        assert found == total, name
    for dimension in model.dimensions:
        table = f'"My Facts"."{dimension.table.name}"'
        rows = totals.keys[dimension.name]
        assert place.target.value(f"SELECT count(*) FROM {table}") == len(rows), dimension.name
        column = '"' + dimension.fact_column + '"'
        joined = f"SELECT count(*) FROM {facts} JOIN {table} USING ({column})"
        assert place.target.value(joined) == rows.total()
    assert place.target.value('SELECT sum(events) FROM "My Views"."by day"') == Decimal(
        totals.facts
    )
