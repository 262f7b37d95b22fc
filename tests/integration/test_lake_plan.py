"""`plan`, `status` and `adopt` of a sync into a lake: all without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

import forked
from integration.commands import BUSY, DONE, USAGE, Done
from integration.conftest import MakePlace, Place
from integration.filled_lakes import (
    COLUMNS,
    ORDERS,
    RELATION,
    fill_table,
    held,
    lake_place,
    make_table,
    orders,
    schema_of,
)
from integration.here import tidegate
from integration.orders import CREATE, FILL, contents, plan_all, plan_one
from tidegate.admin import adopted_table
from tidegate.core.relation import Relation

FOURTH = "2026-01-01 00:04:00+00"
FIFTH = "2026-01-01 00:05:00+00"
BRANCH = "`lake`.`raw`.`orders`.`branch_tidegate_<attempt>`"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    return place


def test_a_table_that_is_not_there_is_planned_with_its_columns_in_sparks_types(
    place: Place,
) -> None:
    done = tidegate(place.folder, "status", "--json")
    assert done.code == DONE
    (status,) = done.document["syncs"]
    told = (status["state"], status["target"], status["lag"]["rows"], status["unreachable"])
    assert told == ("never ran", "lake:raw.orders", 10, [])
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
    with held(place):
        assert plan_one(place.open()).lock.free is False
        (status,) = tidegate(place.folder, "status", "--json").document["syncs"]
        assert status["lock"] == {**status["lock"], "resource": found.lock.resource, "free": False}
    place.source.execute(
        "ALTER TABLE orders ADD doc jsonb, ADD token uuid, ADD span interval,"
        " ADD loose numeric, ADD huge numeric(60,2), ADD label varchar(20), ADD small smallint"
    )
    (text,) = [one for one in plan_one(place.open()).warnings if "no equal type" in one]
    assert text.endswith(
        "arrive as string: doc (jsonb), token (uuid), span (interval), loose (numeric), "
        "huge (numeric(60,2))"
    )


def test_a_filled_table_is_planned_with_the_merge_and_the_way_to_adopt_it(place: Place) -> None:
    table = fill_table(place, orders(range(1, 6)))
    found = plan_one(place.open())
    assert (found.target_table.exists, found.target_table.rows_present) == (True, True)
    assert found.target_table.create == found.target_table.alter == ()
    assert found.publish is not None
    assert found.publish.startswith(f"MERGE INTO {BRANCH} t USING `tidegate_staged` s ON")
    assert any("to go on without that: tidegate adopt orders" in one for one in found.warnings)
    # Rows are read in the types that become Parquet, decimals as their text.
    assert '"total"::text AS "total"' in found.statements[0]

    # Rows that are recorded but gone are noticed, and so is metadata that is lost.
    assert tidegate(place.folder, "adopt", "orders", "--from-target-max").code == DONE
    assert plan_one(place.open()).watermark == "2026-01-01 00:04:00+00"
    table.delete()
    told = tidegate(place.folder, "plan", "orders")
    assert told.code == USAGE
    assert "raw.orders is empty, but 5 rows are recorded in it" in told.err
    assert "tidegate run orders --full-refresh" in told.err
    place.control.execute(
        f"UPDATE {schema_of(place)}.iceberg_tables"
        " SET metadata_location = 'file:///nowhere/v1.metadata.json'"
    )
    told = tidegate(place.folder, "plan", "orders")
    assert told.code == USAGE
    assert "lake:raw.orders has lost its metadata: file:///nowhere/v1.metadata.json" in told.err
    assert "restore the warehouse folder" in told.err


@pytest.mark.chaos
def test_neither_plan_nor_status_imports_pyspark(place: Place) -> None:
    fill_table(place, orders(range(1, 6)))
    code = (
        "import sys; from tidegate.cli.main import app\n"
        "for command in ('plan', 'status'):\n"
        "    app([command, '--json', '-C', sys.argv[1]], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(place.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_columns_that_differ_are_planned_as_a_run_would_change_them_or_refused(
    make_place: MakePlace,
) -> None:
    frozen = {**ORDERS, "name": "frozen", "target": "lake:raw.frozen", "drift": "freeze"}
    other = {**ORDERS, "name": "other", "target": "lake:raw.other"}
    place = lake_place(make_place, ORDERS, frozen, other)
    place.source.execute(*CREATE, FILL)
    make_table(place, pa.schema([("id", pa.int64())]), Relation("raw", "frozen"))
    make_table(place, pa.schema([("id", pa.string())]), Relation("raw", "other"))
    make_table(place, pa.schema([("id", pa.int32()), ("updated_at", pa.timestamp("us", tz="UTC"))]))
    planned = plan_all(place.open())
    assert [one.target_table.alter for one in planned.plans] == [
        (
            "ALTER TABLE `lake`.`raw`.`orders` ADD COLUMNS (`total` decimal(10,2))",
            "ALTER TABLE `lake`.`raw`.`orders` ALTER COLUMN `id` TYPE bigint",
        )
    ]
    found = {one.sync: one for one in planned.refusals}
    assert found["frozen"].kind == found["other"].kind == "DriftRefused"
    assert "(total, updated_at), and raw.frozen is frozen" in found["frozen"].message
    assert "column id of raw.other is string, and the rows bring bigint" in found["other"].message
    done = tidegate(place.folder, "plan", "orders")
    assert "exists; before the next load it is changed by" in done.out


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


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "versions": ({"mode": "append", "key": ["id"]}, "append with a key keeps every version"),
    "before": ({"before_sql": "SELECT 1"}, "before_sql cannot be part of a commit to a lake"),
    "after": ({"after_sql": "SELECT 1"}, "after_sql cannot be part of a commit to a lake"),
    "column": ({"partition_by": ["day(updatd_at)"]}, "names updatd_at, which is not loaded"),
    "week": ({"partition_by": ["week(updated_at)"]}, "is not a way to divide a table"),
}


def test_what_a_lake_cannot_do_is_refused_alike_by_plan_and_run(make_place: MakePlace) -> None:
    for name, (change, words) in REFUSED.items():
        place = lake_place(make_place, {**ORDERS, **change}, databases=1)
        place.source.execute(*CREATE)
        commands = [["plan"], ["run", "orders"], ["run", "orders", "--queue"]]
        for command in commands if name == "versions" else commands[:2]:
            done = tidegate(place.folder, *command)
            assert (done.code, words in done.err) == (USAGE, True), done
        made = place.control.value("SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%lake%'")
        assert made == 0


def adopt(place: Place, *arguments: str, sync: str = "orders") -> Done:
    return tidegate(place.folder, "adopt", sync, *arguments)


def state(place: Place) -> list[tuple[object, ...]]:
    return place.control.execute(
        f"SELECT high_watermark, version, rows_synced FROM {schema_of(place)}.etl_state"
    )


def refused(place: Place, *arguments: str, sync: str = "orders") -> str:
    before = contents(place.source, place.control)
    done = adopt(place, *(arguments or ("--from-target-max",)), sync=sync)
    assert done.code == USAGE, done
    assert contents(place.source, place.control) == before
    return done.err


def test_from_the_highest_value_it_goes_on_below_it(place: Place) -> None:
    missing = "it does not exist; tidegate run orders makes and fills it"
    assert missing in refused(place)
    table = make_table(place)
    assert "it is empty; tidegate run orders fills it" in refused(place)
    # The highest is found over many files, and without deleted rows.
    table.append(orders([3, 9, 4]))
    table.append(orders([5, 8, 1, 2]))
    table.delete("id in (9, 8)")
    with held(place):
        done = adopt(place, "--from-target-max")
        assert (done.code, "lake:raw.orders is held by" in done.err) == (BUSY, True)
    for dry in (["--dry-run"], []):
        assert state(place) == []
        done = adopt(place, "--from-target-max", "--json", *dry)
        assert done.code == DONE, done
        assert (done.document["target_max"], done.document["watermark"]) == (FIFTH, FOURTH)
        assert (done.document["rows"], done.document["rows_above"]) == (5, 6)
    assert state(place) == [(FOURTH, 1, 5)]
    (move,) = place.open().watermark("orders").moves()
    assert move.reason == f"adopted from the target's highest updated_at, {FIFTH}"
    (found,) = tidegate(place.folder, "status", "--json").document["syncs"]
    assert (found["state"], found["watermark"]) == ("adopted", FOURTH)
    assert "has a watermark already" in refused(place)


def test_killed_it_is_recorded_whole_or_not_at_all(place: Place) -> None:
    fill_table(place, orders(range(1, 6)))
    for point, kept in (("adopt.moved", []), ("adopt.committed", [(FOURTH, 1, 5)])):
        armed = {**os.environ, "TIDEGATE_FAILPOINT": f"{point}=kill"}
        done = forked.run(
            "adopt", "orders", "--from-target-max", folder=place.folder, environment=armed
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert state(place) == kept, point
    assert "has a watermark already" in refused(place)


def test_each_kind_of_cursor_has_its_highest_value(make_place: MakePlace) -> None:
    kinds: dict[str, tuple[pa.DataType, str, str | None]] = {
        "bigint": (pa.int64(), "5", "4"),
        "int": (pa.int32(), "5", "4"),
        "date": (pa.date32(), "1970-01-06", "1970-01-05"),
        "timestamp": (pa.timestamp("us"), "1970-01-01 00:00:00.000005", None),
    }
    syncs = [
        {
            "name": kind,
            "source": f"shop:public.by_{kind}",
            "target": f"lake:raw.by_{kind}",
            "cursor": "moved",
            "cursor_timezone": "UTC" if kind == "timestamp" else None,
        }
        for kind in kinds
    ]
    place = lake_place(make_place, *syncs)
    for kind, (arrow, highest, below) in kinds.items():
        place.source.execute(
            f"CREATE TABLE by_{kind} (id bigint PRIMARY KEY, moved {kind} NOT NULL)"
        )
        plain = pa.array(range(1, 6), pa.int64() if arrow.bit_width == 64 else pa.int32())
        schema = pa.schema([("id", pa.int64()), ("moved", arrow)])
        rows = pa.table([pa.array(range(5)), plain.cast(arrow)], schema=schema)
        fill_table(place, rows, Relation("raw", f"by_{kind}"))
        if kind in ("bigint", "int"):
            # The horizon of an integer is what was seen of it.
            place.source.execute(f"INSERT INTO by_{kind} VALUES (9, 9)")
        done = adopt(place, "--from-target-max", "--dry-run", "--json", sync=kind)
        assert done.code == DONE, done
        assert done.document["target_max"] == highest
        assert below is None or done.document["watermark"] == below


def test_what_keeps_a_table_from_being_adopted_is_told_all_at_once(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {**ORDERS, "name": "short", "target": "lake:raw.short"}
    uncursed = {**short, "name": "without", "target": "lake:raw.without"}
    place = lake_place(make_place, ORDERS, short, {**uncursed, "exclude_columns": ["updated_at"]})
    place.source.execute(*CREATE, FILL)
    table = fill_table(place, orders([1, 2, 2, 3]), RELATION)
    with monkeypatch.context() as small:
        small.setattr(adopted_table, "MOST_KEYS", 3)
        found = place.open().adopt("orders", from_target_max=True, dry_run=True)
    (warning,) = found.warnings
    assert "whether (id) is unique among the 4 rows was not looked at" in warning
    table.append(orders([3, 3]))
    rows = orders([4, 5])
    table.append(rows.set_column(0, "id", pa.array([None, None], pa.int64())))
    words = refused(place)
    assert "2 of its rows have no value in the key (id)" in words
    assert "2 keys (id) occur more than once, such as (2), 2 times" in words
    assert "delete the 3 rows too many" in words

    for name, left_out in (("short", "total"), ("without", "updated_at")):
        columns = pa.schema([field for field in COLUMNS if field.name != left_out])
        fill_table(place, orders([1, 2], columns), Relation("raw", name))
    words = refused(place, sync="short")
    assert "it has no column total: ALTER TABLE `lake`.`raw`.`short` ADD COLUMNS" in words
    assert "--at VALUE" in refused(place, sync="without")
