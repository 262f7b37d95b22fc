"""`tidegate adopt` of a lake's table that somebody else has filled, without Spark."""

from __future__ import annotations

import signal

import pyarrow as pa
import pytest

from forked import run
from integration.commands import BUSY, DONE, USAGE, Done, tidegate
from integration.conftest import MakePlace, Place
from integration.filled_lakes import (
    COLUMNS,
    ORDERS,
    fill_table,
    lake_place,
    make_table,
    orders,
    schema_of,
)
from integration.orders import CREATE, FILL, contents
from tidegate.insight import filled_lake
from tidegate.model.relation import Endpoint
from tidegate.runtime.hold import hold_table

FOURTH = "2026-01-01 00:04:00+00"
FIFTH = "2026-01-01 00:05:00+00"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    return place


def adopt(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "adopt", "orders", *arguments)


def state(place: Place) -> list[tuple[object, ...]]:
    return place.control.execute(
        f"SELECT high_watermark, version, rows_synced FROM {schema_of(place)}.etl_state"
    )


def refused(place: Place, *arguments: str, code: int = USAGE) -> str:
    before = contents(place.source, place.control)
    done = adopt(place, *arguments)
    assert done.code == code, done
    assert contents(place.source, place.control) == before
    return done.err


def test_from_the_highest_value_it_goes_on_below_it(place: Place) -> None:
    fill_table(place, orders(range(1, 6)))
    done = adopt(place, "--from-target-max", "--json")
    assert done.code == DONE, done
    assert done.document["target_max"] == FIFTH
    assert done.document["watermark"] == FOURTH
    assert (done.document["rows"], done.document["rows_above"]) == (5, 6)
    assert state(place) == [(FOURTH, 1, 5)]
    (move,) = place.open().watermark("orders").moves()
    assert move.reason == f"adopted from the target's highest updated_at, {FIFTH}"
    (found,) = tidegate(place.folder, "status", "--json").document["syncs"]
    assert (found["state"], found["watermark"]) == ("adopted", FOURTH)
    assert "has a watermark already" in refused(place, "--from-target-max")


def test_the_highest_is_found_over_many_files_and_without_deleted_rows(place: Place) -> None:
    table = fill_table(place, orders([3, 9, 4]))
    table.append(orders([7, 8, 1]))
    table.append(orders([5]))
    table.delete("id in (9, 8)")
    done = adopt(place, "--from-target-max", "--dry-run", "--json")
    assert done.code == DONE, done
    assert done.document["target_max"] == "2026-01-01 00:07:00+00"
    assert done.document["watermark"] == FIFTH
    assert done.document["rows"] == 5
    assert state(place) == []


@pytest.mark.parametrize(
    ("postgres", "arrow", "highest", "below"),
    [
        ("bigint", pa.int64(), "5", "4"),
        ("int", pa.int32(), "5", "4"),
        ("date", pa.date32(), "1970-01-06", "1970-01-05"),
        ("timestamp", pa.timestamp("us"), "1970-01-01 00:00:00.000005", None),
    ],
)
def test_each_kind_of_cursor_has_its_highest_value(
    make_place: MakePlace, postgres: str, arrow: pa.DataType, highest: str, below: str | None
) -> None:
    sync = {**ORDERS, "cursor": "moved", "cursor_timezone": "UTC"}
    if "timestamp" not in postgres:
        del sync["cursor_timezone"]
    place = lake_place(make_place, sync)
    place.source.execute(f"CREATE TABLE orders (id bigint PRIMARY KEY, moved {postgres} NOT NULL)")
    schema = pa.schema([("id", pa.int64()), ("moved", arrow)])
    moved = pa.array(range(1, 6), pa.int64() if arrow.bit_width == 64 else pa.int32()).cast(arrow)
    fill_table(place, pa.table([pa.array(range(5)), moved], schema=schema))
    if postgres in ("bigint", "int"):
        # The horizon of an integer is what was seen of it.
        place.source.execute("INSERT INTO orders VALUES (9, 9)")
    done = adopt(place, "--from-target-max", "--dry-run", "--json")
    assert done.code == DONE, done
    assert done.document["target_max"] == highest
    assert below is None or done.document["watermark"] == below


def test_a_value_given_by_a_person_is_taken(place: Place) -> None:
    fill_table(place, orders(range(1, 6)))
    assert adopt(place, "--at", "2026-01-01 00:05+00").code == DONE
    assert state(place) == [(FIFTH, 1, 5)]


def test_what_keeps_a_table_from_being_adopted_is_told_all_at_once(place: Place) -> None:
    assert "it does not exist; tidegate run orders makes and fills it" in refused(
        place, "--from-target-max"
    )
    make_table(place)
    assert "it is empty; tidegate run orders fills it" in refused(place, "--from-target-max")


def test_keys_that_are_missing_or_there_twice_are_counted(place: Place) -> None:
    table = fill_table(place, orders([1, 2, 2, 3]))
    table.append(orders([3, 3]))
    rows = orders([4, 5])
    table.append(rows.set_column(0, "id", pa.array([None, None], pa.int64())))
    words = refused(place, "--from-target-max")
    assert "2 of its rows have no value in the key (id)" in words
    assert "2 keys (id) occur more than once, such as (2), 2 times" in words
    assert "delete the 3 rows too many" in words


def test_columns_that_are_missing_or_of_another_type_are_named(place: Place) -> None:
    fill_table(place, orders([1, 2], pa.schema([COLUMNS.field("id"), COLUMNS.field("updated_at")])))
    words = refused(place, "--from-target-max")
    assert "it has no column total: ALTER TABLE `lake`.`raw`.`orders` ADD COLUMNS" in words


def test_more_keys_than_fit_into_memory_are_not_looked_at_and_that_is_said(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_table(place, orders([1, 2, 2, 3]))
    monkeypatch.setattr(filled_lake, "MOST_KEYS", 3)
    found = place.open().adopt("orders", from_target_max=True, dry_run=True)
    (warning,) = found.warnings
    assert "whether (id) is unique among the 4 rows was not looked at" in warning


def test_a_table_without_the_cursor_asks_for_a_value(make_place: MakePlace) -> None:
    place = lake_place(make_place, {**ORDERS, "exclude_columns": ["updated_at"]})
    place.source.execute(*CREATE, FILL)
    without = pa.schema([COLUMNS.field("id"), COLUMNS.field("total")])
    fill_table(place, orders([1, 2], without))
    assert "--at VALUE" in refused(place, "--from-target-max")


def test_while_a_load_holds_the_table_nobody_adopts_it(place: Place) -> None:
    fill_table(place, orders([1, 2]))
    with hold_table(
        place.open().context,
        Endpoint.parse("lake:raw.orders"),
        {"kind": "sync", "name": "orders"},
        result={},
        command="tidegate test",
    ):
        assert "lake:raw.orders is held by" in adopt(place, "--from-target-max").err
        assert adopt(place, "--from-target-max").code == BUSY


@pytest.mark.parametrize(
    ("point", "kept"), [("adopt.moved", []), ("adopt.committed", [(FOURTH, 1, 5)])]
)
def test_killed_it_is_recorded_whole_or_not_at_all(
    place: Place, point: str, kept: list[tuple[object, ...]]
) -> None:
    fill_table(place, orders(range(1, 6)))
    done = run(
        "adopt", "orders", "--from-target-max",
        folder=place.folder, environment={"TIDEGATE_FAILPOINT": f"{point}=kill"},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert state(place) == kept
    again = adopt(place, "--from-target-max")
    assert again.code == (USAGE if kept else DONE)
    assert state(place) == [(FOURTH, 1, 5)]
