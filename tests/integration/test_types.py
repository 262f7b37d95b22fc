"""Any value of any type arrives as it was, with and without a transformation."""

from __future__ import annotations

from random import Random

import pytest

from chaos_seeds import seeds
from integration.conftest import MakePlace, MakeProject, Place
from integration.type_values import KINDS, OWN_TYPES, Kind
from tidegate.core.errors import DeclarationError, LoadError, SourceError, TransformError
from tidegate.postgres.connection import connect
from tidegate.project import Project

SYNC = {"source": "shop:public.t", "target": "warehouse:raw.t", "cursor": "c", "name": "t"}
ROWS = 30
EVERY_SEED = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(one, marks=pytest.mark.chaos) for one in seeds(range(1, 6)))]
)


def fill(place: Place, seed: int, kinds: list[Kind], *, through_spark: bool) -> None:
    """A wide table, in which every value that there is occurs once, and random ones."""
    random = Random(seed)
    columns = ", ".join(f"t{index} {kind.type}" for index, kind in enumerate(kinds))
    casts = ", ".join(f"%s::{kind.type}" for kind in kinds)
    values = [kind.some(random, ROWS, through_spark=through_spark) for kind in kinds]
    with place.source.connect() as session:
        session.execute(
            "CREATE TABLE t (c int PRIMARY KEY, i bigint GENERATED ALWAYS AS IDENTITY,"
            f" g numeric GENERATED ALWAYS AS (c * 1.50) STORED,"
            f" v text GENERATED ALWAYS AS (upper('ü' || c)) VIRTUAL, {columns})"
        )
        session.cursor().executemany(
            f"INSERT INTO t OVERRIDING USER VALUE VALUES (%s, 0, DEFAULT, DEFAULT, {casts})",
            [[number, *row] for number, row in enumerate(zip(*values, strict=True))],
        )


def target_types(place: Place, path: str = "public") -> dict[str, str]:
    return dict(
        place.target.execute(
            f"SET search_path = {path}",
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'raw.t'::regclass AND attnum > 0 AND NOT attisdropped",
        )
    )


def types_of(place: Place, kinds: list[Kind]) -> dict[str, str]:
    """What each type has become in the target."""
    found = target_types(place)
    return {kind.type: found[f"t{index}"] for index, kind in enumerate(kinds)}


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
                f"SELECT c, s.{name}::text, g.{name}::text FROM public.t s"
                " FULL JOIN raw.t g USING (c)"
                f" WHERE ({same.format(name, types[name])}) IS NOT TRUE"
                f" OR s.{name}::text IS DISTINCT FROM g.{name}::text ORDER BY c LIMIT 3"
            ).fetchall()
            found += [f"{kind}, row {row}: {was!r} became {now!r}" for row, was, now in rows]
    return found


# A domain becomes the type it stands for.
DOMAINS = {
    "positive": "integer",
    "very_positive": "integer",
    "short": "character varying(4)",
    "amounts": "numeric(8,2)[]",
}


@EVERY_SEED
def test_any_value_passes_through_unchanged(make_project: MakeProject, seed: int) -> None:
    project, place = make_project(SYNC)
    place.source.execute(*OWN_TYPES)
    fill(place, seed, KINDS, through_spark=False)
    assert project.run("t").rows == ROWS
    assert differences(place, KINDS) == []
    assert types_of(place, KINDS) == {one.type: DOMAINS.get(one.type, one.type) for one in KINDS}
    # What was loaded is recognised as the same, so that nothing is written again.
    assert project.run("t", full_refresh=True).outcome.changed == 0


def test_a_type_the_destination_does_not_have_arrives_as_text(make_project: MakeProject) -> None:
    project, place = make_project(SYNC, databases=2)
    place.source.execute(*OWN_TYPES)
    kinds = [kind for kind in KINDS if kind.type in ("mood", "mood[]", "pair", "spread")]
    fill(place, 0, kinds, through_spark=False)
    project.run("t")
    assert set(types_of(place, kinds).values()) == {"text"}
    text = "SELECT c, t0::text, t1::text, t2::text, t3::text FROM {} ORDER BY c"
    assert place.target.execute(text.format("raw.t")) == place.source.execute(text.format("t"))


# The table of docs/guides/transform.md. A type that is not here is a string, and in the target
# the same type.
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
TEXT = "mood pair nested spread temper mood[] pair[] positive[] regclass[]"
TEXT += " regclass regtype regproc regoperator regrole"
BACK = DOMAINS | dict.fromkeys(TEXT.split(), "text")

PIPELINE = """
from pathlib import Path

import tidegate as tg
from pyspark.sql import functions as F

@tg.sync(source="shop:public.t", target="warehouse:raw.t", cursor="c")
def t(df):
    types = "\\n".join(field.dataType.simpleString() for field in df.schema.fields)
    Path(__file__).with_name("types").write_text(types)
    return {}
"""
EACH = ("numeric(10,2)", "date", "timestamp without time zone", "timestamp with time zone")
IDENTITY = PIPELINE.format('df.where("true")')


@EVERY_SEED
def test_any_value_comes_back_from_spark_unchanged(make_project: MakeProject, seed: int) -> None:
    project, place = make_project(pipelines=IDENTITY)
    place.source.execute(*OWN_TYPES)
    fill(place, seed, KINDS, through_spark=True)
    assert project.run("t").rows == ROWS
    assert differences(place, KINDS) == []
    assert project.run("t", full_refresh=True).outcome.changed == 0
    seen = (place.folder / "types").read_text().splitlines()[4:]
    assert {kind.type: found for kind, found in zip(KINDS, seen, strict=True)} == {
        kind.type: DIRECT.get(kind.type, "string") for kind in KINDS
    }
    assert types_of(place, KINDS) == {kind.type: BACK.get(kind.type, kind.type) for kind in KINDS}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_a_value_that_spark_has_no_equal_of_is_refused_by_its_column(
    make_project: MakeProject, every: bool
) -> None:
    project, place = make_project(pipelines=IDENTITY)
    kinds = [kind for kind in KINDS if kind.refused and (every or kind.type in EACH)]
    fill(place, 0, kinds, through_spark=True)
    for index, kind in enumerate(kinds):
        for value in kind.refused if every else kind.refused[-1:]:
            place.source.execute(f"UPDATE t SET t{index} = '{value}' WHERE c = 7")
            with pytest.raises(SourceError, match=rf"^column t{index} holds") as caught:
                project.run("t")
            assert "read a view that casts the column or leaves it out" in str(caught.value.hint)
        place.source.execute(f"UPDATE t SET t{index} = NULL WHERE c = 7")
    assert place.target.value("SELECT count(*) FROM raw.t") == 0
    assert project.watermark("t").value is None


def test_money_prints_alike_whatever_the_database_says(make_place: MakePlace) -> None:
    """Else an amount in German would be read by an American, and be another."""
    place = make_place(SYNC)
    name = place.source.value("SELECT current_database()")
    place.source.execute(f"ALTER DATABASE {name} SET lc_monetary = 'POSIX'")
    assert place.source.value("SHOW lc_monetary") == "POSIX"
    with connect(place.source.conninfo, name="the source") as session:
        assert session.execute("SHOW lc_monetary").fetchone() == ("C",)


def transform(project: Project, place: Place, body: str) -> Project:
    """The project again, with another transformation."""
    (place.folder / "pipelines.py").write_text(PIPELINE.format(body))
    return place.open(project.context.spark)


GOOD = """(
    df.where('c > 1').withColumn('{0}', F.col('c') * 2).withColumn('day', F.to_date('at'))
    .drop('at').withColumn(
        'name',
        F.when(F.col('c') == 8, F.concat('name', F.lit(' etc.')))
        .when(F.col('c') == 9, F.raise_error('no reach')).otherwise(F.upper('name')),
    ))"""


def test_a_transformation_works_or_is_told_by_name(make_project: MakeProject) -> None:
    project, place = make_project(pipelines=IDENTITY, databases=2)
    place.source.execute(
        "CREATE TABLE t (c int PRIMARY KEY, name varchar(5), at timestamptz)",
        "INSERT INTO t SELECT n, 'n' || n, '2026-01-01 00:00+00' FROM generate_series(1, 3) n",
    )

    def assert_refused(again: Project, error: type[Exception], message: str, loads: int) -> None:
        with pytest.raises(error, match=message):
            again.run("t")
        assert place.target.value("SELECT count(*) FROM tidegate.table_updates") == loads
        assert place.target.value("SELECT count(*) FROM pg_class WHERE relname ~ '^stg_'") == 0

    for body, error, message in (
        ("df.nothing", TransformError, "of sync t failed: PySparkAttributeError"),
        ("[1]", TransformError, "returned list, not a DataFrame"),
        ("df.drop('c')", DeclarationError, "drops the key column c"),
        ("df.withColumn('m', F.create_map('c', 'c'))", DeclarationError, "m .* map<int,int>"),
        ("df.select('*', 'c')", DeclarationError, "has column c twice"),
    ):
        assert_refused(transform(project, place, body), error, message, 0)
    project = transform(project, place, GOOD.format("twice"))
    assert project.run("t").rows == 2
    assert place.target.execute("SELECT c, name, twice, day::text FROM raw.t ORDER BY c") == [
        (2, "N2", 4, "2026-01-01"),
        (3, "N3", 6, "2026-01-01"),
    ]
    assert target_types(place)["day"] == "date"
    assert project.run("t").found_nothing
    place.source.execute("INSERT INTO t VALUES (9, 'n9')")
    assert_refused(project, TransformError, "no reach", 1)
    # Text that grew too long is refused, not cut.
    place.source.execute("UPDATE t SET c = 8 WHERE c = 9")
    assert_refused(project, LoadError, "value too long", 1)
    assert project.watermark("t").value == "3"
    # A column that the transformation gives later is added to the target.
    place.source.execute("UPDATE t SET c = 4 WHERE c = 8")
    project = transform(project, place, GOOD.format("double"))
    assert "column double" in project.run("t").outcome.notes[0]
    assert place.target.execute("SELECT c, twice, double FROM raw.t ORDER BY c") == [
        (2, 4, None),
        (3, 6, None),
        (4, None, 8),
    ]
