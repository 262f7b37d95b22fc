"""Any model: every type as a column, as a key and as a part of one, from raw events to tables."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from integration.conftest import MakePlace
from tidegate.events.generator import Generation, generate_events
from tidegate.events.model import FieldType
from tidegate.events.model_file import read_event_model
from tidegate.events.process import process
from tidegate.events.project_events import find_events
from tidegate.events.provision import provision
from tidegate.events.refresh import refresh

TYPES = [one for one in FieldType if one is not FieldType.JSONB]
ODD = ['"odd name"', '"ünïcode"', '"select"', "'with \"quotes\"'", '"%s"', '"{x}"', '"Upper"']


def random_model(seed: int) -> str:
    """A model with odd names, every type, and dimensions that share fields with the facts."""
    rng = random.Random(seed)
    lines = ["[facts]", 'table = "My Facts.the facts"', 'partition = "at"']
    columns = {"at": '{ type = "timestamptz", required = true }'}
    for place, one in enumerate([*TYPES, FieldType.JSONB]):
        type_ = f"{one}({rng.randrange(6, 20)},{rng.randrange(4)})" if one == "numeric" else one
        required = ", required = true" if rng.random() < 0.3 else ""
        columns[f"c{place}"] = f'{{ path = "$.c[{place}].v", type = "{type_}"{required} }}'
    for name in rng.sample(ODD, 3):
        columns[name] = '{ path = "$.odd", type = "bigint" }'
    hashed = ["at", *rng.sample([one for one in columns if one.startswith("c")], 3)]
    lines += [f"hashed = {hashed}".replace("'", '"'), "[facts.columns]"]
    lines += [f"{name} = {text}" for name, text in columns.items()]
    for place, one in enumerate(TYPES):
        lines += [f"[dimensions.d{place}]", f'table = "My Facts.dim {place}"']
        lines += [f'key.k{place} = {{ path = "$.k.k{place}", type = "{one}" }}']
        if rng.random() < 0.6:
            lines += [f'attributes.a{place} = {{ type = "{rng.choice(list(FieldType))}" }}']
    parts = rng.sample(TYPES, 4)
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
