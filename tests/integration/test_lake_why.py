"""`why` of a row in a lake: both rows, the commit that wrote it, and every reason there is."""

from __future__ import annotations

import json

import pytest
from psycopg import sql
from typer.testing import CliRunner

from integration.conftest import MakePlace
from integration.lakes import CREATE, FILL, ORDERS, change, make_lake_project
from integration.orders import open_transaction
from tidegate.cli.main import app
from tidegate.errors import UsageError
from tidegate.lake.metadata import read_table
from tidegate.model.explanation import ColumnDifference, Reason
from tidegate.model.lake import LakeTable
from tidegate.model.relation import Relation
from tidegate.project import Project
from tidegate.spark.session import SparkSessions


def lake(project: Project) -> LakeTable:
    table = read_table(project.context.catalog("lake"), Relation("raw", "orders"))
    assert table is not None
    return table


def test_every_reason_for_a_row_of_a_lake(make_place: MakePlace, warm_spark: SparkSessions) -> None:
    project, place = make_lake_project(
        make_place, warm_spark, {**ORDERS, "where": "total < 1000", "batch_rows": 5}, databases=2
    )
    place.source.execute(CREATE, FILL, "INSERT INTO orders VALUES (12, 5000, 'x', '2026-01-01')")
    never = project.why("orders", id=1)
    assert (never.reason, never.snapshot) == (Reason.NOT_YET, None)
    project.run("orders")
    second, first, *_ = lake(project).ancestors()

    cold = place.open()
    found = cold.why("lake:raw.orders", id=7)
    assert cold.context.spark.started is False
    assert (found.reason, found.differences) == (Reason.EQUAL, ())
    assert found.source_row == found.target_row == {
        "id": "7",
        "total": "7.00",
        "note": "note 7",
        "updated_at": "2026-01-01 00:07:00+00",
    }  # fmt: skip
    # The row lies in a file, the file came with a commit, and the commit names its load.
    assert found.carrier is not None
    assert (found.carrier.update_id, found.carrier.is_certain) == (second.update_id, True)
    assert found.snapshot == second.snapshot_id
    assert f"written in snapshot {second.snapshot_id}" in " ".join(found.notes)
    earlier = project.why("orders", id=2).carrier
    assert earlier is not None
    assert earlier.update_id == first.update_id

    place.source.execute(
        "UPDATE orders SET total = 70, updated_at = now() WHERE id = 7",
        "UPDATE orders SET total = 80 WHERE id = 8",
        "INSERT INTO orders VALUES (20, 1, 'late', '2026-01-01 00:01:30+00')",
        "INSERT INTO orders VALUES (21, 1, 'new')",
        "DELETE FROM orders WHERE id = 9",
    )
    changed = project.why("orders", id=7)
    assert changed.reason is Reason.CHANGED
    assert ColumnDifference("total", "70.00", "7.00") in changed.differences
    assert project.why("orders", id=8).reason is Reason.CHANGED_UNSEEN
    assert project.why("orders", id=20).reason is Reason.LATE
    assert project.why("orders", id=21).reason is Reason.NOT_YET
    assert project.why("orders", id=9).reason is Reason.DELETED
    assert project.why("orders", id=12).reason is Reason.FILTERED
    assert project.why("orders", id=99).reason is Reason.UNKNOWN
    with open_transaction(place.source, "INSERT INTO orders VALUES (30, 1, 'open')"):
        place.source.execute("INSERT INTO orders VALUES (31, 1, 'held')")
        assert project.why("orders", id=31).reason is Reason.HELD_BACK

    change(
        project,
        "UPDATE lake.raw.orders SET note = 'edited' WHERE id = 3",
        "DELETE FROM lake.raw.orders WHERE id = 4",
        "INSERT INTO lake.raw.orders VALUES (50, 1, NULL, timestamp '2026-01-01 00:00:00Z')",
    )
    edited = project.why("orders", id=3)
    assert (edited.reason, edited.carrier) == (Reason.EDITED, None)
    assert edited.differences == (ColumnDifference("note", "note 3", "edited"),)
    removed = project.why("orders", id=4)
    assert (removed.reason, removed.target_row) == (Reason.LATE, None)
    assert f"last in snapshot {lake(project).main}" in " ".join(removed.notes)
    stranger = project.why("orders", id=50)
    assert (stranger.reason, stranger.source_row) == (Reason.EDITED, None)
    # What others have written around it does not take the load's name from a row.
    untouched = project.why("orders", id=2).carrier
    assert untouched is not None
    assert untouched.update_id == first.update_id

    answer = CliRunner().invoke(
        app, ["why", "lake:raw.orders", "id=3", "--project", str(place.folder)]
    )
    assert answer.exit_code == 0
    assert f"target (lake at snapshot {lake(project).main}): id=3" in answer.output
    document = CliRunner().invoke(
        app, ["why", "orders", "id=3", "--json", "--project", str(place.folder)]
    )
    assert json.loads(document.stdout)["reason"] == "changed in the target"
    with pytest.raises(UsageError, match="'x' is not a integer"):
        project.why("orders", id="x")

    change(project, "DROP TABLE lake.raw.orders")
    gone = project.why("orders", id=2)
    assert gone.target_row is None
    assert "lake:raw.orders does not exist any more" in gone.notes


KEYS = {
    "padded": ("char(5)", "ab"),
    "exact": ("numeric(20,4)", "12.5"),
    "free": ("numeric", "12.50"),
    "day": ("date", "2026-02-03"),
    "moment": ("timestamptz", "2026-02-03 04:05:06.789012+02"),
    "local": ("timestamp", "2026-02-03 04:05:06.789012"),
    "ids": ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    "bytes": ("bytea", "\\x00ff"),
    "flag": ("boolean", "t"),
    "real_": ("double precision", "0.1"),
    "words": ("text", 'it\'s a "key"'),
}


def test_a_key_of_any_types_is_found(make_place: MakePlace, warm_spark: SparkSessions) -> None:
    project, place = make_lake_project(make_place, warm_spark, ORDERS)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in KEYS.items())
    place.source.execute(
        f"CREATE TABLE orders ({columns}, updated_at timestamptz NOT NULL,"
        f" PRIMARY KEY ({', '.join(KEYS)}))",
        sql.SQL("INSERT INTO orders VALUES ({}, '2026-01-01')").format(
            sql.SQL(", ").join(sql.Literal(value) for _, value in KEYS.values())
        ),
    )
    project.run("orders")
    found = project.explain("orders", {name: value for name, (_, value) in KEYS.items()})
    assert (found.reason, found.differences) == (Reason.EQUAL, ())
    assert found.target_row is not None
    other = {name: value for name, (_, value) in KEYS.items()} | {"real_": "0.2"}
    assert project.explain("orders", other).reason is Reason.UNKNOWN


PIPELINES = """
import tidegate as tg


@tg.sync(source="shop:public.orders", target="lake:raw.orders", cursor="updated_at")
def orders(df):
    return df.where("total > 2").selectExpr("id", "total * 2 AS twice", "updated_at")
"""


def test_what_a_transformation_makes_of_one_row_is_compared_when_asked_for(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, pipelines=PIPELINES)
    place.source.execute(CREATE, FILL)
    project.run("orders")
    assert project.why("orders", id=5).reason is Reason.LOADED
    assert project.why("orders", id=1).reason is Reason.MAYBE_TRANSFORMED
    before = set((place.folder / ".tidegate" / "lake").rglob("*.parquet"))
    dropped = project.explain("orders", {"id": 1}, run_transform=True)
    assert dropped.reason is Reason.TRANSFORMED
    same = project.explain("orders", {"id": 5}, run_transform=True)
    assert (same.reason, same.differences) == (Reason.EQUAL, ())
    change(project, "UPDATE lake.raw.orders SET twice = 1 WHERE id = 6")
    edited = project.explain("orders", {"id": 6}, run_transform=True)
    assert edited.reason is Reason.EDITED
    assert [one.column for one in edited.differences] == ["twice"]
    left = set((place.folder / ".tidegate" / "lake").rglob("*/tidegate-*/*.parquet"))
    assert left <= before
