"""Any value of any type arrives as it was, with and without a transformation."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.conftest import Place
from integration.type_values import KINDS, OWN_TYPES, Kind

SYNC = {"source": "shop:public.t", "target": "warehouse:raw.t", "cursor": "c", "name": "t"}
ROWS = 200
# Each example is one table and one Spark job; the rows in it are the cases.
FEW = settings(
    max_examples=2,
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
            f" g numeric GENERATED ALWAYS AS (c * 1.50) STORED, {columns})"  # type: ignore[arg-type]
        )
        session.cursor().executemany(
            f"INSERT INTO t OVERRIDING USER VALUE VALUES (%s, 0, DEFAULT, {casts})",  # type: ignore[arg-type]
            [[number, *row] for number, row in enumerate(rows)],
        )


def target_types(place: Place) -> dict[str, str]:
    return dict(
        place.target.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'raw.t'::regclass AND attnum > 0 AND NOT attisdropped"
        )
    )


def differences(place: Place, kinds: list[Kind]) -> list[str]:
    """Columns in which a row is not the same in every byte, or does not print the same."""
    found: list[str] = []
    types = target_types(place)
    names = {"i": "identity", "g": "generated"}
    names |= {f"t{index}": kind.type for index, kind in enumerate(kinds)}
    with place.source.connect() as session:
        session.execute("SET TimeZone = 'UTC'")
        for name, kind in names.items():
            same = "record_image_eq(ROW(s.{0}::{1}), ROW(g.{0}))"
            if kind == "tsquery":
                # Postgres packs one that it received otherwise than one that was typed.
                same = "(s.{0} = g.{0} OR num_nulls(s.{0}, g.{0}) = 2)"
            rows = session.execute(
                f"SELECT c, s.{name}::text, g.{name}::text FROM t s FULL JOIN raw.t g USING (c)"  # type: ignore[arg-type]
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


IDENTITY = """
import tidegate as tg

@tg.sync(source="shop:public.t", target="warehouse:raw.t", cursor="c")
def t(df):
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
