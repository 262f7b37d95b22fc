"""Any value of any type arrives as it was, with and without a transformation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.conftest import Place
from integration.type_values import KINDS, OWN_TYPES, Kind
from tidegate.errors import SourceError
from tidegate.postgres.connect import connect

SYNC = {"source": "shop:public.t", "target": "warehouse:raw.t", "cursor": "c", "name": "t"}
ROWS = 200
# Each example is one table and one Spark job; the rows in it are the cases.
FEW = settings(
    max_examples=3,
    deadline=None,
    # A seed does not shrink to anything simpler.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    print_blob=True,
)
SEEDS = st.integers(0, 2**32 - 1)


def fill(place: Place, seed: int, kinds: list[Kind], *, through_spark: bool) -> None:
    """A wide table of random rows, made anew, and no trace of an earlier one."""
    random = Random(seed)
    columns = ", ".join(f"t{index} {kind.type}" for index, kind in enumerate(kinds))
    casts = ", ".join(f"%s::text::{kind.type}" for kind in kinds)
    rows = [
        [kind.value(random, through_spark=through_spark) for kind in kinds] for _ in range(ROWS)
    ]
    with place.source.connect() as session:
        session.execute("DROP TABLE IF EXISTS t")
        session.execute(
            "CREATE TABLE t (c int PRIMARY KEY, i bigint GENERATED ALWAYS AS IDENTITY,"
            f" g numeric GENERATED ALWAYS AS (c * 1.50) STORED,"
            f" v text GENERATED ALWAYS AS (upper('ü' || c)) VIRTUAL, {columns})"  # type: ignore[arg-type]
        )
        session.cursor().executemany(
            f"INSERT INTO t OVERRIDING USER VALUE VALUES (%s, 0, DEFAULT, DEFAULT, {casts})",  # type: ignore[arg-type]
            [[number, *row] for number, row in enumerate(rows)],
        )


def target_types(place: Place, path: str = "public") -> dict[str, str]:
    return dict(
        place.target.execute(
            f"SET search_path = {path}",
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'raw.t'::regclass AND attnum > 0 AND NOT attisdropped",
        )
    )


def differences(place: Place, kinds: list[Kind]) -> list[str]:
    """Columns in which a row is not the same in every byte, or does not print the same."""
    found: list[str] = []
    types = target_types(place, "pg_catalog")
    names = {"i": "identity", "g": "generated", "v": "virtual"}
    names |= {f"t{index}": kind.type for index, kind in enumerate(kinds)}
    with place.source.connect() as session:
        # Names of types and tables are printed with their schema, as in sessions of ours.
        session.execute("SET TimeZone = 'UTC'; SET search_path = pg_catalog")
        for name, kind in names.items():
            same = "record_image_eq(ROW(s.{0}::{1}), ROW(g.{0}))"
            if kind == "tsquery":
                # Postgres packs one that it received otherwise than one that was typed.
                same = "(s.{0} = g.{0} OR num_nulls(s.{0}, g.{0}) = 2)"
            rows = session.execute(
                f"SELECT c, s.{name}::text, g.{name}::text FROM public.t s"  # type: ignore[arg-type]
                " FULL JOIN raw.t g USING (c)"
                f" WHERE ({same.format(name, types[name])}) IS NOT TRUE"
                f" OR s.{name}::text IS DISTINCT FROM g.{name}::text ORDER BY c LIMIT 3"
            ).fetchall()
            found += [f"{kind}, row {row}: {was!r} became {now!r}" for row, was, now in rows]
    return found


def run_again(project: Any, place: Place) -> Any:
    """A full refresh from an empty start, so that one project serves all examples."""
    place.target.execute("DROP TABLE IF EXISTS raw.t")
    return project.run("t", full_refresh=True)


def test_any_value_of_any_type_passes_through_unchanged(make_project: Any) -> None:
    project, place = make_project(SYNC)
    place.source.execute(*OWN_TYPES)
    kinds = list(KINDS)

    @FEW
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        fill(place, seed, kinds, through_spark=False)
        assert run_again(project, place).rows == ROWS
        assert differences(place, kinds) == []
        # What was loaded is recognised as the same, so that nothing is written again.
        assert project.run("t", full_refresh=True).outcome.changed == 0

    check()


# The table of docs/transform.md: what is not here is a string, and the same type in the target.
DIRECT = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "numeric(10,2)": "decimal(10,2)",
    "numeric(38,10)": "decimal(38,10)",
    "numeric(38,38)": "decimal(38,38)",
    "numeric(38,0)": "decimal(38,0)",
    "bytea": "binary",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp(0) without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
    "timestamp(3) with time zone": "timestamp",
    "positive": "int",
    "very_positive": "int",
}
BACK = {
    "positive": "integer",
    "very_positive": "integer",
    "short": "character varying(4)",
    "amounts": "numeric(8,2)[]",
    **dict.fromkeys(("mood", "pair", "nested", "spread", "temper", "regclass", "regtype"), "text"),
    **dict.fromkeys(("mood[]", "pair[]", "positive[]"), "text"),
}

IDENTITY = """
from pathlib import Path

import tidegate as tg

@tg.sync(source="shop:public.t", target="warehouse:raw.t", cursor="c")
def t(df):
    types = "\\n".join(field.dataType.simpleString() for field in df.schema.fields)
    Path(__file__).with_name("types").write_text(types)
    return df.where("true")
"""


def test_any_value_that_spark_has_an_equal_of_comes_back_unchanged(make_project: Any) -> None:
    project, place = make_project(pipelines=IDENTITY)
    place.source.execute(*OWN_TYPES)
    kinds = list(KINDS)

    @FEW
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        fill(place, seed, kinds, through_spark=True)
        assert run_again(project, place).rows == ROWS
        assert differences(place, kinds) == []
        assert project.run("t", full_refresh=True).outcome.changed == 0

    check()
    seen = (place.folder / "types").read_text().splitlines()[4:]
    assert {kind.type: found for kind, found in zip(kinds, seen, strict=True)} == {
        kind.type: DIRECT.get(kind.type, "string") for kind in kinds
    }
    assert {kind.type: target_types(place)[f"t{index}"] for index, kind in enumerate(kinds)} == {
        kind.type: BACK.get(kind.type, kind.type) for kind in kinds
    }


def test_any_value_that_spark_has_no_equal_of_is_refused_by_its_column(make_project: Any) -> None:
    project, place = make_project(pipelines=IDENTITY)
    place.source.execute(*OWN_TYPES)
    kinds = list(KINDS)
    refusing = [(f"t{index}", kind) for index, kind in enumerate(kinds) if kind.refused]

    @FEW
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        fill(place, seed, kinds, through_spark=True)
        random = Random(seed)
        name, kind = random.choice(refusing)
        place.source.execute(
            f"UPDATE t SET {name} = '{random.choice(kind.refused)}'"
            f" WHERE c = {random.randrange(ROWS)}"
        )
        with pytest.raises(SourceError, match=rf"^column {name} holds"):
            project.run("t")
        assert place.target.value("SELECT count(*) FROM raw.t") == 0

    check()


def test_money_prints_alike_whatever_the_database_says(make_project: Any) -> None:
    """Else an amount in German would be read by an American, and be another."""
    _, place = make_project(SYNC)
    name = place.source.value("SELECT current_database()")
    place.source.execute(f"ALTER DATABASE {name} SET lc_monetary = 'POSIX'")
    assert place.source.value("SHOW lc_monetary") == "POSIX"
    with connect(place.source.conninfo, name="the source") as session:
        assert session.execute("SHOW lc_monetary").fetchone() == ("C",)
