"""`verify --repair` loads the differing ranges again, removes what is gone, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from integration.orders import CREATE, FILL, ORDERS
from tidegate.cli.main import app
from tidegate.errors import DeclarationError, DestinationError
from tidegate.model.verification import Difference, Repair, Verdict, Verification
from tidegate.pipeline import compare as compare_module
from tidegate.project import Project

MANY = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + n * interval '1 second'"
    " FROM generate_series(1, 3000) n"
)
PIPELINES = """
import tidegate as tg

@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at")
def orders(df):
    return df.where("total <> 6").selectExpr("id", "total * 2 AS total", "updated_at")
"""
SAME = "SELECT id, total::text, updated_at::text FROM {} ORDER BY id"


def loaded(make_project: Any, fill: str = FILL, **options: Any) -> tuple[Project, Any]:
    sync = {**ORDERS, **options.pop("sync", {})}
    project, place = make_project(sync, **options)
    place.source.execute(*CREATE, fill)
    project.run("orders")
    return project, place


def repaired(found: Verification) -> tuple[Repair, Difference]:
    assert found.verdict is Verdict.EQUAL
    assert found.repair is not None
    assert found.repair.difference is not None
    return found.repair, found.repair.difference


def assert_same(place: Any) -> None:
    assert place.target.execute(SAME.format("raw.orders")) == place.source.execute(
        SAME.format("orders")
    )


def damage(place: Any) -> None:
    """Rows that a cursor never shows: late, deleted, changed on either side."""
    place.source.execute(
        "INSERT INTO orders VALUES (9001, 1, '2026-01-01 00:00:30+00')",
        "DELETE FROM orders WHERE id IN (7, 8)",
        "UPDATE orders SET total = total + 1 WHERE id = 3",
    )
    place.target.execute(
        "DELETE FROM raw.orders WHERE id = 1",
        # A cursor above the source's: the guard of a merge would keep this row.
        "UPDATE raw.orders SET total = -5, updated_at = updated_at + interval '1 hour'"
        " WHERE id = 5",
    )


@pytest.mark.parametrize("databases", [1, 3])
def test_missing_extra_and_different_rows_are_put_right(make_project: Any, databases: int) -> None:
    _, place = loaded(make_project, databases=databases)
    damage(place)
    project = place.open()
    repair, was = repaired(project.verify("orders", repair=True))
    assert (was.missing, was.extra, was.different) == (2, 2, 2)
    assert repair.loads == 1
    assert_same(place)
    # No row has to go through Spark for that.
    assert project.context.spark.started is False


def test_a_repair_is_a_load_with_a_marker_and_leaves_the_watermark_alone(make_project: Any) -> None:
    project, place = loaded(make_project)
    before = project.watermark("orders").value
    damage(place)
    project.verify("orders", repair=True)
    moves = place.target.execute(
        "SELECT old_watermark, new_watermark, reason, m.update_id IS NOT NULL"
        " FROM tidegate.watermark_log l LEFT JOIN tidegate.table_updates m USING (update_id)"
        " ORDER BY l.version DESC LIMIT 1"
    )
    assert moves == [(before, before, "load repair", True)]
    kinds = place.control.execute("SELECT kind, status FROM tidegate_control.jobs ORDER BY job_id")
    assert kinds == [("sync", "done"), ("repair", "done")]
    # What comes next is loaded as ever.
    place.source.execute("INSERT INTO orders VALUES (11, 1)")
    assert project.run("orders").rows == 1
    assert_same(place)


def test_equal_tables_are_not_touched_and_no_job_is_made(make_project: Any) -> None:
    project, place = loaded(make_project)
    found = project.verify("orders", repair=True)
    assert (found.verdict, found.repair) == (Verdict.EQUAL, None)
    assert place.control.value("SELECT count(*) FROM tidegate_control.jobs") == 1


def test_only_the_differing_ranges_are_loaded_again(make_project: Any) -> None:
    project, place = loaded(make_project, MANY)
    place.target.execute("UPDATE raw.orders SET total = 0 WHERE id IN (10, 2000)")
    place.source.execute("DELETE FROM orders WHERE id = 77")
    repair, was = repaired(project.verify("orders", repair=True))
    assert (was.different, was.extra) == (2, 1)
    assert repair.changed == 3
    assert repair.rows < 30
    assert_same(place)


def test_more_than_a_batch_is_repaired_in_several_loads_each_with_a_marker(
    make_project: Any,
) -> None:
    project, place = loaded(make_project, MANY, sync={"batch_rows": 800})
    markers = "SELECT count(*) FROM tidegate.table_updates"
    before = place.target.value(markers)
    place.target.execute("UPDATE raw.orders SET total = total + 1")
    place.source.execute("DELETE FROM orders WHERE id % 10 = 0")
    repair, was = repaired(project.verify("orders", repair=True))
    assert (was.different, was.extra, was.complete) == (2700, 300, True)
    assert repair.loads == place.target.value(markers) - before >= 4
    assert_same(place)


def test_what_differs_is_cut_finer_where_that_spares_rows(
    make_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded(make_project, MANY)
    place.target.execute("UPDATE raw.orders SET total = 0 WHERE id = 10")
    monkeypatch.setattr(compare_module, "BITS", 2)
    monkeypatch.setattr(compare_module, "DETAIL_ROWS", 100)
    repair, was = repaired(project.verify("orders", repair=True))
    assert was.different == 1
    assert repair.rows == 1
    assert_same(place)


def test_rows_above_the_watermark_are_left_to_the_next_run(make_project: Any) -> None:
    project, place = loaded(make_project)
    place.source.execute(
        "UPDATE orders SET total = -1, updated_at = now() WHERE id = 2",
        "INSERT INTO orders VALUES (12, 1)",
        "DELETE FROM orders WHERE id = 4",
    )
    _, was = repaired(project.verify("orders", repair=True))
    assert (was.missing, was.extra, was.different) == (0, 1, 0)
    assert place.target.execute("SELECT id FROM raw.orders WHERE id IN (2, 4, 12)") == [(2,)]
    assert place.target.value("SELECT total FROM raw.orders WHERE id = 2") == 2
    project.run("orders")
    assert_same(place)


def test_all_rows_may_be_gone(make_project: Any) -> None:
    project, place = loaded(make_project)
    place.source.execute("DELETE FROM orders")
    _, was = repaired(project.verify("orders", repair=True))
    assert was.extra == 10
    assert place.target.value("SELECT count(*) FROM raw.orders") == 0
    place.source.execute("INSERT INTO orders VALUES (1, 1)")
    project.run("orders")
    assert_same(place)


def test_delete_insert_and_where_and_columns_are_respected(make_project: Any) -> None:
    project, place = loaded(
        make_project, sync={"mode": "delete_insert", "where": "id <= 9", "columns": ["id", "total"]}
    )
    place.source.execute(
        "DELETE FROM orders WHERE id = 3", "UPDATE orders SET total = 50 WHERE id = 4"
    )
    repaired(project.verify("orders", repair=True))
    rows = place.target.execute("SELECT id, total::int FROM raw.orders ORDER BY id")
    assert rows == [(1, 1), (2, 2), (4, 50), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9)]


def test_keys_of_several_columns_and_odd_types_are_repaired(make_project: Any) -> None:
    project, place = make_project(ORDERS, databases=2)
    place.source.execute(
        "CREATE TYPE kind AS ENUM ('a', 'b')",
        "CREATE TABLE orders (name text, day date, kind kind, price numeric, tags text[],"
        " updated_at timestamptz NOT NULL, PRIMARY KEY (name, day, kind))",
        "INSERT INTO orders SELECT 'n ' || n, date '2026-01-01' + n, 'a', n / 3.0,"
        " ARRAY['x', n::text], timestamptz '2026-01-01' + n * interval '1 hour'"
        " FROM generate_series(1, 50) n",
    )
    project.run("orders")
    place.source.execute(
        "DELETE FROM orders WHERE name = 'n 7'",
        "UPDATE orders SET kind = 'b' WHERE name = 'n 8'",
        "UPDATE orders SET tags = NULL WHERE name = 'n 9'",
    )
    _, was = repaired(project.verify("orders", repair=True))
    assert (was.missing, was.extra, was.different) == (1, 2, 1)


def test_a_transformation_is_applied_again_and_what_it_left_out_goes(make_project: Any) -> None:
    project, place = make_project(databases=2, pipelines=PIPELINES)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute(
        "UPDATE orders SET total = 6 WHERE id = 2", "DELETE FROM orders WHERE id = 3"
    )
    place.target.execute("UPDATE raw.orders SET total = 0 WHERE id = 4")
    found = project.verify("orders", repair=True)
    _, was = repaired(found)
    assert found.used_spark
    assert (was.missing, was.extra, was.different) == (0, 2, 1)
    rows = place.target.execute("SELECT id, total::int FROM raw.orders ORDER BY id")
    assert rows == [(n, 2 * n) for n in (1, 4, 5, 7, 8, 9, 10)]


@pytest.mark.parametrize(
    ("sync", "says"),
    [
        ({"mode": "append"}, "append keeps every row"),
        ({"mode": "append", "key": ["id"]}, "append keeps every row"),
        ({"mode": "replace", "cursor": None}, "replace"),
    ],
)
def test_what_cannot_be_repaired_by_key_is_refused(
    make_project: Any, sync: dict[str, Any], says: str
) -> None:
    given = {name: value for name, value in {**ORDERS, **sync}.items() if value is not None}
    project, place = make_project(given)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    table = "raw.orders_raw" if "key" in sync else "raw.orders"
    place.target.execute(f"DELETE FROM {table} WHERE id = 4")
    with pytest.raises(DeclarationError, match=says) as refused:
        project.verify("orders", repair=True)
    assert "--full-refresh" in str(refused.value.hint)
    assert place.control.value("SELECT count(*) FROM tidegate_control.jobs") == 1


def test_a_target_that_has_to_follow_its_source_first_is_said_so(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10,2) NOT NULL,"
        " updated_at timestamptz NOT NULL)",
        FILL,
    )
    project.run("orders")
    place.source.execute(
        "ALTER TABLE orders ALTER total DROP NOT NULL", "DELETE FROM orders WHERE id = 3"
    )
    with pytest.raises(DestinationError, match="changed since the last load") as refused:
        project.verify("orders", repair=True)
    assert "tidegate run orders" in str(refused.value.hint)


def test_a_full_refresh_that_is_not_finished_is_finished_first(make_project: Any) -> None:
    project, place = loaded(make_project)
    place.source.execute("DELETE FROM orders WHERE id = 3")
    place.target.execute(
        "UPDATE tidegate.etl_state SET declaration ="
        " declaration || jsonb_build_object('refreshing', version)"
    )
    with pytest.raises(DeclarationError, match="a full refresh was begun"):
        project.verify("orders", repair=True)


def test_the_command_repairs_and_exits_with_zero(make_project: Any) -> None:
    _, place = loaded(make_project)
    damage(place)
    runner = CliRunner()
    command = ["verify", "orders", "--project", str(place.folder)]
    assert runner.invoke(app, command).exit_code == 1
    done = runner.invoke(app, [*command, "--repair"])
    assert done.exit_code == 0, done.output
    assert "repaired: 2 missing, 2 extra, 2 different, in 1 load" in done.output
    assert "rows equal" in done.output
    again = runner.invoke(app, [*command, "--repair", "--json"])
    assert again.exit_code == 0
    (document,) = json.loads(again.output)
    assert (document["verdict"], document["repair"]) == ("equal", None)
