"""`verify` compares source and target up to the watermark, inside the databases."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import psycopg
import pytest
from psycopg import sql

from integration.commands import DONE, FAILED, USAGE
from integration.conftest import Database, Make, MakeProject, Place, without_spark
from integration.here import tidegate
from integration.orders import CREATE, FILL, ORDERS, contents
from tidegate.core.errors import TargetGone
from tidegate.load import context as context_module
from tidegate.load.plan import ProjectPlan
from tidegate.load.planner import plan_project
from tidegate.postgres.connection import OWN_PATH, begin_read_only, connect
from tidegate.project import Project
from tidegate.verify import compare as compare_module
from tidegate.verify import difference as opened_module
from tidegate.verify.report import RowDifference, Verdict, Verification
from tidegate.verify.verify import verify_sync


def verify(project: Project, name: str = "orders") -> Verification:
    """Spark has no part in it: the projects of these tests have none."""
    found = verify_sync(project.context, project.sync(name))
    assert found.used_spark is False
    return found


def sums(found: Verification) -> tuple[Verdict, int, int]:
    return found.verdict, found.source_rows, found.not_yet_loaded


def loaded(make: Make, **options: Any) -> tuple[Project, Place]:
    project, place = make({**ORDERS, **options.pop("sync", {})}, **options)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    return project, place


def difference(found: Verification) -> RowDifference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    return found.difference


def test_only_what_was_loaded_is_compared_and_verifying_leaves_no_trace(make: Make) -> None:
    project, place = make(ORDERS, databases=3)
    place.source.execute(*CREATE)

    def verify_untouched() -> Verification:
        before = contents(place.source, place.target, place.control)
        found = verify(project)
        assert contents(place.source, place.target, place.control) == before
        return found

    assert verify_untouched().verdict is Verdict.NEVER_RAN
    project.run("orders")
    place.source.execute(FILL)
    assert sums(verify_untouched()) == (Verdict.EQUAL, 0, 10)
    project.run("orders")
    found = verify_untouched()
    assert sums(found) == (Verdict.EQUAL, 10, 0)
    assert found.target_rows == 10
    place.source.execute(
        "UPDATE orders SET total = -1, updated_at = now() WHERE id <= 3",
        "INSERT INTO orders VALUES (11, 1)",
    )
    assert sums(verify_untouched()) == (Verdict.EQUAL, 7, 4)


def test_missing_extra_and_different_rows_are_counted_and_named(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded(make)
    place.source.execute("DELETE FROM orders WHERE id IN (7, 8, 9)")
    gone = verify(project)
    assert difference(gone).extra_keys == ("(7)", "(8)", "(9)")
    assert "tidegate run orders --full-refresh" in str(gone.hint)
    # One that came in late, below the watermark.
    place.source.execute("INSERT INTO orders VALUES (50, 1, '2026-01-01 00:05:30+00')")
    place.target.execute(
        "DELETE FROM raw.orders WHERE id IN (1, 2)",
        "UPDATE raw.orders SET total = 99 WHERE id = 5",
    )
    found = difference(verify(project))
    assert (found.missing, found.extra, found.different, found.complete) == (3, 3, 1, True)
    assert found.missing_keys == ("(1)", "(2)", "(50)")
    assert found.extra_keys == ("(7)", "(8)", "(9)")
    assert found.different_keys == ("(5)",)
    project.run("orders", full_refresh=True)
    assert verify(project).verdict is Verdict.EQUAL

    place.target.execute("UPDATE raw.orders SET total = total + 1")
    found = difference(verify(project))
    assert (found.different, len(found.different_keys)) == (8, 5)
    monkeypatch.setattr(compare_module, "DETAIL_ROWS", 4)
    found = difference(verify(project))
    assert found.complete is False
    assert 1 <= found.different <= 4
    place.target.execute("DROP TABLE raw.orders")
    with pytest.raises(TargetGone, match="--full-refresh"):
        verify(project)


def test_every_kind_of_column_is_compared_in_the_types_of_the_source(make: Make) -> None:
    wide = {**ORDERS, "name": "wide", "source": "shop:wide", "target": "warehouse:raw.wide"}
    project, place = make(ORDERS, wide, databases=2)
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
        "CREATE TABLE wide (id integer PRIMARY KEY, total numeric(8,2), r real, day date,"
        " updated_at timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO wide SELECT n, n / 3.0, n / 3.0, '2026-01-01', '2026-01-01'"
        " FROM generate_series(1, 20) n",
    )
    place.target.execute(
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.wide (note text DEFAULT 'ours', r double precision, id bigint"
        " PRIMARY KEY, total numeric(12,4), day timestamp, updated_at timestamptz)",
    )
    for name in ("orders", "wide"):
        project.run(name)
        assert verify(project, name).verdict is Verdict.EQUAL, name
    place.target.execute("UPDATE raw.orders SET x = NULL WHERE x = 'ü€7'")
    found = difference(verify(project))
    assert (found.missing, found.extra, found.different) == (0, 0, 1)


@pytest.mark.chaos
def test_databases_of_different_encodings_agree(make: Make, server: Any) -> None:
    _, place = make(ORDERS)
    latin = "latin_" + place.target.value("SELECT current_database()").rpartition("_")[2]
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(latin))
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
        connection.execute(create.format(sql.Identifier(latin)))
        try:
            overrides = {"connections.warehouse": server.conninfo(latin)}
            place.source.execute(
                *CREATE,
                "ALTER TABLE orders ADD name text",
                "INSERT INTO orders"
                " SELECT n, n, '2026-01-01', 'é' || n FROM generate_series(1, 9) n",
            )
            with without_spark(Project.open(place.folder, **overrides)) as other:
                other.run("orders")
                assert verify(other).verdict is Verdict.EQUAL
        finally:
            connection.execute(drop)


@pytest.mark.chaos
def test_rows_without_a_cursor_follow_their_policy(make: Make) -> None:
    syncs = [
        {**ORDERS, "name": policy, "null_cursor": policy, "target": f"warehouse:raw.{policy}"}
        for policy in ("include", "exclude")
    ]
    project, place = make(*syncs)
    place.source.execute(*CREATE, "ALTER TABLE orders ALTER updated_at DROP NOT NULL", FILL)
    place.source.execute("INSERT INTO orders VALUES (100, 1, NULL), (101, 1, NULL)")
    for name, rows in (("include", 12), ("exclude", 10)):
        project.run(name)
        assert sums(verify(project, name))[:2] == (Verdict.EQUAL, rows), name
    place.source.execute("UPDATE orders SET updated_at = NULL, total = 7 WHERE id = 1")
    for name in ("include", "exclude"):
        changed = verify(project, name)
        assert changed.verdict is Verdict.EQUAL, name
        assert "3 rows without a cursor were not compared" in changed.notes


def test_an_unfinished_tie_is_compared_as_far_as_it_was_loaded(make: Make) -> None:
    project, place = make({**ORDERS, "batch_rows": 3})
    place.source.execute(
        *CREATE, "INSERT INTO orders SELECT n, n, '2026-01-01' FROM generate_series(1, 8) n"
    )
    project.run("orders", max_batches=2)
    assert sums(verify(project)) == (Verdict.EQUAL, 6, 2)


@pytest.mark.chaos
def test_the_newest_of_duplicates_is_what_must_be_there(make: Make) -> None:
    project, place = make({**ORDERS, "key": ["id"], "duplicates": "newest"})
    place.source.execute(
        "CREATE TABLE orders (id int NOT NULL, total int, updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT n % 5, n, '2026-01-01'::timestamptz + n * interval '1 s'"
        " FROM generate_series(1, 20) n",
    )
    project.run("orders")
    assert sums(verify(project)) == (Verdict.EQUAL, 5, 0)
    place.source.execute("INSERT INTO orders VALUES (2, 99, now())")
    assert sums(verify(project)) == (Verdict.EQUAL, 4, 1)
    place.target.execute("UPDATE raw.orders SET total = 1 WHERE id = 3")
    assert difference(verify(project)).different_keys == ("(3)",)


@pytest.mark.parametrize(
    ("module", "moment", "compared"),
    [(context_module, "reading", (6, 4)), (opened_module, "compare", (10, 0))],
    ids=["between its snapshots", "after both of them"],
)
def test_a_load_that_is_published_while_verifying_does_not_disturb(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    moment: str,
    compared: tuple[int, int],
) -> None:
    project, place = loaded(make, databases=2)
    real = getattr(module, moment)
    ran: list[int] = []

    def run_first(*arguments: Any) -> Any:
        # The run reads as well.
        monkeypatch.undo()
        place.source.execute("UPDATE orders SET total = 5, updated_at = '2026-01-02' WHERE id < 5")
        ran.append(project.run("orders").rows)
        return real(*arguments)

    monkeypatch.setattr(module, moment, run_first)
    assert sums(verify(place.open())) == (Verdict.EQUAL, *compared)
    assert ran == [4]


PIPELINES = (
    "import tidegate as tg\n\n"
    '@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at")\n'
    "def orders(df):\n    return df\n"
)


@pytest.mark.parametrize("transformed", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_verifying_does_not_hold_back_the_loads_beside_it(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, transformed: bool
) -> None:
    """All in one database, so that both of its snapshots would count as open transactions."""
    if transformed:
        project, place = make_project(pipelines=PIPELINES)
    else:
        project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (99, 1, '2026-02-01')")
    real = opened_module.compare
    seen: list[tuple[Any, ...]] = []

    def look(*arguments: Any) -> Any:
        seen.extend(
            place.source.execute(
                "SELECT count(*), count(*) FILTER (WHERE application_name NOT LIKE"
                " 'tidegate read%')"
                " FROM pg_stat_activity WHERE datname = current_database()"
                " AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            )
        )
        horizon = project.run("orders").outcome.horizon
        assert horizon is not None
        assert horizon.held_by is None
        return real(*arguments)

    monkeypatch.setattr(opened_module, "compare", look)
    found = verify_sync(project.context, project.sync("orders"))
    assert (found.verdict, found.not_yet_loaded) == (Verdict.EQUAL, 1)
    assert seen == [(2, 0)]


def test_a_session_called_reader_can_write_nothing(database: Database) -> None:
    """The horizon passes it over, so the name must not outlive its READ ONLY transaction."""
    database.execute(*CREATE)
    name = "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    with connect(database.conninfo, name="the source", application="tidegate") as session:
        session.execute(f"SET {OWN_PATH}")
        begin_read_only(session)
        assert session.execute(name).fetchone() == ("tidegate read",)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            session.execute(FILL)
        session.execute("ROLLBACK")
        assert session.execute(name).fetchone() == ("tidegate",)


def test_the_command_prints_a_line_per_sync_and_sets_its_exit_code(make: Make) -> None:
    other = {**ORDERS, "name": "other", "target": "warehouse:raw.other"}
    wrong = {**ORDERS, "name": "wrong", "cursor": "nope", "target": "warehouse:raw.wrong"}
    project, place = make(wrong, ORDERS, other)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    good = tidegate(place.folder, "verify", "orders")
    assert (good.code, good.out) == (DONE, "orders: 10 rows equal\n")
    every = tidegate(place.folder, "verify", "--all")
    assert every.code == FAILED
    assert "other: never ran" in every.out
    # Bad input of one leaves the others verified.
    two = tidegate(place.folder, "verify", "wrong", "orders")
    assert two.code == USAGE
    assert "wrong: sync wrong: cursor nope does not exist" in two.err
    assert "orders: 10 rows equal" in two.out
    place.source.execute("DELETE FROM orders WHERE id = 4")
    bad = tidegate(place.folder, "verify", "orders")
    assert bad.code == FAILED
    assert bad.out.startswith("orders: 1 extra of 9 rows\n  extra: (4)\n  fix: ")
    (document,) = tidegate(place.folder, "verify", "orders", "--json").document
    assert document["difference"]["extra"] == 1
    assert tidegate(place.folder, "verify").code == USAGE


def plan(place: Place, name: str) -> ProjectPlan:
    with place.open() as project:
        return plan_project(project.context, [project.sync(name)])


def test_what_verify_says_of_a_drift_is_what_plan_says(make: Make) -> None:
    """Before a run has followed it: what the run will do, or that it will refuse."""
    ways: dict[str, dict[str, Any]] = {
        "merge": {},
        "versions": {"mode": "append", "key": ["id"]},
        "frozen": {"drift": "freeze"},
    }
    project, place = make(
        *({**ORDERS, **way, "name": n, "target": f"warehouse:raw.{n}"} for n, way in ways.items())
    )
    place.source.execute(*CREATE, FILL)
    for name in ways:
        project.run(name)
    place.source.execute("ALTER TABLE orders ADD note text, ALTER total TYPE numeric(12,2)")
    for name in ("merge", "versions"):
        notes = plan(place, name).plans[0].target_table.notes
        assert notes
        done = tidegate(place.folder, "verify", name)
        assert done.code == FAILED, name
        assert f"changed since the last load: {'; '.join(notes)}" in done.err
        assert f"tidegate run {name}; then verify again" in done.err
        assert "cannot take" not in done.err
    (refusal,) = plan(place, "frozen").refusals
    done = tidegate(place.folder, "verify", "frozen", "--json")
    assert done.code == FAILED
    (told,) = done.document
    assert (told["error"], told["hint"]) == (refusal.message, refusal.hint)

    place.source.execute("UPDATE orders SET updated_at = now()")
    project.run("merge")
    assert verify(project, "merge").verdict is Verdict.EQUAL
    # What is in nobody's way is a note, also where a run would refuse it.
    place.source.execute(
        "ALTER TABLE orders DROP COLUMN total", "UPDATE orders SET updated_at = '2026-01-01'"
    )
    (note,) = plan(place, "merge").plans[0].target_table.notes
    assert f"note: {note}" in tidegate(place.folder, "verify", "merge").out
    # What somebody did to the target is no drift of the source.
    place.target.execute("ALTER TABLE raw.merge DROP COLUMN note")
    done = tidegate(place.folder, "verify", "merge")
    assert done.code == FAILED
    assert "raw.merge cannot take these rows: it has no column note" in done.err


def test_a_refused_drift_that_is_in_nobodys_way_is_a_note(make: Make) -> None:
    project, place = loaded(make, sync={"drift": "freeze"})
    place.source.execute("ALTER TABLE orders DROP COLUMN total")
    (refusal,) = plan(place, "orders").refusals
    found = verify(project)
    assert found.verdict is Verdict.EQUAL
    assert refusal.message in found.notes
