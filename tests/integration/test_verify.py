"""`verify` compares source and target up to the watermark, inside the databases."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import psycopg
import pytest
from psycopg import sql

import forked
from conftest import MakeDatabase
from integration.orders import CREATE, FILL, ORDERS, contents
from tidegate.errors import TargetGone
from tidegate.model.verification import Difference, Verdict, Verification
from tidegate.pipeline import compare as compare_module
from tidegate.pipeline import context as context_module
from tidegate.pipeline import opened as opened_module
from tidegate.pipeline.verify import verify_sync
from tidegate.postgres.connect import OWN_PATH, begin_read_only, connect
from tidegate.project import Project


def verify(project: Project) -> Verification:
    return verify_sync(project.context, project.sync("orders"))


def verify_cold(place: Any) -> Verification:
    """Without a transformation Spark has no part in it."""
    project = place.open()
    found = verify(project)
    assert project.context.spark.started is False
    assert found.used_spark is False
    return found


def loaded(make_project: Any, **options: Any) -> tuple[Project, Any]:
    sync = {**ORDERS, **options.pop("sync", {})}
    project, place = make_project(sync, **options)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    return project, place


def difference(found: Verification) -> Difference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    return found.difference


@pytest.mark.parametrize("databases", [1, 2, 3])
def test_a_clean_load_is_equal_and_verifying_leaves_no_trace(
    make_project: Any, databases: int
) -> None:
    _, place = loaded(make_project, databases=databases)
    before = contents(place.source, place.target, place.control)
    found = verify_cold(place)
    assert contents(place.source, place.target, place.control) == before
    assert found.verdict is Verdict.EQUAL
    assert (found.source_rows, found.target_rows, found.not_yet_loaded) == (10, 10, 0)


def test_rows_above_the_watermark_are_left_out_and_counted(make_project: Any) -> None:
    _, place = loaded(make_project)
    place.source.execute(
        "UPDATE orders SET total = -1, updated_at = now() WHERE id <= 3",
        "INSERT INTO orders VALUES (11, 1)",
    )
    found = verify_cold(place)
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 7, 4)


def test_missing_extra_and_different_rows_are_counted_and_named(make_project: Any) -> None:
    _, place = loaded(make_project)
    place.target.execute(
        "DELETE FROM raw.orders WHERE id IN (1, 2)",
        "UPDATE raw.orders SET total = 99 WHERE id = 5",
    )
    place.source.execute("DELETE FROM orders WHERE id IN (7, 8, 9)")
    found = difference(verify_cold(place))
    assert (found.missing, found.extra, found.different, found.complete) == (2, 3, 1, True)
    assert found.missing_keys == ("(1)", "(2)")
    assert found.extra_keys == ("(7)", "(8)", "(9)")
    assert found.different_keys == ("(5)",)


def test_a_hard_delete_names_the_full_refresh_which_then_mends_it(make_project: Any) -> None:
    project, place = loaded(make_project)
    place.source.execute("DELETE FROM orders WHERE id = 4")
    found = verify_cold(place)
    assert difference(found).extra == 1
    assert "tidegate run orders --full-refresh" in str(found.hint)
    project.run("orders", full_refresh=True)
    assert verify_cold(place).verdict is Verdict.EQUAL


def test_a_row_that_came_in_late_is_missing(make_project: Any) -> None:
    _, place = loaded(make_project)
    place.source.execute("INSERT INTO orders VALUES (50, 1, '2026-01-01 00:05:30+00')")
    assert difference(verify_cold(place)).missing_keys == ("(50)",)


def test_only_five_keys_are_shown(make_project: Any) -> None:
    _, place = loaded(make_project)
    place.target.execute("UPDATE raw.orders SET total = total + 1")
    found = difference(verify_cold(place))
    assert (found.different, len(found.different_keys)) == (10, 5)


def test_too_many_differences_are_given_as_at_least(
    make_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, place = loaded(make_project)
    place.target.execute("UPDATE raw.orders SET total = total + 1")
    monkeypatch.setattr(compare_module, "DETAIL_ROWS", 4)
    found = difference(verify_cold(place))
    assert found.complete is False
    assert 1 <= found.different <= 4


def test_a_sync_that_never_ran_says_so_and_fails(make_place: Any) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE, FILL)
    before = contents(place.source)
    assert verify_cold(place).verdict is Verdict.NEVER_RAN
    assert contents(place.source) == before


def test_a_sync_that_ran_and_found_nothing_is_equal(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE)
    project.run("orders")
    place.source.execute(FILL)
    found = verify_cold(place)
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 0, 10)


def test_a_dropped_target_is_refused_with_the_way_out(make_project: Any) -> None:
    _, place = loaded(make_project)
    place.target.execute("DROP TABLE raw.orders")
    with pytest.raises(TargetGone, match="--full-refresh"):
        verify_cold(place)


def test_every_kind_of_column_is_compared_in_the_same_text(make_project: Any) -> None:
    project, place = make_project(ORDERS, databases=2)
    for database in (place.source, place.target):
        database.execute("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    place.source.execute(
        "CREATE DOMAIN amount AS numeric(8,3)",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE orders (id uuid, part text, updated_at timestamptz DEFAULT now() NOT NULL,"
        " m mood, d amount, p pair, r real, f float8, n numeric, j jsonb, b bytea, a int[],"
        " t timestamp, i interval, x text, g tsrange, PRIMARY KEY (id, part))",
        "INSERT INTO orders SELECT gen_random_uuid(), E'a,\"b\\\\' || n,"
        " '2026-01-01'::timestamptz + n * interval '1 s', 'glad', n / 7.0, ROW(n, 'x y')::pair,"
        " n / 3.0, n / 3.0, n / 3.0, '{\"k\": [1, null]}', '\\x00ff', ARRAY[n, NULL],"
        " '2026-01-01 10:00', '3 days', nullif('ü€' || n, 'ü€3'),"
        " '[2026-01-01,2026-02-01)' FROM generate_series(1, 50) n",
    )
    project.run("orders")
    assert verify_cold(place).verdict is Verdict.EQUAL
    place.target.execute("UPDATE raw.orders SET x = NULL WHERE x = 'ü€7'")
    found = difference(verify_cold(place))
    assert (found.missing, found.extra, found.different) == (0, 0, 1)


def test_a_target_with_wider_and_further_columns_is_compared_in_the_source_types(
    make_project: Any,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    place.source.execute(
        "CREATE TABLE orders (id integer PRIMARY KEY, total numeric(8,2), r real, day date,"
        " updated_at timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO orders SELECT n, n / 3.0, n / 3.0, '2026-01-01', '2026-01-01'"
        " FROM generate_series(1, 20) n",
    )
    place.target.execute(
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.orders (note text DEFAULT 'ours', r double precision, id bigint"
        " PRIMARY KEY, total numeric(12,4), day timestamp, updated_at timestamptz)",
    )
    project.run("orders")
    assert verify_cold(place).verdict is Verdict.EQUAL


def test_databases_of_different_encodings_agree(
    make_project: Any, server: Any, make_database: MakeDatabase
) -> None:
    project, place = make_project(ORDERS, databases=2)
    latin = "latin_" + place.target.value("SELECT current_database()").rpartition("_")[2]
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
        connection.execute(create.format(sql.Identifier(latin)))
    try:
        other = Project.open(place.folder, **{"connections.warehouse": server.conninfo(latin)})
        other.context.spark = project.context.spark
        place.source.execute(
            *CREATE,
            "ALTER TABLE orders ADD name text",
            "INSERT INTO orders SELECT n, n, '2026-01-01', 'é' || n FROM generate_series(1, 9) n",
        )
        other.run("orders")
        assert verify(other).verdict is Verdict.EQUAL
        other.context.databases.close()
    finally:
        with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(latin))
            connection.execute(drop)


@pytest.mark.parametrize("policy", ["include", "exclude"])
def test_rows_without_a_cursor_follow_their_policy(make_project: Any, policy: str) -> None:
    project, place = make_project({**ORDERS, "null_cursor": policy})
    place.source.execute(*CREATE, "ALTER TABLE orders ALTER updated_at DROP NOT NULL", FILL)
    place.source.execute("INSERT INTO orders VALUES (100, 1, NULL), (101, 1, NULL)")
    project.run("orders")
    found = verify_cold(place)
    assert found.verdict is Verdict.EQUAL
    assert found.source_rows == (12 if policy == "include" else 10)
    place.source.execute("UPDATE orders SET updated_at = NULL, total = 7 WHERE id = 1")
    changed = verify_cold(place)
    assert changed.verdict is Verdict.EQUAL
    assert "3 rows without a cursor were not compared" in changed.notes


def test_an_unfinished_tie_is_compared_as_far_as_it_was_loaded(make_project: Any) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 3})
    place.source.execute(
        *CREATE, "INSERT INTO orders SELECT n, n, '2026-01-01' FROM generate_series(1, 8) n"
    )
    project.run("orders", max_batches=2)
    found = verify_cold(place)
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 6, 2)


def test_the_newest_of_duplicates_is_what_must_be_there(make_project: Any) -> None:
    project, place = make_project({**ORDERS, "key": ["id"], "duplicates": "newest"})
    place.source.execute(
        "CREATE TABLE orders (id int NOT NULL, total int, updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT n % 5, n, '2026-01-01'::timestamptz + n * interval '1 s'"
        " FROM generate_series(1, 20) n",
    )
    project.run("orders")
    found = verify_cold(place)
    assert (found.verdict, found.source_rows) == (Verdict.EQUAL, 5)
    place.source.execute("INSERT INTO orders VALUES (2, 99, now())")
    found = verify_cold(place)
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 4, 1)
    place.target.execute("UPDATE raw.orders SET total = 1 WHERE id = 3")
    assert difference(verify_cold(place)).different_keys == ("(3)",)


@pytest.mark.parametrize(
    ("moment", "compared"), [("reading", (6, 4)), ("compare", (10, 0))], ids=["between", "after"]
)
def test_a_load_that_is_published_while_verifying_does_not_disturb(
    make_project: Any, monkeypatch: pytest.MonkeyPatch, moment: str, compared: tuple[int, int]
) -> None:
    """Between the two snapshots, and after both of them."""
    project, place = loaded(make_project, databases=2)
    module = opened_module if moment == "compare" else context_module
    real = getattr(module, moment)
    ran: list[int] = []

    def run_first(*arguments: Any) -> Any:
        # The run reads as well.
        monkeypatch.setattr(module, moment, real)
        place.source.execute("UPDATE orders SET total = 5, updated_at = '2026-01-02' WHERE id < 5")
        ran.append(project.run("orders").rows)
        return real(*arguments)

    monkeypatch.setattr(module, moment, run_first)
    found = verify(place.open())
    assert ran == [4]
    assert found.verdict is Verdict.EQUAL
    assert (found.source_rows, found.not_yet_loaded) == compared


def command(place: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("verify", "-C", str(place.folder), *arguments)


def test_the_command_prints_a_line_per_sync_and_sets_its_exit_code(make_project: Any) -> None:
    other = {**ORDERS, "name": "other", "target": "warehouse:raw.other"}
    project, place = make_project(ORDERS, other)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    good = command(place, "orders")
    assert (good.returncode, good.stdout) == (0, "orders: 10 rows equal\n")
    both = command(place, "--all")
    assert both.returncode == 1
    assert "other: never ran" in both.stdout
    place.source.execute("DELETE FROM orders WHERE id = 4")
    bad = command(place, "orders")
    assert bad.returncode == 1
    assert bad.stdout.startswith("orders: 1 extra of 9 rows\n  extra: (4)\n  fix: ")
    document = json.loads(command(place, "orders", "--json").stdout)
    assert document[0]["difference"]["extra"] == 1
    assert command(place).returncode == 2


def test_bad_input_of_one_sync_leaves_the_others_verified(make_project: Any) -> None:
    wrong = {**ORDERS, "name": "wrong", "cursor": "nope", "target": "warehouse:raw.wrong"}
    project, place = make_project(wrong, ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    done = command(place, "--all")
    assert done.returncode == 2
    assert "wrong: sync wrong: cursor nope does not exist" in done.stderr
    assert "orders: 10 rows equal" in done.stdout


@pytest.mark.parametrize("transformed", [False, True], ids=["passed", "transformed"])
def test_verifying_does_not_hold_back_the_loads_beside_it(
    make_project: Any, monkeypatch: pytest.MonkeyPatch, transformed: bool
) -> None:
    """All in one database, so that both of its snapshots would count as open transactions."""
    pipelines = (
        "import tidegate as tg\n\n"
        '@tg.sync(source="shop:public.orders", target="warehouse:raw.orders",'
        ' cursor="updated_at")\ndef orders(df):\n    return df\n'
    )
    options: dict[str, Any] = {"pipelines": pipelines} if transformed else {}
    project, place = make_project(*([] if transformed else [ORDERS]), **options)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (99, 1, '2026-02-01')")
    module = opened_module
    real = module.compare
    seen: list[tuple[Any, ...]] = []

    def look(*arguments: Any) -> Any:
        with place.source.connect() as session:
            opened = session.execute(
                "SELECT count(*), count(*) FILTER (WHERE application_name NOT LIKE"
                " 'tidegate read%')"
                " FROM pg_stat_activity WHERE datname = current_database()"
                " AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            ).fetchone()
            assert opened is not None
            seen.append(opened)
        horizon = project.run("orders").outcome.horizon
        assert horizon is not None
        assert horizon.held_by is None
        return real(*arguments)

    monkeypatch.setattr(module, "compare", look)
    found = verify(project)
    assert found.verdict is Verdict.EQUAL
    assert found.not_yet_loaded == 1
    assert seen == [(2, 0)]


def test_a_session_called_reader_can_write_nothing(make_project: Any) -> None:
    """The horizon passes it over, so the name must not outlive its READ ONLY transaction."""
    _, place = make_project(ORDERS)
    place.source.execute(*CREATE)
    name = "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    with connect(place.source.conninfo, name="the source", application="tidegate") as session:
        session.execute(f"SET {OWN_PATH}")
        begin_read_only(session)
        assert session.execute(name).fetchone() == ("tidegate read",)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            session.execute(FILL)
        session.execute("ROLLBACK")
        assert session.execute(name).fetchone() == ("tidegate",)
