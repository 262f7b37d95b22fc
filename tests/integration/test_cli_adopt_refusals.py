"""`tidegate adopt` of what it cannot go on with: refused in one message, and nothing written."""

from __future__ import annotations

import os
from uuid import uuid4

import pytest

from integration.commands import BUSY, DONE, FAILED, tidegate
from integration.conftest import MakePlace, Place
from integration.filled import NINTH, ORDERS, adopt, filled_place, refused, state
from integration.left_behind import held
from tidegate.errors import FenceLost, UsageError
from tidegate.insight.adoption import examine, record_adoption
from tidegate.model.adoption import StartingPoint
from tidegate.runtime.hold import hold_table


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """A source of ten orders, nine of which are in the target; the tenth ties with the last two."""
    return filled_place(make_place)


def test_a_table_with_duplicates_is_refused_with_all_that_is_wrong(make_place: MakePlace) -> None:
    place = filled_place(make_place, unique=False)
    place.target.execute(
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id <= 2",
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id = 1 LIMIT 1",
        "INSERT INTO raw.orders (id) VALUES (NULL)",
        "ALTER TABLE raw.orders DROP COLUMN total",
    )
    words = refused(place, "--from-target-max")
    assert 'ALTER TABLE "raw"."orders" ADD COLUMN "total" numeric(10,2)' in words
    assert 'ALTER TABLE "raw"."orders" ADD UNIQUE ("id")' in words
    assert "2 keys (id) occur more than once, such as (1), 3 times" in words
    assert "delete the 3 rows too many" in words
    assert "1 of its rows have no value in the key (id)" in words


def test_what_the_refusal_says_about_duplicates_puts_them_right(make_place: MakePlace) -> None:
    place = filled_place(make_place, unique=False)
    place.target.execute(
        "INSERT INTO raw.orders VALUES (1, 99, '2026-01-01 00:06+00'), (2, 2, '2020-01-01')",
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id = 3",
    )
    words = refused(place, "--from-target-max")
    statement = words.split("newest of each: ")[1].splitlines()[0]
    place.target.execute(statement, 'ALTER TABLE "raw"."orders" ADD UNIQUE ("id")')
    rows = place.target.execute("SELECT id, total::int FROM raw.orders WHERE id <= 3 ORDER BY id")
    assert rows == [(1, 99), (2, 2), (3, 3)]
    assert adopt(place, "--from-target-max").code == DONE


def test_null_keys_behind_a_unique_index_are_found(make_place: MakePlace) -> None:
    place = filled_place(make_place, unique=False)
    place.target.execute(
        "ALTER TABLE raw.orders ADD UNIQUE (id)", "INSERT INTO raw.orders (id) VALUES (NULL)"
    )
    assert "1 of its rows have no value in the key (id)" in refused(place, "--from-target-max")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE raw.orders", "it does not exist; tidegate run orders makes and fills it"),
        ("TRUNCATE raw.orders", "it is empty; tidegate run orders fills it"),
        (
            "ALTER TABLE raw.orders RENAME TO o; CREATE VIEW raw.orders AS SELECT * FROM raw.o",
            "it is not a table",
        ),
        (
            "ALTER TABLE raw.orders ALTER total TYPE int",
            "its column total is integer, the rows have numeric(10,2)",
        ),
        ("ALTER TABLE raw.orders DROP COLUMN updated_at", "it has no column updated_at"),
    ],
)
def test_a_target_that_cannot_be_gone_on_with_is_refused(
    place: Place, statement: str, words: str
) -> None:
    place.target.execute(*statement.split("; "))
    assert words in refused(place, "--from-target-max")


def test_a_source_whose_key_is_not_unique_is_refused(make_place: MakePlace) -> None:
    place = filled_place(make_place, key="id")
    place.source.execute(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey", "INSERT INTO orders VALUES (4, 1)"
    )
    assert "is not unique: one occurs 2 times" in refused(place, "--at", "2026-01-01")


def test_a_target_without_a_single_cursor_value_has_no_highest(make_place: MakePlace) -> None:
    place = filled_place(make_place)
    place.target.execute(
        "ALTER TABLE raw.orders ALTER updated_at DROP NOT NULL",
        "UPDATE raw.orders SET updated_at = NULL",
    )
    assert "no row of the target has a value in updated_at" in refused(place, "--from-target-max")
    assert "none tells its updated_at" in refused(place)
    assert adopt(place, "--at", "2026-01-01 00:05+00").code == DONE


def test_an_infinite_value_is_no_place_to_go_on_from(place: Place) -> None:
    assert "infinity is no place" in refused(place, "--at", "infinity")
    place.target.execute("UPDATE raw.orders SET updated_at = 'infinity' WHERE id = 1")
    assert "infinity is no place" in refused(place, "--from-target-max")


def test_a_column_of_another_type_is_not_taken_for_the_cursor(make_place: MakePlace) -> None:
    place = filled_place(make_place, cursor="made_on")
    place.source.execute("ALTER TABLE orders ADD made_on date NOT NULL DEFAULT '2026-01-01'")
    place.target.execute("ALTER TABLE raw.orders ADD made_on timestamp DEFAULT '2026-01-01'")
    words = refused(place, "--from-target-max")
    assert "the target has no column made_on of type date" in words
    assert adopt(place, "--at", "2025-12-31").code == DONE


@pytest.mark.parametrize("value", ["yesterday noon or so", "", "12"])
def test_a_value_of_another_type_is_refused(place: Place, value: str) -> None:
    assert "is not a timestamp with time zone" in refused(place, "--at", value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--at", "2026-01-01", "--from-target-max"), "both given"),
        (("--at", "2026-01-01", "--back", "1h"), "--back goes with --from-target-max"),
        (("--from-target-max", "--back", "soon"), "is not a duration"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    place: Place, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(place, *arguments)


def test_a_sync_that_has_loaded_is_refused_with_the_ways_out(place: Place) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    words = refused(place, "--from-target-max")
    assert f"orders has a watermark already ({NINTH}, 9 rows)" in words
    for way in ("watermark set", "watermark rewind", "--full-refresh", "tidegate remove orders"):
        assert way in words
    assert tidegate(place.folder, "remove", "orders", "--yes").code == DONE
    assert adopt(place, "--from-target-max").code == DONE


def test_a_table_that_was_taken_since_it_was_looked_at_is_refused(place: Place) -> None:
    project = place.open()
    sync, context = project.sync("orders"), project.context
    found = examine(context, sync, StartingPoint(from_target_max=True))
    project.adopt("orders", at="2026-01-01")
    request = {"kind": "sync", "name": "orders"}
    with (
        pytest.raises(UsageError, match="has a watermark already"),
        hold_table(context, sync.target, request, result={}, command="test") as held_table,
    ):
        record_adoption(context, sync, found, held_table.fence)
    assert state(place) == [("2026-01-01 00:00:00+00", 1, 9, None)]


def test_an_attempt_that_was_replaced_records_nothing(place: Place) -> None:
    project = place.open()
    sync, context = project.sync("orders"), project.context
    found = examine(context, sync, StartingPoint(from_target_max=True))
    request = {"kind": "sync", "name": "orders"}
    with hold_table(context, sync.target, request, result={}, command="test") as held_table:
        place.target.execute("UPDATE tidegate.fences SET token = token + 1")
        with pytest.raises(FenceLost):
            record_adoption(context, sync, found, held_table.fence)
    assert state(place) == []


def test_a_table_that_another_sync_loads_is_refused_by_its_name(
    place: Place, make_place: MakePlace
) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    other = make_place(ORDERS, beside=place, name="other")
    assert "is loaded by shop.orders" in refused(other, "--from-target-max")


def test_a_table_of_another_control_plane_is_refused_until_taken_over(place: Place) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    assert tidegate(place.folder, "remove", "orders", "--yes").code == DONE
    foreign = uuid4()
    place.target.execute(f"INSERT INTO tidegate.fences VALUES ('raw.orders', '{foreign}', 9, 'x')")
    words = refused(place, "--from-target-max", code=FAILED)
    assert str(foreign) in words
    assert "tidegate adopt orders --take-over" in words
    assert adopt(place, "--from-target-max", "--take-over").code == DONE


def test_while_a_run_holds_the_table_it_is_refused_with_the_holder(place: Place) -> None:
    with held(place) as claim:
        done = adopt(place, "--from-target-max")
        assert done.code == BUSY
        assert str(claim.job_id) in done.err
        assert f"process {os.getpid()}" in done.err
    assert state(place) == []
