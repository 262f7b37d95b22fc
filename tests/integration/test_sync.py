"""A sync from end to end: what the target holds is what the source held."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.conninfo import make_conninfo

from integration.conftest import Make, MakePlace, MakeProject, Place
from integration.orders import CREATE, FILL, ORDERS, plan_one
from tidegate.core.batch import Batch, BatchKind, LoadPlan
from tidegate.core.errors import BusyError, LoadError, TidegateError
from tidegate.core.identity import load_update_id, resource_name
from tidegate.core.relation import Relation
from tidegate.jobs.job import JobRequest
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.load.engine import FINISHES_REFRESH
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connection import Connection
from tidegate.project import Project

# The others stage their rows in this process, by the code of Spark's tasks.
through_spark = pytest.mark.usefixtures("spark_copies")
COUNTED = {**ORDERS, "cursor": "c", "null_cursor": "exclude"}


def seed(place: Place, rows: int = 10) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text, total numeric(10,2),"
        " updated_at timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO orders SELECT i, 'n' || i, i, now() - interval '1 day' + i * interval '1 s'"
        f" FROM generate_series(1, {rows}) i",
    )


def count(place: Place, *values: int | None) -> None:
    """A source whose rows are numbered from 1 and have these cursors."""
    place.source.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, c bigint)")
    with place.source.connect() as session:
        for number, value in enumerate(values, 1):
            session.execute("INSERT INTO orders VALUES (%s, 'a', %s)", (number, value))


def same(place: Place, source: str = "orders", target: str = "raw.orders") -> bool:
    """Whether both tables hold the same rows, printed."""
    text = "SELECT t::text FROM {} t ORDER BY 1"
    return place.source.execute(text.format(source)) == place.target.execute(text.format(target))


def markers(place: Place) -> list[str]:
    rows = place.target.execute("SELECT update_id FROM tidegate.table_updates ORDER BY 1")
    return [row[0] for row in rows]


def ids(place: Place) -> list[int]:
    return [row[0] for row in place.target.execute("SELECT id FROM raw.orders ORDER BY 1")]


@through_spark
def test_a_sync_follows_its_source(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=3)
    seed(place)
    first = project.run("orders")
    assert (first.status, first.rows, len(first.loads)) == ("done", 10, 1)
    assert same(place)

    place.source.execute(
        "UPDATE orders SET name = 'changed', updated_at = now() WHERE id = 3",
        "INSERT INTO orders VALUES (11, 'new', 1), (12, NULL, NULL)",
    )
    second = project.run("orders")
    assert (second.rows, second.outcome.changed) == (3, 3)
    assert same(place)

    third = project.run("orders")
    assert (third.status, third.rows, third.loads) == ("done", 0, [])
    assert third.found_nothing
    assert third.watermark == second.watermark
    assert markers(place) == sorted(load.update_id for load in first.loads + second.loads)
    assert place.target.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'stg\\_%'") == 0


@through_spark
def test_many_rows_come_in_bounded_batches_that_tasks_share(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 150, "partitions": 3})
    seed(place, 350)
    place.source.execute("UPDATE orders SET name = repeat('x', 500)")
    steps: list[int] = []
    first = project.run("orders", max_batches=1, step=lambda _, load: steps.append(load.rows))
    assert not same(place)
    second = project.run("orders", step=lambda _, load: steps.append(load.rows))
    assert steps == [150, 150, 50]
    assert same(place)
    assert markers(place) == sorted(load.update_id for load in first.loads + second.loads)
    moves = project.watermark("orders").moves()
    assert [(move.version, move.rows) for move in moves] == [(3, 50), (2, 150), (1, 150)]


@through_spark
def test_a_role_that_may_read_some_columns_only_loads_those(make_project: MakeProject) -> None:
    chosen = {"columns": ["id", "updated_at"], "where": "id > 5", "partitions": 3}
    project, place = make_project({**ORDERS, **chosen}, databases=2)
    seed(place)
    role = f"reader_{uuid4().hex[:8]}"
    place.source.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT SELECT (id, updated_at) ON orders TO {role}",
        f"GRANT pg_read_all_stats TO {role}",
    )
    file = place.folder / "tidegate.toml"
    limited = make_conninfo(place.source.conninfo, user=role, password="x", passfile="none")
    text = file.read_text(encoding="utf-8")
    before, after = (f"shop = {json.dumps(one)}" for one in (place.source.conninfo, limited))
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")
    try:
        assert place.open(project.context.spark).run("orders").rows == 5
    finally:
        place.source.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_what_moves_no_rows_does_not_import_spark(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    (place.folder / "deep" / "er").mkdir(parents=True)
    code = (
        "import sys, tidegate as tg\n"
        "from tidegate.cli.main import app\n"
        "report = tg.open(sys.argv[1]).run('orders')\n"
        "assert (report.status, report.found_nothing) == ('done', True)\n"
        "for command in ('plan', 'status'):\n"
        "    app([command, '--json', '-C', sys.argv[1]], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules"
    )
    # A project is found from any folder of it.
    command = [sys.executable, "-c", code, str(place.folder / "deep" / "er")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    first, end = json.JSONDecoder().raw_decode(done.stdout)
    assert first["plans"][0]["rows"] == 0
    assert json.loads(done.stdout[end:])["syncs"][0]["sync"] == "orders"
    rows = place.control.execute(
        "SELECT status, result->>'found_nothing' FROM tidegate_control.jobs ORDER BY submitted_at"
    )
    assert rows == [("done", "false"), ("done", "true")]


def test_a_tie_larger_than_a_batch_goes_on_in_the_next_run(make_project: MakeProject) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "raise", "batch_rows": 4})
    count(place, 1, *[7] * 10, 9)
    assert [load.rows for load in project.run("orders", max_batches=2).loads] == [1, 4]
    assert project.watermark("orders").value == "1"
    assert [load.rows for load in project.run("orders").loads] == [4, 2, 1]
    assert project.watermark("orders").value == "9"
    assert same(place)


def test_a_full_refresh_repairs_the_target_in_one_commit(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 4}, databases=2)
    seed(place)
    project.run("orders")
    before = project.watermark("orders").get()
    place.source.execute("DELETE FROM orders WHERE id < 3")
    place.target.execute(
        "UPDATE raw.orders SET name = 'damaged', updated_at = now() WHERE id = 5",
        "INSERT INTO raw.orders VALUES (99, 'stray', 1, now())",
    )
    report = project.run("orders", full_refresh=True)
    assert [load.batch.kind for load in report.loads] == [BatchKind.FULL]
    assert same(place)
    after = project.watermark("orders").get()
    assert after.generation == before.generation + 1
    assert after.value == before.value
    assert project.run("orders").found_nothing
    # Of an emptied source, it empties the target.
    place.source.execute("DELETE FROM orders")
    project.run("orders", full_refresh=True)
    assert ids(place) == []
    place.source.execute("INSERT INTO orders VALUES (1, 'again', 1)")
    project.run("orders")
    assert same(place)


def test_rows_without_a_cursor_are_loaded_if_declared_so(make_project: MakeProject) -> None:
    for policy, expected in (("include", [1, 2, 3]), ("exclude", [1, 3])):
        project, place = make_project({**COUNTED, "null_cursor": policy})
        count(place, 1, None, 3)
        project.run("orders")
        assert ids(place) == expected
        assert project.run("orders").found_nothing
        assert project.run("orders", full_refresh=True).rows == len(expected)
        assert ids(place) == expected


def test_a_lookback_brings_late_rows_once(make_project: MakeProject) -> None:
    project, place = make_project({**COUNTED, "lookback": 5})
    count(place, *range(1, 11))
    project.run("orders")
    # The first look back loads what it sees; then it is known.
    assert [load.batch.kind for load in project.run("orders").loads] == [BatchKind.LOOKBACK]
    assert project.run("orders").found_nothing
    place.source.execute("INSERT INTO orders VALUES (50, 'late', 8), (51, 'too late', 3)")
    report = project.run("orders")
    assert [(load.batch.kind, load.rows, load.changed) for load in report.loads] == [
        (BatchKind.LOOKBACK, 6, 1)
    ]
    assert project.watermark("orders").value == "10"
    assert ids(place)[10:] == [50]
    assert project.run("orders").found_nothing


def test_a_lookback_stopped_halfway_is_not_taken_for_done(make_project: MakeProject) -> None:
    project, place = make_project({**COUNTED, "lookback": 9, "batch_rows": 3})
    count(place, *range(1, 11))
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (50, 'late', 10)")
    assert len(project.run("orders", max_batches=1).loads) == 1
    project.run("orders")
    assert same(place)


def test_two_projects_keep_watermarks_of_their_own(
    make_project: MakeProject, make_place: MakePlace, warm_spark: Any
) -> None:
    project, place = make_project(COUNTED, databases=2)
    count(place, *range(1, 11))
    other_sync = {**COUNTED, "target": "warehouse:raw.copied"}
    other = make_place(other_sync, beside=place, name="other").open(warm_spark)
    project.run("orders")
    assert other.watermark("orders").value is None
    other.run("orders")
    # A rewind loads again what lies above it, of this project alone.
    project.watermark("orders").rewind("7", reason="fix tax")
    place.source.execute("UPDATE orders SET name = 'fixed' WHERE id > 5")
    report = project.run("orders")
    assert (report.rows, report.outcome.changed) == (3, 3)
    assert other.run("orders").found_nothing
    project.watermark("orders").rewind(reason="again")
    assert project.run("orders").rows == 10
    assert same(place)
    assert other.watermark("orders").value == "10"


@contextmanager
def held(project: Project) -> Iterator[tuple[Connection, Jobs, UUID, WorkerIdentity]]:
    """A job of this sync, claimed by a worker that is alive until the block ends."""
    context = project.context
    context.control_id()
    jobs, worker = Jobs(context.plane), WorkerIdentity.of_this_process()
    with context.databases.connect("warehouse") as target:
        resource = resource_name(database_identity(target), Relation("raw", "orders"))
    payload = {"target": "warehouse:raw.orders", "full_refresh": False}
    request = JobRequest("shop", "sync", "orders", resource, payload)
    with context.plane.connect() as control, context.plane.connect() as own:
        Workers(context.plane).register(own, worker, "0")
        job_id = jobs.submit(control, request, "test").job_id
        assert job_id is not None
        yield control, jobs, job_id, worker


def left_by_a_dead_run(project: Project, update_id: str | None, high: int) -> str:
    """A job whose worker died after it had planned the rows up to `high`; its update_id."""
    batch = Batch(BatchKind.RANGE, None, str(high), rows=high)
    with project.context.databases.connect("shop") as source:
        identity = f"{database_identity(source)}/public.orders"
    planned = load_update_id(
        pipeline="shop.orders",
        source=identity,
        target="raw.orders",
        generation=0,
        version=0,
        batch=batch,
    )
    with held(project) as (control, jobs, job_id, worker):
        claim = jobs.claim(control, worker.worker_id, job_id, lease_seconds=3600)
        assert claim is not None
        jobs.store_plan(control, claim, LoadPlan(update_id or planned, batch, 0, 0).to_json())
    return planned


def test_the_plan_of_a_dead_run_is_kept_by_the_next_one(make_project: MakeProject) -> None:
    project, place = make_project(COUNTED, databases=2)
    count(place, *range(1, 11))
    planned = left_by_a_dead_run(project, None, 4)
    report = project.run("orders")
    assert [(load.update_id == planned, load.rows) for load in report.loads] == [
        (True, 4),
        (False, 6),
    ]
    assert same(place)
    (job,) = place.control.execute(
        "SELECT status, attempt_count, crash_count FROM tidegate_control.jobs"
    )
    assert job == ("done", 2, 1)


def test_a_plan_made_for_another_declaration_is_not_used(make_project: MakeProject) -> None:
    project, place = make_project(COUNTED, databases=2)
    count(place, *range(1, 11))
    left_by_a_dead_run(project, "shop.orders-of-another-source", 4)
    report = project.run("orders")
    assert [load.rows for load in report.loads] == [10]
    assert same(place)


def test_a_table_being_loaded_is_busy_and_its_holder_named(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS)
    seed(place)
    with held(project) as (control, jobs, job_id, worker):
        jobs.claim(control, worker.worker_id, job_id, lease_seconds=3600)
        with pytest.raises(BusyError, match=f"process {worker.pid} on {worker.host}") as raised:
            project.run("orders")
    assert raised.value.exit_code == 75
    # Its session is gone, so the next run just works.
    assert project.run("orders").rows == 10


def test_a_marker_without_its_watermark_is_told(make_project: MakeProject) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "raise", "batch_rows": 2})
    count(place, 1, 2, 3)
    project.run("orders", max_batches=1)
    place.target.execute("DELETE FROM tidegate.etl_state", "DELETE FROM raw.orders")
    with pytest.raises(LoadError, match="but no watermark says that it is loaded") as raised:
        project.run("orders")
    (update_id,) = markers(place)
    assert f"tidegate marker forget warehouse:raw.orders {update_id}" in str(raised.value)


APPEND = {**ORDERS, "mode": "append"}
REFUSE = "CREATE TRIGGER refuse BEFORE DELETE OR TRUNCATE ON raw.orders EXECUTE FUNCTION refuse()"
FUNCTION = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not now'; END$$"
)


def fail_refresh(project: Project, place: Place, gone: int) -> None:
    """A row has gone from the source, and the old rows cannot be deleted."""
    before = ids(place)
    place.source.execute(f"DELETE FROM orders WHERE id = {gone}")
    place.target.execute(REFUSE)
    with pytest.raises(TidegateError, match="not now"):
        project.run("orders", full_refresh=True)
    assert ids(place) == before
    place.target.execute("DROP TRIGGER refuse ON raw.orders")


def warnings(place: Place) -> tuple[str, ...]:
    return tuple(plan_one(place.open()).warnings)


def test_a_refresh_that_failed_is_called_off_begun_anew_or_finished(make: Make) -> None:
    project, place = make(APPEND, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.target.execute(FUNCTION)

    # A person who moves the watermark calls it off.
    fail_refresh(project, place, 1)
    project.watermark("orders").set("2026-01-01 00:10:00+00", reason="no refresh after all")
    assert FINISHES_REFRESH not in warnings(place)
    assert project.run("orders").found_nothing
    assert ids(place) == list(range(1, 11))

    # Asked for again it begins anew.
    fail_refresh(project, place, 2)
    assert project.run("orders", full_refresh=True).outcome.notes == []
    assert ids(place) == list(range(3, 11))

    # A plain run finishes it, and plan says so.
    fail_refresh(project, place, 3)
    plan = plan_one(place.open())
    assert (plan.rows, plan.batches) == (7, 1)
    assert FINISHES_REFRESH in plan.warnings
    assert project.run("orders").outcome.notes == [FINISHES_REFRESH]
    assert ids(place) == list(range(4, 11))
    assert FINISHES_REFRESH not in warnings(place)
    assert project.run("orders").found_nothing
