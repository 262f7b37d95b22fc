"""Every type arrives as it was; a transformation sees it as the table of types says."""

from __future__ import annotations

import pytest

from integration.conftest import MakeProject, Place
from tidegate.errors import DeclarationError, LoadError, SourceError, TransformError

SYNC = {"source": "shop:public.t", "target": "warehouse:raw.t", "cursor": "c", "name": "t"}

# (type, values); every value is compared as the text both databases print.
EXACT = [
    ("boolean", ["true", "false"]),
    ("smallint", ["-32768", "32767"]),
    ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    ("numeric", ["NaN", "Infinity", "-Infinity", "1.10", "0.000", "9" * 1000, "-0." + "7" * 900]),
    ("numeric(10,2)", ["NaN", "12345678.90"]),
    ("real", ["NaN", "Infinity", "-Infinity", "1.1", "-0"]),
    ("double precision", ["NaN", "Infinity", "-Infinity", "0.1", "1e308", "-0"]),
    ("money", ["$1,234.56", "-$0.01"]),
    ("text", ["", " ", "ü€漢字🎉", "a\\b'\"\t\n", "NULL", "\\N"]),
    ("varchar(7)", ["ü€漢字🎉ab", ""]),
    ("char(5)", ["a", "abcde", ""]),
    ("name", ["a name"]),
    ('"char"', ["x"]),
    ("bytea", ["\\x", "\\x00ff5c27"]),
    ("date", ["infinity", "-infinity", "0044-03-15 BC", "9999-12-31", "2026-02-28"]),
    ("time", ["00:00:00", "24:00:00", "12:34:56.789012"]),
    ("timetz", ["12:34:56.789012+05:30"]),
    ("timestamp", ["infinity", "-infinity", "0044-03-15 12:00 BC", "2026-03-29 02:30:00.000001"]),
    ("timestamptz", ["infinity", "-infinity", "0044-03-15 12:00 BC", "2026-03-29 02:30+01"]),
    ("timestamptz(3)", ["2026-03-29 02:30:00.123+00"]),
    ("interval", ["1 year 2 mons -3 days 04:05:06.789", "-00:00:01", "infinity"]),
    ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("json", ['{"b": 1,  "a": [1.50, null], "b": 2}', "null"]),
    ("jsonb", ['{"b": 1, "a": [1.50, null]}', "null", '"x"']),
    ("int[]", ["{}", "{1,NULL,3}", "{{1,2},{3,NULL}}", "[2:3]={7,8}"]),
    ("text[]", ['{"a,b",NULL,"NULL","\\"q\\"",""}']),
    ("numeric[]", ["{NaN,1.10}"]),
    ("timestamptz[]", ["{infinity,NULL}"]),
    ("mood", ["happy", "so so"]),
    ("mood[]", ['{happy,NULL,"so so"}']),
    ("positive", ["1", "2147483647"]),
    ("pair", ["(1,a)", '(,"x y")']),
    ("int4range", ["empty", "[1,10)", "(,5)", "(,)"]),
    ("tstzrange", ['["2026-01-01 00:00:00+00",infinity]']),
    ("spread", ["[1.5,2)"]),
    ("int4multirange", ["{}", "{[1,3),[5,8)}"]),
    ("inet", ["192.168.0.1/24", "::1"]),
    ("cidr", ["10.0.0.0/8"]),
    ("macaddr", ["08:00:2b:01:02:03"]),
    ("bit(3)", ["101"]),
    ("bit varying(5)", ["", "10101"]),
    ("point", ["(1.5,-2)"]),
    ("polygon", ["((0,0),(1,1),(1,0))"]),
    ("tsvector", ["'a':1 'fat':2"]),
    ("tsquery", ["'a' & 'b'"]),
    ("pg_lsn", ["16/B374D848"]),
    ("oid", ["4294967295"]),
    # What names nothing is printed as -, and what names something that is gone as its number.
    ("regclass", ["pg_class", "-", "4000000000"]),
    ("regclass[]", ["{pg_class,-,NULL}"]),
    ("regtype", ["integer", "-", "4000000000"]),
    ("regproc", ["array_cat", "-"]),
    ("regoperator", ["+(integer,integer)", "0"]),
    ("regrole", ["postgres", "-"]),
    ("jsonpath", ['$."a"[*]']),
]
OWN_TYPES = (
    "CREATE TYPE mood AS ENUM ('happy', 'so so')",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE TYPE spread AS RANGE (subtype = float8)",
)


def fill(place: Place, types: list[tuple[str, list[str]]]) -> int:
    """A table with a column per type; row n holds the n-th value of each, then NULLs."""
    columns = ", ".join(f"t{index} {kind}" for index, (kind, _) in enumerate(types))
    place.source.execute(*OWN_TYPES)
    place.source.execute(f"CREATE TABLE t (c int PRIMARY KEY, {columns})")
    rows = max(len(values) for _, values in types) + 1
    with place.source.connect() as session:
        for row in range(rows):
            values = [values[row] if row < len(values) else None for _, values in types]
            casts = ", ".join(f"%s::{kind}" for kind, _ in types)
            session.execute(f"INSERT INTO t VALUES ({row}, {casts})", values)  # type: ignore[arg-type]
    return rows


def differences(place: Place, types: list[tuple[str, list[str]]]) -> list[str]:
    """Which columns do not print alike on both sides."""
    found = []
    for index, (kind, _) in enumerate(types):
        text = f"SELECT c, t{index}::text FROM {{}} ORDER BY c"
        source = place.source.execute(text.format("t"))
        target = place.target.execute(text.format("raw.t"))
        found += [f"{kind}: {a} became {b}" for a, b in zip(source, target, strict=True) if a != b]
    return found


def target_types(place: Place) -> dict[str, str]:
    return dict(
        place.target.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'raw.t'::regclass AND attnum > 0"
        )
    )


@pytest.mark.parametrize("databases", [1, 2])
def test_every_type_passes_through_exactly(make_project: MakeProject, databases: int) -> None:
    project, place = make_project(SYNC, databases=databases)
    rows = fill(place, EXACT)
    assert project.run("t").rows == rows
    assert differences(place, EXACT) == []
    # What was loaded is recognised as the same, so that nothing is written again.
    project.watermark("t").rewind(reason="again")
    assert project.run("t").outcome.changed == 0


def test_the_target_has_the_source_s_types(make_project: MakeProject) -> None:
    project, place = make_project(SYNC)
    fill(place, EXACT)
    project.run("t")
    found = target_types(place)
    kept = [kind for kind, _ in EXACT if kind not in ("positive",)]
    expected = place.source.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0"
    )
    wrong = [pair for pair in expected if found[pair[0]] != pair[1]]
    # A domain becomes the type it stands for.
    assert [kind for _, kind in wrong] == ["positive"]
    assert len(kept) == len(EXACT) - 1


def test_a_type_the_destination_does_not_have_arrives_as_text(make_project: MakeProject) -> None:
    project, place = make_project(SYNC, databases=2)
    own = {"mood", "mood[]", "pair", "spread"}
    types = [pair for pair in EXACT if pair[0] in own]
    fill(place, types)
    project.run("t")
    assert differences(place, types) == []
    assert set(target_types(place).values()) == {"integer", "text"}


PIPELINE = """
import tidegate as tg
from pyspark.sql import functions as F

@tg.sync(source="shop:public.t", target="warehouse:raw.t", cursor="c")
def t(df):
    return {}
"""

SPARKLING = [
    ("boolean", ["true", "false"]),
    ("smallint", ["-32768", "32767"]),
    ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    ("numeric", ["NaN", "1.10", "9" * 100]),
    ("numeric(38,10)", ["1234567890123456789012345678.0123456789", "-0.0000000001"]),
    ("numeric(2,4)", ["0.0012"]),
    ("real", ["NaN", "Infinity", "1.1"]),
    ("double precision", ["NaN", "-Infinity", "0.1"]),
    ("text", ["", "ü€漢字🎉", "a\\b'\"\t\n"]),
    ("varchar(7)", ["ü€漢字🎉ab"]),
    ("char(5)", ["a"]),
    ("bytea", ["\\x", "\\x00ff5c27"]),
    ("date", ["0044-03-15 BC", "4713-01-01 BC", "5874897-12-31", "1582-10-10"]),
    ("timestamp", ["2026-03-29 02:30:00.000001", "0044-03-15 12:00 BC", "20000-01-01"]),
    ("timestamptz", ["2026-03-29 02:30+01", "4713-01-01 00:00:00+00 BC", "20000-01-01 00:00+00"]),
    ("timestamptz(3)", ["2026-03-29 02:30:00.123+00"]),
    ("interval", ["1 year 2 mons -3 days 04:05:06.789"]),
    ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("json", ['{"b": 1,  "a": [1.50, null]}']),
    ("jsonb", ['{"b": 1, "a": [1.50, null]}']),
    ("int[]", ["{}", "{1,NULL,3}"]),
    ("text[]", ['{"a,b",NULL,"NULL"}']),
    ("mood", ["happy"]),
    ("int4range", ["[1,10)"]),
    ("inet", ["192.168.0.1/24"]),
    ("time", ["12:34:56.789012"]),
]


def test_types_survive_a_transformation(make_project: MakeProject) -> None:
    project, place = make_project(pipelines=PIPELINE.format("df"))
    rows = fill(place, SPARKLING)
    assert project.run("t").rows == rows
    assert differences(place, SPARKLING) == []


def test_rows_that_did_not_change_are_recognised_after_a_transformation(
    make_project: MakeProject,
) -> None:
    project, place = make_project(pipelines=PIPELINE.format("df"))
    fill(place, SPARKLING)
    project.run("t")
    project.watermark("t").rewind(reason="again")
    assert project.run("t").outcome.changed == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamptz", "infinity"),
        ("timestamptz", "-infinity"),
        ("timestamp", "infinity"),
        ("timestamp", "294276-12-31 23:59:59.999999"),
        ("date", "infinity"),
        ("date", "-infinity"),
        ("numeric(10,2)", "NaN"),
    ],
)
def test_a_value_that_spark_has_no_equal_of_is_refused_by_column(
    make_project: MakeProject, kind: str, value: str
) -> None:
    project, place = make_project(pipelines=PIPELINE.format("df.where('true')"))
    fill(place, [(kind, [value])])
    with pytest.raises(SourceError, match=r"^column t0 holds") as caught:
        project.run("t")
    assert "read a view that casts the column or leaves it out" in (caught.value.hint or "")
    assert project.watermark("t").value is None


def test_a_transformation_filters_adds_and_changes_types(make_project: MakeProject) -> None:
    body = (
        "(df.where('t0 > 1').withColumn('twice', F.col('t0') * 2)"
        ".withColumn('t1', F.upper('t1')).withColumn('day', F.to_date('t2')).drop('t2'))"
    )
    project, place = make_project(pipelines=PIPELINE.format(body), databases=2)
    fill(
        place,
        [
            ("int", ["1", "2", "3"]),
            ("text", ["a", "b", "c"]),
            ("timestamptz", ["2026-01-01 00:00+00"] * 3),
        ],
    )
    assert project.run("t").rows == 2
    assert place.target.execute("SELECT c, t0, t1, twice, day::text FROM raw.t ORDER BY c") == [
        (1, 2, "B", 4, "2026-01-01"),
        (2, 3, "C", 6, "2026-01-01"),
    ]
    assert target_types(place)["day"] == "date"
    assert project.run("t").found_nothing


def test_a_transformation_that_makes_text_too_long_is_refused_not_cut(
    make_project: MakeProject,
) -> None:
    body = "df.withColumn('t0', F.concat('t0', F.lit(' and more')))"
    project, place = make_project(pipelines=PIPELINE.format(body))
    fill(place, [("varchar(5)", ["abc"])])
    with pytest.raises(LoadError, match="value too long"):
        project.run("t")
    assert place.target.execute("SELECT * FROM raw.t") == []
    assert project.watermark("t").value is None


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("df.nothing", TransformError, "of sync t failed: PySparkAttributeError"),
        ("[1]", TransformError, "returned list, not a DataFrame"),
        ("df.drop('c')", DeclarationError, "drops the key column c"),
        (
            "df.withColumn('m', F.create_map('c', 'c'))",
            DeclarationError,
            "column m .* map<int,int>",
        ),
        ("df.select('*', 'c')", DeclarationError, "has column c twice"),
        (
            "df.withColumn('x', F.raise_error('out of reach').cast('int'))",
            TransformError,
            "out of reach",
        ),
    ],
)
def test_a_transformation_that_goes_wrong_is_told_by_name(
    make_project: MakeProject, body: str, error: type[Exception], message: str
) -> None:
    project, place = make_project(pipelines=PIPELINE.format(body))
    fill(place, [("int", ["1"])])
    with pytest.raises(error, match=message):
        project.run("t")
    assert place.target.value("SELECT count(*) FROM tidegate.table_updates") == 0
    assert place.target.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'stg\\_%'") == 0
