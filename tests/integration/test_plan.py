"""`plan` tells what a run would do, refuses what is unsafe, and leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from conftest import MakeDatabase
from integration.conftest import MakePlace, MakeProject
from integration.here import tidegate
from integration.orders import CREATE, FILL, ORDERS, contents, open_transaction, plan_all, plan_one
from tidegate.config import SparkSettings
from tidegate.core.batch import BatchKind
from tidegate.core.errors import DeclarationError
from tidegate.core.watermark import Guarantee
from tidegate.jobs.job import JobRequest
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.load.planner import expected_parallelism, plan_project
from tidegate.load.sources import reading
from tidegate.load.sources.reading import count_rows, read_only
from tidegate.load.sources.resolve import resolve_source
from tidegate.project import Project


def test_planning_writes_nothing_and_knows_what_a_run_would_do(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=3, installed=False)
    place.source.execute(*CREATE, FILL)
    before = contents(place.source, place.target, place.control)
    plan = plan_one(place.open())
    assert contents(place.source, place.target, place.control) == before
    assert place.control.value("SELECT count(*) FROM pg_namespace WHERE nspname ~ 'tidegate'") == 0
    assert (plan.source, plan.target, plan.mode) == (
        "shop:public.orders",
        "warehouse:raw.orders",
        "merge",
    )
    assert (plan.key.columns, plan.key.declared, plan.key.proven) == (("id",), False, True)
    assert plan.cursor is not None
    assert (plan.cursor.name, plan.cursor.indexed) == ("updated_at", True)
    assert (plan.watermark, plan.generation, plan.version) == (None, 0, 0)
    assert (plan.rows, plan.rows_are_exact, plan.batches) == (10, True, 1)
    assert plan.next_batch is not None
    assert plan.next_batch.high == "2026-01-01 00:10:00+00"
    assert plan.target_table.create == (
        '"id" bigint NOT NULL',
        '"total" numeric(10,2)',
        '"updated_at" timestamp with time zone NOT NULL',
        'PRIMARY KEY ("id")',
    )
    assert plan.publish is not None
    assert plan.publish.startswith('INSERT INTO "raw"."orders"')
    assert plan.lock.free
    assert plan.lock.resource.endswith("/raw.orders")
    assert plan.expected_seconds is None

    project.run("orders")
    place.source.execute("UPDATE orders SET total = 0, updated_at = now() WHERE id <= 3")
    before = contents(place.source, place.target, place.control)
    plan = plan_one(place.open())
    assert contents(place.source, place.target, place.control) == before
    assert (plan.watermark, plan.rows) == ("2026-01-01 00:10:00+00", 3)
    assert plan.target_table.exists
    assert plan.publish is not None
    assert "ON CONFLICT" in plan.publish
    assert plan.expected_seconds is not None
    assert plan.expected_seconds > 0
    # An open transaction is named, and holds the horizon back.
    place.source.execute("UPDATE orders SET updated_at = '2026-01-01'")
    with open_transaction(place.source, "INSERT INTO orders VALUES (11, 1)"):
        place.source.execute("INSERT INTO orders VALUES (12, 2)")
        plan = plan_one(place.open())
    assert plan.held_by is not None
    assert "late writer" in plan.held_by.what
    assert (plan.rows, plan.next_batch) == (0, None)


def test_planning_an_integer_cursor_records_no_observation(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "cursor": "id"})
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (11, 1)")
    before = contents(place.control)
    plan = plan_one(place.open())
    assert contents(place.control) == before
    assert (plan.rows, plan.horizon) == (1, "11")


EXACT, BOUNDED = Guarantee.EXACT, Guarantee.BOUNDED
STAMPS = {
    "a": ("timestamptz NOT NULL DEFAULT now()", EXACT, "DEFAULT now()"),
    "b": (
        "timestamptz NOT NULL DEFAULT clock_timestamp()",
        EXACT,
        "DEFAULT clock_timestamp()",
    ),
    "c": ("timestamptz NOT NULL", BOUNDED, "it has no default"),
    "d": ("timestamptz NOT NULL DEFAULT '2026-01-01'", BOUNDED, "not the source's clock"),
    "e": (
        "bigint NOT NULL GENERATED ALWAYS AS IDENTITY",
        EXACT,
        "drawn from sequence public.e_at_seq (identity)",
    ),
    "f": ("bigserial", EXACT, "drawn from sequence public.f_at_seq (default)"),
    "g": ("bigint NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 20)", BOUNDED, "CACHE 20"),
    "h": ("bigint NOT NULL", BOUNDED, "it has no default"),
}


def test_the_guarantee_follows_from_who_stamps_the_cursor(make_place: MakePlace) -> None:
    syncs = [
        {"name": name, "source": f"shop:{name}", "target": f"warehouse:raw.{name}", "cursor": "at"}
        for name in STAMPS
    ]
    looking_back = {**syncs[2], "name": "back", "target": "warehouse:back", "lookback": "9 minutes"}
    place = make_place(*syncs, looking_back)
    for name, (column, _, _) in STAMPS.items():
        place.source.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, at {column})")
    found = {plan.sync: plan for plan in plan_all(place.open()).plans}
    late = "rows that commit late would be missed"
    for name, (_, guarantee, words) in STAMPS.items():
        plan = found[name]
        assert plan.guarantee is guarantee, name
        assert words in plan.because
        assert any(late in text for text in plan.warnings) is (guarantee is BOUNDED), name
        assert plan.cursor is not None
        assert plan.cursor.indexed is False
        assert any("leads with at" in text for text in plan.warnings)
    # A lookback is named where the guarantee rests on it.
    assert "lookback = 9 minutes" in found["back"].because
    assert not any("late" in text for text in found["back"].warnings)


def test_a_role_that_sees_no_transactions_gets_the_settled_guarantee(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    role = f"reader_{place.folder.parent.name[-12:].lower().replace('-', '_')}"
    place.source.execute(
        *CREATE,
        FILL,
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
        f"GRANT SELECT ON orders TO {role}",
    )
    reader = make_conninfo(place.source.conninfo, user=role, password="secret")
    try:
        plan = plan_one(Project.open(place.folder, **{"connections.shop": reader}))
    finally:
        place.source.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert plan.guarantee is Guarantee.SETTLED
    assert "GRANT pg_read_all_stats" in plan.because


def test_the_planned_batches_are_those_that_a_run_loads(make_project: MakeProject) -> None:
    sync = {**ORDERS, "batch_rows": 6, "lookback": "3 minutes", "null_cursor": "include"}
    project, place = make_project(sync)
    place.source.execute(*CREATE, "ALTER TABLE orders ALTER updated_at DROP NOT NULL", FILL)
    place.source.execute("INSERT INTO orders VALUES (100, 1, NULL)")
    kinds = []
    for _ in range(5):
        plan = plan_one(place.open())
        report = project.run("orders", max_batches=1)
        loaded = report.outcome.loads[0].batch if report.outcome.loads else None
        assert plan.next_batch == loaded
        if loaded is not None:
            kinds.append(loaded.kind)
    assert set(kinds) == {BatchKind.RANGE, BatchKind.LOOKBACK, BatchKind.NULLS}


def test_a_tie_is_counted_from_where_it_stopped(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 3, "partitions": 3})
    place.source.execute(
        *CREATE, "INSERT INTO orders SELECT n, n, '2026-01-01' FROM generate_series(1, 8) n"
    )
    project.run("orders", max_batches=1)
    plan = plan_one(place.open())
    assert (plan.rows, plan.batches) == (5, 2)
    assert plan.next_batch is not None
    assert plan.next_batch.key_low == ("3",)
    project.run("orders")
    place.source.execute(FILL.replace("SELECT n,", "SELECT n + 10,"))
    plan = plan_one(place.open())
    assert plan.partitions == len(plan.statements) == 3
    read = [row[0] for one in plan.statements for row in place.source.execute(one)]
    assert sorted(read) == [11, 12, 13]


def test_a_holder_of_the_lock_is_told_from_a_dead_one(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    resource = plan_one(place.open()).lock.resource
    plane = project.context.plane
    jobs, worker = Jobs(plane), WorkerIdentity.of_this_process()
    with plane.connect() as control, plane.connect() as session:
        Workers(plane).register(session, worker, "test")
        request = JobRequest("shop", "sync", "orders", resource)
        job_id = jobs.submit(control, request, "test").job_id
        assert job_id is not None
        pending = plan_one(place.open()).lock
        assert jobs.claim(control, worker.worker_id, job_id, lease_seconds=60) is not None
        held = plan_one(place.open()).lock
        session.execute("SELECT pg_advisory_unlock_all()")
        gone = plan_one(place.open()).lock
    assert (pending.free, pending.note) == (True, "nobody works on it; the next run takes it up")
    assert (held.free, held.note) == (False, None)
    assert str(job_id) in str(held.holder)
    assert (gone.free, gone.note) == (True, "its process is gone; the next run takes over")


def test_a_transformation_is_planned_without_running_it(make_place: MakePlace) -> None:
    place = make_place(
        pipelines="import tidegate as tg\n"
        '@tg.sync(source="shop:orders", target="warehouse:raw.orders", cursor="updated_at")\n'
        "def orders(df):\n    raise AssertionError('not now')\n"
    )
    place.source.execute(*CREATE, FILL)
    plan = plan_one(place.open())
    assert (plan.transformed, plan.publish, plan.rows) == (True, None, 10)
    assert any("when the transformation runs" in text for text in plan.warnings)


def test_a_count_that_takes_long_gives_way_to_an_estimate(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = {**ORDERS, "source": "shop:public.slow", "key": ["id"], "null_cursor": "exclude"}
    place = make_place(view)
    place.source.execute(*CREATE, FILL, "ANALYZE orders")
    place.source.execute("CREATE VIEW slow AS SELECT * FROM orders WHERE pg_sleep(1) IS NOT NULL")
    monkeypatch.setattr(reading, "_COUNT_MILLISECONDS", 20)
    project = place.open()
    with project.connect("shop") as connection:
        source = resolve_source(connection, project.sync("orders"))
        with read_only(connection):
            rows, exact = count_rows(connection, source, sql.SQL("true"))
    assert exact is False
    assert 1 <= rows <= 10


def test_the_parallelism_is_told_from_the_settings() -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"master": "local"}, 1),
        ({"master": "local[3]"}, 3),
        ({"master": "local-cluster[2,3,1024]"}, 6),
        ({"master": "spark://host:7077", "conf": {"spark.default.parallelism": "16"}}, 16),
        ({"remote": "sc://host"}, 4),
    ]
    for settings, tasks in cases:
        assert expected_parallelism(SparkSettings(**settings)) == tasks


def refusal(project: Project) -> str:
    found = plan_project(project.context, [project.syncs["orders"]])
    assert found.plans == ()
    assert found.exit_code == 2
    return f"{found.refusals[0].message} / {found.refusals[0].hint}"


def test_every_refusal_is_listed_and_the_rest_is_planned(make_place: MakePlace) -> None:
    place = make_place(
        {**ORDERS, "name": "good"},
        {**ORDERS, "name": "no_table", "source": "shop:public.ordres", "target": "warehouse:a"},
        {**ORDERS, "name": "no_column", "cursor": "update_at", "target": "warehouse:b"},
        {**ORDERS, "name": "no_mode", "changes": "cdc", "target": "warehouse:c"},
        {**ORDERS, "name": "gaps", "target": "warehouse:d", "null_cursor": "raise", "cursor": "at"},
    )
    place.source.execute(
        *CREATE, "ALTER TABLE orders ADD at timestamptz", "INSERT INTO orders VALUES (1, 1)"
    )
    done = tidegate(place.folder, "plan")
    assert done.code == 2
    assert done.out.startswith("good\n")
    assert "no_table: table public.ordres does not exist" in done.err
    assert "did you mean public.orders?" in done.err
    assert "no_column" in done.err
    assert "no_mode" in done.err
    assert "1 rows of public.orders have no at" in done.err
    done = tidegate(place.folder, "plan", "god")
    assert done.code == 2
    assert "did you mean good?" in done.err
    done = tidegate(place.folder.parent, "plan")
    assert done.code == 2
    assert "tidegate init" in done.err


def test_a_key_without_a_unique_index_is_looked_at_whole(make_place: MakePlace) -> None:
    place = make_place({**ORDERS, "key": ["total"]})
    place.source.execute(*CREATE, FILL)
    plan = plan_one(place.open())
    assert (plan.key.declared, plan.key.proven) == (True, False)
    place.source.execute("INSERT INTO orders VALUES (11, 1)")
    assert "the key (total) of public.orders is not unique: one occurs 2 times" in refusal(
        place.open()
    )


def test_a_load_that_cannot_go_on_is_refused(
    make_project: MakeProject, make_place: MakePlace, make_database: MakeDatabase
) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    other = make_place({**ORDERS, "cursor": "id"}, beside=place)
    assert "its cursor was updated_at and is now id" in refusal(other.open())
    with pytest.raises(DeclarationError, match="its cursor was updated_at and is now id"):
        other.open().run("orders")
    assert project.watermark("orders").value == "2026-01-01 00:10:00+00"
    theirs = Project.open(place.folder, **{"project.control": make_database("other")})
    assert "--take-over" in refusal(theirs)
    table = "ALTER TABLE raw.orders"
    for change, words in (
        (f"{table} DROP CONSTRAINT orders_pkey", "no unique index on (id)"),
        (f"{table} ADD PRIMARY KEY (id), ALTER total TYPE int", "its column total is integer"),
        (f"{table} DROP COLUMN total", "it has no column total"),
        ("TRUNCATE raw.orders", "raw.orders is empty, but 10 rows are recorded in it"),
        ("DROP TABLE raw.orders", "raw.orders does not exist, but 10 rows are recorded in it"),
    ):
        place.target.execute(change)
        assert words in refusal(place.open())
