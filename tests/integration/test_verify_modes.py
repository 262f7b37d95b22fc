"""`verify` in every mode: equal after a load, and each planted difference is found."""

from __future__ import annotations

from typing import Any

import pytest

from integration.commands import DONE, FAILED, tidegate
from integration.conftest import Place
from integration.without_spark import Make, add_checks, make, open_without_spark
from tidegate.errors import DriftRefused
from tidegate.model.verification import Difference, Verdict, Verification
from tidegate.pipeline import bags
from tidegate.pipeline.verify import verify_sync
from tidegate.project import Project

__all__ = ["make"]

TARGET = "warehouse:raw.orders"
BARE = {"source": "shop:public.orders", "target": TARGET}
ORDERS = {**BARE, "cursor": "updated_at"}
STAMP = "'2026-01-01'::timestamptz + {} * interval '1 minute'"
WAYS: dict[str, dict[str, Any]] = {
    "delete_insert": {**ORDERS, "mode": "delete_insert"},
    "replace": {**BARE, "mode": "replace"},
    "versions": {**ORDERS, "mode": "append", "key": "id", "lookback": "1 hour"},
    "columns": {**ORDERS, "columns": ["id", "name"]},
    "excluded": {**ORDERS, "exclude_columns": ["total"]},
    "where": {**ORDERS, "where": "total <> 3 -- not that one"},
    "query": {
        **ORDERS,
        "source": "shop",
        "query": "SELECT id, name || '!' AS name, updated_at FROM orders -- loud",
        "key": "id",
        "null_cursor": "raise",
    },
}


def seed(place: Place, *, key: bool = True) -> None:
    place.source.execute(
        f"CREATE TABLE orders (id bigint {'PRIMARY KEY' if key else ''}, name text,"
        " total numeric, updated_at timestamptz NOT NULL)",
        f"INSERT INTO orders SELECT n, 'n' || n, n, {STAMP.format('n')}"
        " FROM generate_series(1, 6) n",
    )


def verify(project: Project) -> Verification:
    return verify_sync(project.context, project.sync("orders"))


def difference(found: Verification) -> Difference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.intact is False
    assert found.difference is not None
    return found.difference


def counts(found: Verification) -> tuple[int, int, int]:
    wrong = difference(found)
    return wrong.missing, wrong.extra, wrong.different


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_load_is_equal_until_somebody_touches_the_target(make: Make, way: str) -> None:
    project, place = make(WAYS[way], databases=2)
    seed(place)
    project.run("orders")
    change = f"UPDATE orders SET name = 'x', updated_at = {STAMP.format(9)} WHERE id = 2"
    place.source.execute(change)
    project.run("orders")
    found = verify(project)
    assert (found.verdict, found.not_yet_loaded) == (Verdict.EQUAL, 0)
    assert found.source_rows == found.target_rows == (5 if way == "where" else 6)
    table = "raw.orders_raw" if way == "versions" else "raw.orders"
    place.target.execute(
        f"DELETE FROM {table} WHERE id = 1",
        f"UPDATE {table} SET name = 'edited' WHERE id = 4",
    )
    columns = "id, name" if way == "columns" else "id, name, updated_at"
    values = "99, 'mine'" + ("" if way == "columns" else ", now()")
    if way == "versions":
        columns, values = f"{columns}, update_id", f"{values}, 'mine'"
    place.target.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})")
    wrong = difference(verify(project))
    assert wrong.missing_keys == ("(1)",)
    assert wrong.extra_keys == ("(99)",)
    assert wrong.different_keys == ("(4)",)


def test_a_row_that_does_not_meet_where_any_more_is_extra_and_the_hint_says_why(
    make: Make,
) -> None:
    project, place = make({**ORDERS, "where": "total < 6"})
    seed(place)
    project.run("orders")
    place.source.execute("UPDATE orders SET total = 10, updated_at = now() WHERE id = 2")
    found = verify(project)
    assert difference(found).extra_keys == ("(2)",)
    assert "do not meet `where` any more" in str(found.hint)


def test_a_row_above_the_watermark_is_left_out_in_append_with_a_key(make: Make) -> None:
    project, place = make(WAYS["versions"], databases=2)
    seed(place)
    project.run("orders")
    place.source.execute(f"UPDATE orders SET updated_at = {STAMP.format(10)} WHERE id = 2")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 5, 1)


def test_a_key_that_occurs_twice_is_compared_by_its_newest_version(make: Make) -> None:
    project, place = make(WAYS["versions"], databases=2)
    seed(place, key=False)
    place.source.execute(f"INSERT INTO orders VALUES (2, 'newer', 2, {STAMP.format(7)})")
    project.run("orders")
    found = verify(project)
    assert (found.verdict, found.source_rows) == (Verdict.EQUAL, 6)
    place.target.execute("DELETE FROM raw.orders_raw WHERE name = 'newer'")
    assert difference(verify(project)).different_keys == ("(2)",)


def test_a_replaced_table_whose_source_changed_is_not_called_unequal(make: Make) -> None:
    project, place = make(WAYS["replace"], databases=2)
    seed(place)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 5", "UPDATE orders SET total = 0")
    found = verify(project)
    assert (found.verdict, found.intact) == (Verdict.CHANGED, True)
    assert "the target holds exactly what the last run loaded" in found.notes
    assert "tidegate run orders; then" in str(found.hint)
    done = tidegate(place.folder, "verify", "orders")
    assert done.code == DONE
    assert done.out.startswith("orders: changed since the last run\n  note: the target holds")
    project.run("orders")
    assert verify(project).verdict is Verdict.EQUAL


def test_when_source_and_target_of_a_replace_both_changed_that_is_found(make: Make) -> None:
    project, place = make(WAYS["replace"], databases=2)
    seed(place)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 5")
    place.target.execute("UPDATE raw.orders SET name = 'edited' WHERE id = 1")
    found = verify(project)
    assert counts(found) == (0, 1, 1)
    assert "is not what that run loaded" in str(found.hint)
    assert tidegate(place.folder, "verify", "orders").code == FAILED


def test_a_replace_whose_load_no_run_remembers_is_unequal_with_both_reasons(make: Make) -> None:
    project, place = make(WAYS["replace"], databases=2)
    seed(place)
    project.run("orders")
    place.control.execute("UPDATE tidegate_control.jobs SET result = '{}'")
    assert verify(project).verdict is Verdict.EQUAL
    place.source.execute("DELETE FROM orders WHERE id = 5")
    found = verify(project)
    assert counts(found) == (0, 1, 0)
    assert "or the source changed since the last run" in str(found.hint)


def test_a_replace_without_a_key_is_compared_as_a_bag(make: Make) -> None:
    project, place = make(WAYS["replace"], databases=2)
    seed(place, key=False)
    place.source.execute("INSERT INTO orders SELECT * FROM orders WHERE id <= 2")
    project.run("orders")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.target_rows) == (Verdict.EQUAL, 8, 8)
    place.target.execute(
        "DELETE FROM raw.orders WHERE ctid = (SELECT min(ctid) FROM raw.orders WHERE id = 1)",
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id = 5",
        "UPDATE raw.orders SET name = 'edited' WHERE id = 6",
    )
    found = verify(project)
    assert counts(found) == (2, 2, 0)
    assert [text[:6] for text in difference(found).missing_keys] == ["(1,n1,", "(6,n6,"]
    assert [text[:6] for text in difference(found).extra_keys] == ["(5,n5,", "(6,edi"]


def test_a_plain_append_must_hold_every_loaded_row_and_may_hold_older_ones(make: Make) -> None:
    project, place = make({**ORDERS, "mode": "append"}, databases=2)
    seed(place)
    place.source.execute(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "INSERT INTO orders SELECT * FROM orders WHERE id = 3",
    )
    project.run("orders")
    place.source.execute(
        f"UPDATE orders SET name = 'changed', updated_at = {STAMP.format(9)} WHERE id = 2",
        "DELETE FROM orders WHERE id = 5",
    )
    project.run("orders")
    place.source.execute(f"INSERT INTO orders VALUES (7, 'n7', 7, {STAMP.format(10)})")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.target_rows) == (Verdict.EQUAL, 6, 8)
    assert found.not_yet_loaded == 1
    assert "2 more rows are there: older versions, or rows deleted since" in found.notes
    place.target.execute(
        "DELETE FROM raw.orders WHERE ctid = (SELECT min(ctid) FROM raw.orders WHERE id = 3)",
        "UPDATE raw.orders SET name = 'edited' WHERE id = 6",
    )
    place.source.execute("UPDATE orders SET name = 'unseen' WHERE id = 4")
    found = verify(project)
    assert counts(found) == (3, 0, 0)
    assert [text[:5] for text in difference(found).missing_keys] == ["(3,n3", "(4,un", "(6,n6"]


def test_rows_that_no_load_of_an_append_put_in_are_extra(make: Make) -> None:
    """As often as in the source or more often: what was inserted twice is told by its number."""
    project, place = make({**ORDERS, "mode": "append"}, databases=2)
    seed(place, key=False)
    project.run("orders")
    place.source.execute(
        f"UPDATE orders SET updated_at = {STAMP.format(9)} WHERE id < 3",
        "DELETE FROM orders WHERE id = 4",
    )
    project.run("orders")
    assert verify(project).verdict is Verdict.EQUAL
    place.target.execute("INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id > 4")
    found = verify(project)
    assert counts(found) == (0, 2, 0)
    assert found.hint is not None
    assert "more rows are there than its loads put in" in found.hint
    # Moving the watermark by hand puts no row in or out; a refresh leaves what it loads.
    project.watermark("orders").set("2026-02-01", reason="test")
    assert counts(verify(project)) == (0, 2, 0)
    project.run("orders", full_refresh=True)
    assert verify(project).verdict is Verdict.EQUAL


def test_bags_larger_than_one_pass_are_compared_in_several(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = make({**ORDERS, "mode": "append"}, databases=2)
    seed(place, key=False)
    place.source.execute(
        f"INSERT INTO orders SELECT n, 'n', n, {STAMP.format('n')} FROM generate_series(7, 500) n"
    )
    project.run("orders")
    place.target.execute(
        "INSERT INTO raw.orders SELECT id, 'old', total, updated_at FROM raw.orders",
        "DELETE FROM raw.orders WHERE id IN (44, 480) AND name = 'n'",
    )
    monkeypatch.setattr(bags, "PASS_ROWS", 50)
    found = verify(project)
    assert counts(found) == (2, 498, 0)
    assert [text[:4] for text in difference(found).missing_keys] == ["(44,", "(480"]


@pytest.mark.parametrize("mode", ["merge", "delete_insert", "append", "replace"])
def test_rejected_keys_are_left_out_on_both_sides_and_counted(make: Make, mode: str) -> None:
    sync = {**(BARE if mode == "replace" else ORDERS), "mode": mode, "key": "id"}
    _, place = make(sync, databases=2)
    add_checks(place, no_four="total <> 4", named="name IS NOT NULL")
    project = open_without_spark(place)
    seed(place)
    project.run("orders")
    good = verify(project)
    assert (good.verdict, good.source_rows, good.rejected) == (Verdict.EQUAL, 5, 1)
    # One goes bad after it was loaded: the target keeps its last good version.
    place.source.execute(
        f"UPDATE orders SET name = NULL, updated_at = {STAMP.format(9)} WHERE id=2"
    )
    project.run("orders")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.rejected) == (Verdict.EQUAL, 4, 2)
    place.target.execute("DELETE FROM raw.orders_rejected WHERE key = '{\"id\": 4}'")
    wrong = difference(verify(project))
    assert (wrong.missing_keys, wrong.extra_keys, wrong.different_keys) == (("(4)",), (), ())


def test_rejected_keys_of_any_type_are_recognised(make: Make) -> None:
    sync = {**ORDERS, "key": ["day", "part", "at"]}
    _, place = make(sync, databases=2)
    add_checks(place, positive="total > 0")
    project = open_without_spark(place)
    place.source.execute(
        "CREATE TABLE orders (day date, part text, at timestamptz, total real,"
        " updated_at timestamptz NOT NULL, PRIMARY KEY (day, part, at))",
        "INSERT INTO orders SELECT '2026-01-01', E'a\"b,\\\\ü' || n,"
        f" {STAMP.format('n')} + interval '0.123456 s', n - 2, {STAMP.format('n')}"
        " FROM generate_series(1, 6) n",
    )
    project.run("orders")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.rejected) == (Verdict.EQUAL, 4, 2)


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_rejected_rows_without_a_key_count_as_there(make: Make, mode: str) -> None:
    sync = {**(BARE if mode == "replace" else ORDERS), "mode": mode}
    _, place = make(sync, databases=2)
    add_checks(place, no_four="total <> 4")
    project = open_without_spark(place)
    seed(place, key=False)
    project.run("orders")
    place.source.execute(f"INSERT INTO orders VALUES (7, 'n7', 4, {STAMP.format(7)})")
    project.run("orders")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.target_rows) == (Verdict.EQUAL, 7, 5)
    assert found.rejected == 2
    place.target.execute("DELETE FROM raw.orders_rejected WHERE row ->> 'id' = '7'")
    assert counts(verify(project)) == (1, 0, 0)


def test_a_check_that_was_added_later_leaves_what_is_loaded_equal(make: Make) -> None:
    project, place = make(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    add_checks(place, no_four="total <> 4")
    found = verify(open_without_spark(place))
    assert (found.verdict, found.source_rows, found.rejected) == (Verdict.EQUAL, 6, 0)


def test_the_command_tells_what_was_compared(make: Make) -> None:
    _, place = make({**ORDERS, "mode": "append"})
    add_checks(place, no_four="total <> 4")
    seed(place, key=False)
    open_without_spark(place).run("orders")
    done = tidegate(place.folder, "verify", "orders")
    assert done.code == DONE
    assert done.out == (
        "orders: 6 rows equal, 1 rejected\n  note: rows have no key here: each loaded row of the"
        " source must be there, at least as often, and no more rows than its loads put in\n"
    )
    document = tidegate(place.folder, "verify", "orders", "--json").document[0]
    assert (document["rejected"], document["intact"]) == (1, True)


@pytest.mark.parametrize("way", ["delete_insert", "versions"])
def test_what_a_refused_type_names_as_the_way_can_be_run_as_it_is(make: Make, way: str) -> None:
    """No cast leads from one to the other, and a view of versions shows the column."""
    project, place = make(WAYS[way], databases=2)
    seed(place)
    project.run("orders")
    place.source.execute(
        "ALTER TABLE orders DROP total, ADD total uuid NOT NULL DEFAULT uuidv4()",
        "UPDATE orders SET updated_at = updated_at + interval '1 hour'",
    )
    with pytest.raises(DriftRefused) as refused:
        project.run("orders")
    way_on = str(refused.value.hint).partition("by hand: ")[2]
    place.target.execute(way_on.replace(" (or exclude_columns)", ""))
    project.run("orders")
    assert verify(project).verdict is Verdict.EQUAL
