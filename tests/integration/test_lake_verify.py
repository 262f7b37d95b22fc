"""`verify` of a sync into a lake: its rows at a snapshot, and the loaded part of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from integration.conftest import MakePlace, Place
from integration.lakes import CREATE, FILL, ORDERS, change, make_lake_project
from tidegate.cli.main import app
from tidegate.errors import DestinationError, TargetGone
from tidegate.lake.metadata import read_table
from tidegate.model.relation import Relation
from tidegate.model.verification import Difference, Verdict, Verification
from tidegate.pipeline.verify import verify_sync
from tidegate.project import Project
from tidegate.spark.session import SparkSessions


def verify(project: Project) -> Verification:
    return verify_sync(project.context, project.sync("orders"))


def verify_cold(place: Place) -> Verification:
    """Without a transformation Spark has no part in it."""
    project = place.open()
    found = verify(project)
    assert project.context.spark.started is False
    assert found.used_spark is False
    return found


def head(project: Project) -> int | None:
    table = read_table(project.context.catalog("lake"), Relation("raw", "orders"))
    assert table is not None
    return table.main


def difference(found: Verification) -> Difference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    return found.difference


def test_a_lake_is_compared_at_a_snapshot_and_its_damage_is_told_apart(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, ORDERS, databases=2)
    place.source.execute(CREATE, FILL)
    assert verify_cold(place).verdict is Verdict.NEVER_RAN
    project.run("orders")

    clean = verify_cold(place)
    assert (clean.verdict, clean.intact, clean.snapshot) == (Verdict.EQUAL, True, head(project))
    assert (clean.source_rows, clean.target_rows, clean.not_yet_loaded) == (10, 10, 0)

    # What is above the watermark is left out on both sides.
    place.source.execute(
        "UPDATE orders SET total = -1, updated_at = now() WHERE id <= 3",
        "INSERT INTO orders VALUES (11, 1)",
    )
    found = verify_cold(place)
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 7, 4)
    project.run("orders")
    assert verify_cold(place).source_rows == 11

    change(
        project,
        "DELETE FROM lake.raw.orders WHERE id IN (4, 5)",
        "UPDATE lake.raw.orders SET total = 99.00 WHERE id = 6",
        "INSERT INTO lake.raw.orders VALUES (70, 1, NULL, timestamp '2026-01-01 00:00:00Z')",
    )
    found = verify_cold(place)
    told = difference(found)
    assert (told.missing, told.extra, told.different, told.complete) == (2, 1, 1, True)
    assert (told.missing_keys, told.extra_keys) == (("(4)", "(5)"), ("(70)",))
    assert told.different_keys == ("(6)",)
    assert found.snapshot == head(project) != clean.snapshot
    assert "somebody else has committed to it since the last load" in " ".join(found.notes)

    told_by_command = CliRunner().invoke(app, ["verify", "--all", "--project", str(place.folder)])
    assert told_by_command.exit_code == 1
    assert f"lake at snapshot {found.snapshot}" in told_by_command.output
    assert "2 missing, 1 extra, 1 different of 11 rows" in told_by_command.output
    document = CliRunner().invoke(
        app, ["verify", "--all", "--json", "--project", str(place.folder)]
    )
    assert json.loads(document.stdout)[0]["snapshot"] == found.snapshot

    project.run("orders", full_refresh=True)
    assert verify_cold(place).verdict is Verdict.EQUAL

    # A new column that the lake has not followed, then a table that is gone.
    place.source.execute("ALTER TABLE orders ADD COLUMN colour text")
    with pytest.raises(DestinationError, match="column colour is new"):
        verify(project)
    place.source.execute("ALTER TABLE orders DROP COLUMN colour")
    change(project, "DROP TABLE lake.raw.orders")
    with pytest.raises(TargetGone, match="does not exist, but 11 rows are recorded"):
        verify(project)


TYPES = {
    "small": ("smallint", "-7", "32767"),
    "whole": ("bigint", "-9223372036854775808", "9223372036854775807"),
    "flag": ("boolean", "true", "false"),
    "single": ("real", "0.1", "'NaN'"),
    "double_": ("double precision", "1e-300", "'-Infinity'"),
    "exact": ("numeric(38,10)", "1234567890123456789012345678.0000000001", "-0.0000000001"),
    "free": ("numeric", "1.500", "'NaN'"),
    "fixed": ("char(6)", "'ab'", "' a'"),
    "words": ("text", "''", "E'quote \" comma , line\\n back\\\\ \\\\. ü€😀'"),
    "bytes": ("bytea", "''", "'\\x00ff22'"),
    "day": ("date", "'0044-03-15 BC'", "'9999-12-31'"),
    "moment": (
        "timestamptz",
        "'1582-10-04 23:59:59.999999+00'",
        "'0044-03-15 12:00:00.000001+00 BC'",
    ),
    "local": ("timestamp(3)", "'2999-12-31 23:59:59.999'", "'1900-01-01 00:00:00.001'"),
    "span": ("interval", "'1 mon 2 days 03:04:05.6'", "'-1 sec'"),
    "tree": ("jsonb", '\'{"b": 1, "a": [null]}\'', "'\"x\"'"),
    "ids": (
        "uuid",
        "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "gen_random_uuid()",
    ),
    "list": ("integer[]", "'{1,NULL,3}'", "'{}'"),
}


def test_every_type_is_compared_exactly_and_its_smallest_change_is_seen(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, ORDERS, databases=2)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items())
    place.source.execute(
        f"CREATE TABLE orders (id int, code char(4), updated_at timestamptz NOT NULL, {columns},"
        " PRIMARY KEY (id, code))",
        f"INSERT INTO orders VALUES"
        f" (1, 'a', '2026-01-01', {', '.join(t[1] for t in TYPES.values())}),"
        f" (2, 'b', '2026-01-02', {', '.join(t[2] for t in TYPES.values())}),"
        f" (3, 'c', '2026-01-03', {', '.join('NULL' for _ in TYPES)})",
    )
    project.run("orders")
    found = verify_cold(place)
    assert (found.verdict, found.target_rows) == (Verdict.EQUAL, 3)
    # A key that is padded in the source and not in the lake is left out on both sides.
    place.source.execute("UPDATE orders SET small = 1, updated_at = '2026-01-03 1:00' WHERE id = 3")
    found = verify_cold(place)
    assert (found.verdict, found.target_rows, found.not_yet_loaded) == (Verdict.EQUAL, 2, 1)

    edits = {
        "single": "CAST(0.10000001 AS float)",
        "exact": "exact + 0.0000000001",
        "words": "NULL",
        "bytes": "X'00'",
        "moment": "moment + INTERVAL '0.000001' SECOND",
        "fixed": "'ab    '",
    }
    place.source.execute(
        *(
            f"INSERT INTO orders SELECT {10 + place_}, 'd', '2026-01-04', {', '.join(TYPES)}"
            " FROM orders WHERE id = 1"
            for place_ in range(len(edits))
        )
    )
    project.run("orders")
    assert verify_cold(place).verdict is Verdict.EQUAL
    change(
        project,
        *(
            f"UPDATE lake.raw.orders SET {name} = {value} WHERE id = {10 + place_}"
            for place_, (name, value) in enumerate(edits.items())
        ),
    )
    told = difference(verify_cold(place))
    assert (told.missing, told.extra, told.different) == (0, 0, len(edits))


def test_a_load_that_is_in_and_not_recorded_counts_as_loaded(
    make_place: MakePlace, warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = make_lake_project(make_place, warm_spark, ORDERS)
    place.source.execute(CREATE, FILL)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (11, 1, NULL, '2026-02-01')")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("tidegate.destinations.lake_publishing.LakePublishing._record", die)
        with pytest.raises(KeyboardInterrupt):
            project.run("orders")
    found = verify_cold(place)
    assert (found.verdict, found.source_rows) == (Verdict.EQUAL, 11)
    assert "is in and not recorded yet" in " ".join(found.notes)


def test_versions_that_are_appended_and_tables_that_are_replaced(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(
        make_place,
        warm_spark,
        {**ORDERS, "name": "orders", "mode": "append"},
        {"source": "shop:public.orders", "target": "lake:raw.whole", "name": "whole",
         "mode": "replace"},
    )  # fmt: skip
    place.source.execute(CREATE, FILL)
    project.run("orders")
    project.run("whole")
    place.source.execute("UPDATE orders SET total = 5, updated_at = '2026-03-01' WHERE id = 1")
    project.run("orders")
    found = verify_cold(place)
    assert (found.verdict, found.source_rows, found.target_rows) == (Verdict.EQUAL, 10, 11)
    assert "1 more rows are there" in " ".join(found.notes)
    assert "rows have no key here" in " ".join(found.notes)
    change(project, "DELETE FROM lake.raw.orders WHERE id = 2")
    told = difference(verify_cold(place))
    assert (told.missing, told.extra) == (1, 0)
    assert told.missing_keys[0].startswith("(2,")

    whole = verify_sync(project.context, project.sync("whole"))
    assert (whole.verdict, whole.intact) == (Verdict.CHANGED, True)
    change(project, "DELETE FROM lake.raw.whole WHERE id = 2")
    whole = verify_sync(project.context, project.sync("whole"))
    assert (whole.verdict, whole.intact) == (Verdict.UNEQUAL, False)
    assert "somebody else has written there" in str(whole.hint)


PIPELINES = """
import tidegate as tg


@tg.sync(source="shop:public.orders", target="lake:raw.orders", cursor="updated_at")
def orders(df):
    return df.where("total > 2").selectExpr("id", "total * 2 AS twice", "updated_at")
"""


def test_what_a_transformation_makes_now_is_compared_and_nothing_of_it_stays(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, pipelines=PIPELINES)
    place.source.execute(CREATE, FILL)
    project.run("orders")
    files = data_files(place)
    place.source.execute("INSERT INTO orders VALUES (11, 11)")
    found = verify(project)
    assert (found.verdict, found.used_spark) == (Verdict.EQUAL, True)
    assert (found.source_rows, found.not_yet_loaded, found.snapshot) == (8, 1, head(project))
    change(
        project,
        "DELETE FROM lake.raw.orders WHERE id = 4",
        "UPDATE lake.raw.orders SET twice = 0 WHERE id = 5",
    )
    files_then = data_files(place)
    told = difference(verify(project))
    assert (told.missing_keys, told.different_keys, told.extra) == (("(4)",), ("(5)",), 0)
    assert data_files(place) == files_then >= files


def data_files(place: Place) -> set[Path]:
    return set((place.folder / ".tidegate" / "lake").rglob("*.parquet"))


def test_the_newest_row_of_a_key_is_the_one_that_spark_chose(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(
        make_place, warm_spark, {**ORDERS, "key": ["shop"], "duplicates": "newest"}
    )
    place.source.execute(
        "CREATE TABLE orders (shop int, note text, n double precision, updated_at timestamptz"
        " NOT NULL)",
        # Of one moment, so that the content decides: capitals, accents, and what has no value.
        "INSERT INTO orders SELECT s, n, v, '2026-01-01'"
        " FROM generate_series(1, 5) AS s,"
        " (VALUES ('a', 1::float8), ('Z', 2), ('é', 1), ('é', 'NaN'), (NULL, 9)) AS x(n, v)",
    )
    project.run("orders")
    found = verify_cold(place)
    assert (found.verdict, found.source_rows) == (Verdict.EQUAL, 5)
