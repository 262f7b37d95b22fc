"""`plan` tells what a run would do, refuses what is unsafe, and leaves no trace."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from integration.orders import CREATE, FILL, ORDERS, contents, open_transaction, plan_one
from tidegate.control.jobs import Jobs
from tidegate.control.workers import Worker, Workers
from tidegate.model.batch import BatchKind
from tidegate.model.cursor import Guarantee
from tidegate.model.job import JobRequest
from tidegate.pipeline.declaration import resolve_source
from tidegate.pipeline.plan import expected_parallelism
from tidegate.project import Project
from tidegate.settings import SparkSettings
from tidegate.sources import reading
from tidegate.sources.reading import count_rows, read_only


def test_a_project_that_never_ran_is_planned_without_making_anything(make_place: Any) -> None:
    place = make_place(ORDERS, databases=3)
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


def test_planning_after_a_run_writes_nothing_and_knows_what_is_left(make_project: Any) -> None:
    project, place = make_project(ORDERS, databases=3)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("UPDATE orders SET total = 0, updated_at = now() WHERE id <= 3")
    before = contents(place.source, place.target, place.control)
    plan = plan_one(place.open())
    assert contents(place.source, place.target, place.control) == before
    assert plan.watermark == "2026-01-01 00:10:00+00"
    assert plan.rows == 3
    assert plan.target_table.exists
    assert plan.publish is not None
    assert "ON CONFLICT" in plan.publish
    assert plan.expected_seconds is not None
    assert plan.expected_seconds > 0


def test_planning_an_integer_cursor_records_no_observation(make_project: Any) -> None:
    project, place = make_project({**ORDERS, "cursor": "id"})
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (11, 1)")
    before = contents(place.control)
    plan = plan_one(place.open())
    assert contents(place.control) == before
    assert (plan.rows, plan.horizon) == (1, "11")


def test_the_command_imports_no_pyspark_and_prints_json(make_place: Any) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE, FILL)
    code = (
        "import sys; from tidegate.cli.main import app\n"
        "for command in ('plan', 'status'):\n"
        "    app([command, '--json', '-C', sys.argv[1]], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place.folder)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, end = json.JSONDecoder().raw_decode(done.stdout)
    assert first["plans"][0]["rows"] == 10
    assert json.loads(done.stdout[end:])["syncs"][0]["state"] == "never ran"


@pytest.mark.parametrize(
    ("column", "cursor", "guarantee", "words"),
    [
        ("at timestamptz NOT NULL DEFAULT now()", "at", Guarantee.EXACT, "DEFAULT now()"),
        (
            "at timestamptz NOT NULL DEFAULT clock_timestamp()",
            "at",
            Guarantee.EXACT,
            "DEFAULT clock_timestamp()",
        ),
        ("at timestamptz NOT NULL", "at", Guarantee.BOUNDED, "it has no default"),
        (
            "at timestamptz NOT NULL DEFAULT '2026-01-01'",
            "at",
            Guarantee.BOUNDED,
            "not the source's clock",
        ),
        (
            "n bigint NOT NULL GENERATED ALWAYS AS IDENTITY",
            "n",
            Guarantee.EXACT,
            "drawn from sequence public.orders_n_seq (identity)",
        ),
        ("n bigserial", "n", Guarantee.EXACT, "drawn from sequence public.orders_n_seq (default)"),
        (
            "n bigint NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 20)",
            "n",
            Guarantee.BOUNDED,
            "CACHE 20",
        ),
        ("n bigint NOT NULL", "n", Guarantee.BOUNDED, "it has no default"),
    ],
)
def test_the_guarantee_follows_from_who_stamps_the_cursor(
    make_place: Any, column: str, cursor: str, guarantee: Guarantee, words: str
) -> None:
    place = make_place({**ORDERS, "cursor": cursor})
    place.source.execute(f"CREATE TABLE orders (id bigint PRIMARY KEY, {column})")
    plan = plan_one(place.open())
    assert plan.guarantee is guarantee
    assert words in plan.because
    missed = [text for text in plan.warnings if "rows that commit late would be missed" in text]
    assert bool(missed) is (guarantee is not Guarantee.EXACT)


def test_a_lookback_is_named_where_the_guarantee_rests_on_it(make_place: Any) -> None:
    place = make_place({**ORDERS, "lookback": "10 minutes"})
    place.source.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL)"
    )
    plan = plan_one(place.open())
    assert "lookback = 10 minutes" in plan.because
    assert not any("late" in text for text in plan.warnings)


def test_a_role_that_sees_no_transactions_gets_the_settled_guarantee(
    make_place: Any, server: Any
) -> None:
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


def test_an_open_transaction_is_named_and_holds_the_horizon_back(make_place: Any) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE)
    with open_transaction(place.source, "INSERT INTO orders VALUES (1, 1)"):
        place.source.execute("INSERT INTO orders VALUES (2, 2)")
        plan = plan_one(place.open())
    assert plan.held_by is not None
    assert "late writer" in plan.held_by.what
    assert plan.rows == 0
    assert plan.next_batch is None


def test_a_cursor_without_an_index_is_warned_about(make_place: Any) -> None:
    place = make_place(ORDERS)
    place.source.execute(CREATE[0])
    plan = plan_one(place.open())
    assert plan.cursor.indexed is False
    assert any("no index of public.orders leads with updated_at" in one for one in plan.warnings)


def test_the_planned_batches_are_those_that_a_run_loads(make_project: Any) -> None:
    sync = {**ORDERS, "batch_rows": 4, "lookback": "3 minutes", "null_cursor": "include"}
    project, place = make_project(sync)
    place.source.execute(*CREATE, "ALTER TABLE orders ALTER updated_at DROP NOT NULL", FILL)
    place.source.execute("INSERT INTO orders VALUES (100, 1, NULL)")
    kinds = []
    for _ in range(7):
        plan = plan_one(place.open())
        report = project.run("orders", max_batches=1)
        loaded = report.outcome.loads[0].batch if report.outcome.loads else None
        assert plan.next_batch == loaded
        if loaded is not None:
            kinds.append(loaded.kind)
    assert set(kinds) == {BatchKind.RANGE, BatchKind.LOOKBACK, BatchKind.NULLS}


def test_a_tie_larger_than_a_batch_is_counted_from_where_it_stopped(make_project: Any) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 3})
    place.source.execute(
        *CREATE, "INSERT INTO orders SELECT n, n, '2026-01-01' FROM generate_series(1, 8) n"
    )
    project.run("orders", max_batches=1)
    plan = plan_one(place.open())
    assert (plan.rows, plan.batches) == (5, 2)
    assert plan.next_batch is not None
    assert plan.next_batch.key_low == ("3",)


def test_the_shown_statements_read_exactly_the_next_batch(make_place: Any) -> None:
    place = make_place({**ORDERS, "batch_rows": 7, "partitions": 3})
    place.source.execute(*CREATE, FILL)
    plan = plan_one(place.open())
    assert plan.partitions == len(plan.statements) == 3
    read = [row[0] for one in plan.statements for row in place.source.execute(one)]
    assert sorted(read) == [1, 2, 3, 4, 5, 6, 7]


def test_the_holder_of_the_lock_is_named_and_a_dead_one_told_apart(make_project: Any) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    resource = plan_one(place.open()).lock.resource
    plane = project.context.plane
    jobs, worker = Jobs(plane), Worker.of_this_process()
    with plane.connect() as control, plane.connect() as session:
        Workers(plane).register(session, worker, "test")
        request = JobRequest("shop", "sync", "orders", resource)
        job_id = jobs.submit(control, request, "test").job_id
        pending = plan_one(place.open()).lock
        assert jobs.claim(control, worker.worker_id, job_id, lease_seconds=60) is not None
        held = plan_one(place.open()).lock
        session.execute("SELECT pg_advisory_unlock_all()")
        gone = plan_one(place.open()).lock
    assert (pending.free, pending.note) == (True, "nobody works on it; the next run takes it up")
    assert (held.free, held.note) == (False, None)
    assert str(job_id) in str(held.holder)
    assert (gone.free, gone.note) == (True, "its process is gone; the next run takes over")


def test_a_transformation_is_planned_without_running_it(make_place: Any) -> None:
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
    make_place: Any, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({"master": "local"}, 1),
        ({"master": "local[3]"}, 3),
        ({"master": "local-cluster[2,3,1024]"}, 6),
        ({"master": "spark://host:7077", "conf": {"spark.default.parallelism": "16"}}, 16),
        ({"remote": "sc://host"}, 4),
    ],
)
def test_the_parallelism_is_told_from_the_settings(settings: dict[str, Any], tasks: int) -> None:
    assert expected_parallelism(SparkSettings(**settings)) == tasks
