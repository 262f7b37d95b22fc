"""`verify` in every mode: equal after a load, and each planted difference is found."""

from __future__ import annotations

from typing import Any

import pytest

from integration.commands import DONE, FAILED
from integration.conftest import Place
from integration.here import tidegate
from integration.without_spark import Make, make
from tidegate.core.errors import DriftRefused
from tidegate.project import Project
from tidegate.verify import compare
from tidegate.verify.report import RowDifference, Verdict, Verification
from tidegate.verify.verify import verify_sync

__all__ = ["make"]

BARE = {"source": "shop:public.orders", "target": "warehouse:raw.orders"}
ORDERS = {**BARE, "cursor": "updated_at"}
STAMP = "'2026-01-01'::timestamptz + {} * interval '1 minute'"
VERSIONS = {**ORDERS, "mode": "append", "key": "id", "lookback": "1 hour"}
WAYS: dict[str, dict[str, Any]] = {
    "delete_insert": {**ORDERS, "mode": "delete_insert"},
    "replace": {**BARE, "mode": "replace"},
    "versions": VERSIONS,
    "some": {**ORDERS, "columns": ["id", "name"], "where": "total <> 3 -- not that one"},
    "query": {
        **ORDERS,
        "source": "shop",
        "query": "SELECT id, name || '!' AS name, updated_at FROM orders -- loud",
        "key": "id",
        "null_cursor": "raise",
    },
}
TWICE = ("delete_insert", "versions")


def seed(place: Place, *, key: bool = True) -> None:
    place.source.execute(
        f"CREATE TABLE orders (id bigint {'PRIMARY KEY' if key else ''}, name text,"
        " total numeric, updated_at timestamptz NOT NULL)",
        f"INSERT INTO orders SELECT n, 'n' || n, n, {STAMP.format('n')}"
        " FROM generate_series(1, 6) n",
    )


def several(make: Make, **syncs: Any) -> tuple[Project, Place]:
    """Syncs that each load a table of their name."""
    return make(
        *({**one, "name": name, "target": f"warehouse:raw.{name}"} for name, one in syncs.items())
    )


def run_all(project: Project) -> None:
    for name in project.syncs:
        project.run(name)


def verify(project: Project, name: str = "orders") -> Verification:
    return verify_sync(project.context, project.sync(name))


def sums(found: Verification) -> tuple[Verdict, int, int]:
    return found.verdict, found.source_rows, found.target_rows


def difference(found: Verification) -> RowDifference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.intact is False
    assert found.difference is not None
    return found.difference


def counts(found: Verification) -> tuple[int, int, int]:
    wrong = difference(found)
    return wrong.missing, wrong.extra, wrong.different


def test_each_way_to_load_is_equal_until_somebody_touches_the_target(make: Make) -> None:
    project, place = several(make, **WAYS)
    seed(place)
    run_all(project)
    # Those that keep or replace rows by key load a change as well.
    for way in (*sorted(WAYS.keys() - set(TWICE)), *TWICE):
        if way in TWICE:
            change = f"UPDATE orders SET name = 'x', updated_at = {STAMP.format(9)} WHERE id = 2"
            place.source.execute(change)
            project.run(way)
        found = verify(project, way)
        rows = 5 if way == "some" else 6
        assert sums(found) == (Verdict.EQUAL, rows, rows), way
        assert found.not_yet_loaded == 0
        table = "raw.versions_raw" if way == "versions" else f"raw.{way}"
        columns = "id, name" if way == "some" else "id, name, updated_at"
        values = "99, 'mine'" + ("" if way == "some" else ", now()")
        if way == "versions":
            columns, values = f"{columns}, update_id", f"{values}, 'mine'"
        place.target.execute(
            f"DELETE FROM {table} WHERE id = 1",
            f"UPDATE {table} SET name = 'edited' WHERE id = 4",
            f"INSERT INTO {table} ({columns}) VALUES ({values})",
        )
        wrong = difference(verify(project, way))
        assert wrong.missing_keys == ("(1)",), way
        assert wrong.extra_keys == ("(99)",), way
        assert wrong.different_keys == ("(4)",), way


def test_a_row_that_left_the_range_or_the_condition_is_told_apart(make: Make) -> None:
    project, place = several(make, small={**ORDERS, "where": "total < 6"}, versions=VERSIONS)
    seed(place)
    run_all(project)
    place.source.execute(
        f"UPDATE orders SET total = 10, updated_at = {STAMP.format(10)} WHERE id = 2"
    )
    above = verify(project, "versions")
    assert (above.verdict, above.source_rows, above.not_yet_loaded) == (Verdict.EQUAL, 5, 1)
    found = verify(project, "small")
    assert difference(found).extra_keys == ("(2)",)
    assert "do not meet `where` any more" in str(found.hint)


def test_a_replaced_table_whose_source_changed_is_not_called_unequal(make: Make) -> None:
    project, place = make(WAYS["replace"])
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

    # Both changed.
    place.source.execute("DELETE FROM orders WHERE id = 4")
    place.target.execute("UPDATE raw.orders SET name = 'edited' WHERE id = 1")
    found = verify(project)
    assert counts(found) == (0, 1, 1)
    assert "is not what that run loaded" in str(found.hint)
    assert tidegate(place.folder, "verify", "orders").code == FAILED

    # No run remembers what it loaded.
    project.run("orders")
    place.control.execute("UPDATE tidegate_control.jobs SET result = '{}'")
    assert verify(project).verdict is Verdict.EQUAL
    place.source.execute("DELETE FROM orders WHERE id = 3")
    found = verify(project)
    assert counts(found) == (0, 1, 0)
    assert "or the source changed since the last run" in str(found.hint)


def test_a_replace_without_a_key_is_compared_as_a_bag(make: Make) -> None:
    project, place = make(WAYS["replace"], databases=2)
    seed(place, key=False)
    place.source.execute("INSERT INTO orders SELECT * FROM orders WHERE id <= 2")
    project.run("orders")
    assert sums(verify(project)) == (Verdict.EQUAL, 8, 8)
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
    seed(place, key=False)
    place.source.execute("INSERT INTO orders SELECT * FROM orders WHERE id = 3")
    project.run("orders")
    place.source.execute(
        f"UPDATE orders SET name = 'changed', updated_at = {STAMP.format(9)} WHERE id = 2",
        "DELETE FROM orders WHERE id = 5",
    )
    project.run("orders")
    place.source.execute(f"INSERT INTO orders VALUES (7, 'n7', 7, {STAMP.format(10)})")
    found = verify(project)
    assert sums(found) == (Verdict.EQUAL, 6, 8)
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


def test_rows_that_no_load_of_an_append_put_in_are_extra(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as in the source or more often: what was inserted twice is told by its number."""
    project, place = several(make, plain={**ORDERS, "mode": "append"})
    seed(place, key=False)
    run_all(project)
    place.source.execute(
        f"UPDATE orders SET updated_at = {STAMP.format(9)} WHERE id < 3",
        "DELETE FROM orders WHERE id = 4",
    )
    project.run("plain")
    assert verify(project, "plain").verdict is Verdict.EQUAL
    place.target.execute("INSERT INTO raw.plain SELECT * FROM raw.plain WHERE id > 4")
    found = verify(project, "plain")
    assert counts(found) == (0, 2, 0)
    assert "more rows are there than its loads put in" in str(found.hint)
    # Moving the watermark by hand puts no row in or out; a refresh leaves what it loads.
    project.watermark("plain").set("2026-02-01", reason="test")
    assert counts(verify(project, "plain")) == (0, 2, 0)
    project.run("plain", full_refresh=True)
    assert verify(project, "plain").verdict is Verdict.EQUAL

    # Bags that are larger than one pass are compared in several.
    place.source.execute(
        f"INSERT INTO orders SELECT n, 'n', n, {STAMP.format('n')} FROM generate_series(12, 500) n"
    )
    project.run("plain")
    place.target.execute(
        "INSERT INTO raw.plain SELECT id, 'old', total, updated_at FROM raw.plain",
        "DELETE FROM raw.plain WHERE id IN (44, 480) AND name = 'n'",
    )
    monkeypatch.setattr(compare, "PASS_ROWS", 50)
    found = verify(project, "plain")
    assert counts(found) == (2, 492, 0)
    assert [text[:4] for text in difference(found).missing_keys] == ["(44,", "(480"]


def test_rejected_keys_are_left_out_on_both_sides_and_counted(make: Make) -> None:
    checks = {
        "checks": {"no_four": "total <> 4", "named": "name IS NOT NULL"},
        "reject_limit": "100%",
    }
    project, place = several(
        make,
        merge={**ORDERS, **checks},
        append={**ORDERS, **checks, "mode": "append", "key": "id"},
    )
    seed(place)
    run_all(project)
    for name in project.syncs:
        good = verify(project, name)
        assert (*sums(good)[:2], good.rejected) == (Verdict.EQUAL, 5, 1), name
    # One goes bad after it was loaded: the target keeps its last good version.
    place.source.execute(
        f"UPDATE orders SET name = NULL, updated_at = {STAMP.format(9)} WHERE id=2"
    )
    run_all(project)
    for name in project.syncs:
        found = verify(project, name)
        assert (*sums(found)[:2], found.rejected) == (Verdict.EQUAL, 4, 2), name
        place.target.execute(f"DELETE FROM raw.{name}_rejected WHERE key = '{{\"id\": 4}}'")
        wrong = difference(verify(project, name))
        keys = (wrong.missing_keys, wrong.extra_keys, wrong.different_keys)
        assert keys == (("(4)",), (), ()), name


def test_rejected_rows_without_a_key_count_as_there(make: Make) -> None:
    checks = {"checks": {"no_four": "total <> 4"}, "reject_limit": "100%"}
    project, place = several(
        make,
        append={**ORDERS, **checks, "mode": "append"},
        replace={**BARE, **checks, "mode": "replace"},
    )
    seed(place, key=False)
    run_all(project)
    done = tidegate(place.folder, "verify", "append")
    assert done.code == DONE
    assert done.out == (
        "append: 6 rows equal, 1 rejected\n  note: rows have no key here: each loaded row of the"
        " source must be there, at least as often, and no more rows than its loads put in\n"
    )
    document = tidegate(place.folder, "verify", "append", "--json").document[0]
    assert (document["rejected"], document["intact"]) == (1, True)
    place.source.execute(f"INSERT INTO orders VALUES (7, 'n7', 4, {STAMP.format(7)})")
    run_all(project)
    for name in project.syncs:
        found = verify(project, name)
        assert (*sums(found), found.rejected) == (Verdict.EQUAL, 7, 5, 2), name
        place.target.execute(f"DELETE FROM raw.{name}_rejected WHERE row ->> 'id' = '7'")
        assert counts(verify(project, name)) == (1, 0, 0), name


@pytest.mark.chaos
def test_rejected_keys_of_any_type_are_recognised(make: Make) -> None:
    checks = {"checks": {"positive": "total > 0"}, "reject_limit": "100%"}
    project, place = make({**ORDERS, **checks, "key": ["day", "part", "at"]}, databases=2)
    place.source.execute(
        "CREATE TABLE orders (day date, part text, at timestamptz, total real,"
        " updated_at timestamptz NOT NULL, PRIMARY KEY (day, part, at))",
        "INSERT INTO orders SELECT '2026-01-01', E'a\"b,\\\\ü' || n,"
        f" {STAMP.format('n')} + interval '0.123456 s', n - 2, {STAMP.format('n')}"
        " FROM generate_series(1, 6) n",
    )
    project.run("orders")
    found = verify(project)
    assert (*sums(found)[:2], found.rejected) == (Verdict.EQUAL, 4, 2)


@pytest.mark.chaos
def test_what_a_refused_type_names_as_the_way_can_be_run_as_it_is(make: Make) -> None:
    """No cast leads from one to the other, and a view of versions shows the column."""
    project, place = make(VERSIONS)
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
