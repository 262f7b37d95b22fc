"""`plan` and `status` of a sync into a lake: what a run would do, told without Spark."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from integration.commands import DONE, USAGE, tidegate
from integration.conftest import MakePlace, Place
from integration.filled_lakes import ORDERS, fill_table, lake_place, make_table, orders, schema_of
from integration.orders import CREATE, FILL, contents, plan_all, plan_one
from tidegate.model.relation import Endpoint, Relation
from tidegate.runtime.hold import hold_table

BRANCH = "`lake`.`raw`.`orders`.`branch_tidegate_<attempt>`"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    return place


def test_a_table_that_is_not_there_is_planned_with_its_columns_in_sparks_types(
    place: Place,
) -> None:
    before = contents(place.source, place.target, place.control)
    found = plan_one(place.open())
    assert contents(place.source, place.target, place.control) == before
    table = found.target_table
    assert (table.exists, table.rows_present) == (False, False)
    assert table.create == ("`id` bigint", "`total` decimal(10,2)", "`updated_at` timestamp")
    assert found.rows == 10
    assert found.publish is not None
    assert found.publish.startswith(f"append the staged files to {BRANCH} as they are; CALL ")
    assert "system.fast_forward(table => '`raw`.`orders`', branch => 'main'" in found.publish
    assert found.lock.resource.startswith("iceberg:")
    assert found.lock.resource.endswith("/tidegate_lake_shop_lake/raw.orders")
    assert found.lock.free


def test_a_filled_table_is_planned_with_the_merge_and_the_way_to_adopt_it(place: Place) -> None:
    fill_table(place, orders(range(1, 6)))
    found = plan_one(place.open())
    assert (found.target_table.exists, found.target_table.rows_present) == (True, True)
    assert found.target_table.create == found.target_table.alter == ()
    assert found.publish is not None
    assert found.publish.startswith(f"MERGE INTO {BRANCH} t USING `tidegate_staged` s ON")
    assert any("to go on without that: tidegate adopt orders" in one for one in found.warnings)
    # Rows are read in the types that become Parquet, decimals as their text.
    assert '"total"::text AS "total"' in found.statements[0]


def test_new_and_wider_columns_are_planned_as_the_changes_that_a_run_would_make(
    place: Place,
) -> None:
    narrow = pa.schema([("id", pa.int32()), ("updated_at", pa.timestamp("us", tz="UTC"))])
    make_table(place, narrow)
    found = plan_one(place.open())
    assert found.target_table.alter == (
        "ALTER TABLE `lake`.`raw`.`orders` ADD COLUMNS (`total` decimal(10,2))",
        "ALTER TABLE `lake`.`raw`.`orders` ALTER COLUMN `id` TYPE bigint",
    )
    done = tidegate(place.folder, "plan", "orders")
    assert "exists; before the next load it is changed by" in done.out


def test_a_frozen_table_and_one_of_other_types_are_refused_as_a_run_would(
    make_place: MakePlace,
) -> None:
    frozen = {**ORDERS, "name": "frozen", "target": "lake:raw.frozen", "drift": "freeze"}
    place = lake_place(make_place, ORDERS, frozen)
    place.source.execute(*CREATE, FILL)
    make_table(place, pa.schema([("id", pa.int64())]), Relation("raw", "frozen"))
    make_table(place, pa.schema([("id", pa.string())]))
    found = {one.sync: one for one in plan_all(place.open()).refusals}
    assert found["frozen"].kind == found["orders"].kind == "DriftRefused"
    assert "(total, updated_at), and raw.frozen is frozen" in found["frozen"].message
    assert "column id of raw.orders is string, and the rows bring bigint" in found["orders"].message


def test_columns_without_an_equal_type_are_named(place: Place) -> None:
    place.source.execute(
        "ALTER TABLE orders ADD doc jsonb, ADD token uuid, ADD span interval,"
        " ADD loose numeric, ADD huge numeric(60,2), ADD label varchar(20), ADD small smallint"
    )
    (text,) = [one for one in plan_one(place.open()).warnings if "no equal type" in one]
    assert text.endswith(
        "arrive as string: doc (jsonb), token (uuid), span (interval), loose (numeric), "
        "huge (numeric(60,2))"
    )


def test_rows_that_are_recorded_but_gone_are_noticed(place: Place) -> None:
    table = fill_table(place, orders(range(1, 6)))
    assert tidegate(place.folder, "adopt", "orders", "--from-target-max").code == DONE
    assert plan_one(place.open()).watermark == "2026-01-01 00:04:00+00"
    table.delete()
    done = tidegate(place.folder, "plan", "orders")
    assert done.code == USAGE
    assert "raw.orders is empty, but 5 rows are recorded in it" in done.err
    assert "tidegate run orders --full-refresh" in done.err


def test_metadata_that_is_lost_is_told_with_its_place(place: Place) -> None:
    fill_table(place, orders([1]))
    place.control.execute(
        f"UPDATE {schema_of(place)}.iceberg_tables"
        " SET metadata_location = 'file:///nowhere/v1.metadata.json'"
    )
    done = tidegate(place.folder, "plan", "orders")
    assert done.code == USAGE
    assert "lake:raw.orders has lost its metadata: file:///nowhere/v1.metadata.json" in done.err
    assert "restore the warehouse folder" in done.err


def test_neither_plan_nor_status_imports_pyspark(place: Place) -> None:
    fill_table(place, orders(range(1, 6)))
    code = (
        "import sys; from tidegate.cli.main import app\n"
        "for command in ('plan', 'status'):\n"
        "    app([command, '--json', '-C', sys.argv[1]], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place.folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_status_says_how_a_sync_into_a_lake_stands(place: Place) -> None:
    done = tidegate(place.folder, "status", "--json")
    assert done.code == DONE
    (found,) = done.document["syncs"]
    assert (found["state"], found["target"], found["lag"]["rows"]) == (
        "never ran",
        "lake:raw.orders",
        10,
    )
    assert found["unreachable"] == []
    place.open().context.control_id()
    (found,) = tidegate(place.folder, "status", "--json").document["syncs"]
    assert found["lock"]["resource"].endswith("/tidegate_lake_shop_lake/raw.orders")


def test_a_table_that_a_job_holds_is_shown_as_held(place: Place) -> None:
    with hold_table(
        place.open().context,
        Endpoint.parse("lake:raw.orders"),
        {"kind": "sync", "name": "orders"},
        result={},
        command="tidegate test",
    ):
        assert plan_one(place.open()).lock.free is False
        (found,) = tidegate(place.folder, "status", "--json").document["syncs"]
        assert found["lock"]["free"] is False


def test_the_layout_of_a_table_is_part_of_what_makes_it(make_place: MakePlace) -> None:
    layout = {"partition_by": ["day(updated_at)", "bucket(4, id)"], "sort_by": ["total desc"]}
    place = lake_place(make_place, {**ORDERS, **layout})
    place.source.execute(*CREATE, FILL)
    found = plan_one(place.open())
    assert found.target_table.create[-2:] == (
        "PARTITIONED BY (days(`updated_at`), bucket(4, `id`))",
        "WRITE ORDERED BY (`total` DESC)",
    )
    # Files cannot be added as they are to a table that is divided.
    assert found.publish is not None
    assert found.publish.startswith(f"INSERT INTO {BRANCH} (`id`, `total`, `updated_at`) SELECT ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "append", "key": ["id"]}, "append with a key keeps every version of a row"),
        ({"before_sql": "SELECT 1"}, "before_sql cannot be part of a commit to a lake"),
        ({"after_sql": "SELECT 1"}, "after_sql cannot be part of a commit to a lake"),
        ({"partition_by": ["day(updatd_at)"]}, "names updatd_at, which is not loaded"),
        ({"partition_by": ["week(updated_at)"]}, "is not a way to divide a table"),
    ],
)
def test_what_a_lake_cannot_do_is_refused_alike_by_plan_and_run(
    make_place: MakePlace, change: dict[str, object], words: str
) -> None:
    place = lake_place(make_place, {**ORDERS, **change})
    place.source.execute(*CREATE, FILL)
    for command in (["plan"], ["run", "orders"], ["run", "orders", "--queue"]):
        done = tidegate(place.folder, *command)
        assert done.code == USAGE, done
        assert words in done.err
    held = place.control.value("SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%lake%'")
    assert held == 0
