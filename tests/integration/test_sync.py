"""A sync from end to end: what the target holds is what the source held."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

import tidegate as tg
from integration.conftest import MakePlace, MakeProject, Place
from tidegate.control.jobs import Jobs
from tidegate.control.workers import Worker, Workers
from tidegate.errors import BusyError, LoadError
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.identity import load_update_id, resource_name
from tidegate.model.job import JobRequest
from tidegate.model.load import LoadPlan
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import database_identity
from tidegate.project import Project

pytestmark = pytest.mark.usefixtures("spark_copies")

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "updated_at"}
COUNTED = {**ORDERS, "cursor": "c"}


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


def left_in_staging(place: Place) -> int:
    found: int = place.target.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'stg\\_%'")
    return found


@pytest.mark.parametrize("databases", [1, 2, 3])
def test_a_sync_follows_its_source_on_one_two_and_three_databases(
    make_project: MakeProject, databases: int
) -> None:
    project, place = make_project(ORDERS, databases=databases)
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
    assert left_in_staging(place) == 0


def test_a_run_that_finds_nothing_is_recorded_and_does_not_start_spark(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    code = (
        "import sys, tidegate as tg\n"
        f"report = tg.open({str(place.folder)!r}).run('orders')\n"
        "print(report.status, report.found_nothing, 'pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["done", "True", "False"]
    rows = place.control.execute(
        "SELECT status, result->>'found_nothing' FROM tidegate_control.jobs ORDER BY submitted_at"
    )
    assert rows == [("done", "false"), ("done", "true")]


def test_many_rows_come_in_bounded_batches_each_with_its_marker(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 10})
    seed(place, 35)
    steps: list[int] = []
    report = project.run("orders", step=lambda _, load: steps.append(load.rows))
    assert steps == [10, 10, 10, 5]
    assert same(place)
    assert markers(place) == sorted(load.update_id for load in report.loads)
    moves = project.watermark("orders").moves()
    assert [move.rows for move in moves] == [5, 10, 10, 10]
    assert [move.version for move in moves] == [4, 3, 2, 1]


def test_max_batches_stops_a_run_and_the_next_goes_on(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 10})
    seed(place, 35)
    assert project.run("orders", max_batches=2).rows == 20
    assert not same(place)
    assert project.run("orders").rows == 15
    assert same(place)


def test_a_tie_larger_than_a_batch_goes_on_in_the_next_run(make_project: MakeProject) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "raise", "batch_rows": 4})
    count(place, 1, *[7] * 10, 9)
    assert [load.rows for load in project.run("orders", max_batches=2).loads] == [1, 4]
    assert project.watermark("orders").value == "1"
    assert [load.rows for load in project.run("orders").loads] == [4, 2, 1]
    assert project.watermark("orders").value == "9"
    assert same(place)


def test_a_batch_is_shared_out_among_tasks(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "partitions": 3})
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, pad text, updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT i, repeat('x', 500), now() - i * interval '1 s'"
        " FROM generate_series(1, 300) i",
    )
    assert project.run("orders").rows == 300
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


def test_a_full_refresh_takes_rows_without_a_cursor_with_it(make_project: MakeProject) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "include"})
    count(place, None, None)
    assert project.run("orders").rows == 2
    assert project.run("orders").found_nothing
    assert project.run("orders", full_refresh=True).rows == 2
    assert same(place)


def test_a_full_refresh_of_an_emptied_source_empties_the_target(
    make_project: MakeProject,
) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "exclude"})
    count(place, 1, 2)
    project.run("orders")
    place.source.execute("DELETE FROM orders")
    project.run("orders", full_refresh=True)
    assert same(place)
    place.source.execute("INSERT INTO orders VALUES (1, 'again', 1)")
    project.run("orders")
    assert same(place)


def test_rows_without_a_cursor_are_included_or_excluded_as_declared(
    make_project: MakeProject,
) -> None:
    for policy, expected in (("include", [1, 2, 3]), ("exclude", [1, 3])):
        project, place = make_project({**COUNTED, "null_cursor": policy})
        count(place, 1, None, 3)
        project.run("orders")
        assert place.target.execute("SELECT id FROM raw.orders ORDER BY 1") == [
            (number,) for number in expected
        ]
        assert project.run("orders").found_nothing


def test_a_lookback_brings_late_rows_once_and_is_skipped_when_nothing_changed(
    make_project: MakeProject,
) -> None:
    sync = {**COUNTED, "null_cursor": "exclude", "lookback": 5}
    project, place = make_project(sync)
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
    assert place.target.execute("SELECT id FROM raw.orders WHERE id > 40") == [(50,)]
    assert project.run("orders").found_nothing


def test_a_lookback_stopped_halfway_is_not_taken_for_done(make_project: MakeProject) -> None:
    project, place = make_project(
        {**COUNTED, "null_cursor": "exclude", "lookback": 9, "batch_rows": 3}
    )
    count(place, *range(1, 11))
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (50, 'late', 10)")
    assert len(project.run("orders", max_batches=1).loads) == 1
    project.run("orders")
    assert same(place)


def test_two_projects_keep_watermarks_of_their_own(
    make_project: MakeProject, make_place: MakePlace, warm_spark: Any
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    other_sync = {**ORDERS, "target": "warehouse:raw.copied"}
    other = make_place(other_sync, beside=place, name="other").open(warm_spark)
    project.run("orders")
    assert other.watermark("orders").value is None
    other.run("orders")
    project.watermark("orders").rewind(reason="again")
    assert other.watermark("orders").value is not None
    assert project.run("orders").rows == 10
    assert other.run("orders").found_nothing
    assert same(place)
    assert same(place, target="raw.copied")


def test_a_rewind_loads_again_what_lies_above_it(make_project: MakeProject) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "exclude"})
    count(place, *range(1, 11))
    project.run("orders")
    project.watermark("orders").rewind("7", reason="fix tax")
    place.source.execute("UPDATE orders SET name = 'fixed' WHERE id > 5")
    report = project.run("orders")
    assert (report.rows, report.outcome.changed) == (3, 3)
    assert len(markers(place)) == 2


def test_an_open_transaction_holds_the_sync_back_and_is_named(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    with place.source.connect(application_name="a long report") as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (11, 'late', 1)")
        place.source.execute("INSERT INTO orders VALUES (12, 'early', 1)")
        report = project.run("orders")
        assert report.rows == 10
        assert report.outcome.horizon is not None
        assert "a long report" in str(report.outcome.horizon.held_by)
        late.execute("COMMIT")
    assert project.run("orders").rows == 2
    assert same(place)


def _left_by_a_dead_run(project: Project, place: Place, update_id: str | None, high: int) -> str:
    """A job whose worker died after it had planned the rows up to `high`; its update_id."""
    context = project.context
    context.control_id()
    jobs, worker = Jobs(context.plane), Worker.of_this_process()
    batch = Batch(BatchKind.RANGE, None, str(high), rows=high)
    relation = Relation("raw", "orders")
    with context.databases.connect("shop") as source:
        identity = f"{database_identity(source)}/public.orders"
    with context.databases.connect("warehouse") as target:
        resource = resource_name(database_identity(target), relation)
    planned = load_update_id(
        pipeline="shop.orders",
        source=identity,
        target=str(relation),
        generation=0,
        version=0,
        batch=batch,
    )
    payload = {"target": "warehouse:raw.orders", "full_refresh": False}
    with context.plane.connect() as control, context.plane.connect() as own:
        Workers(context.plane).register(own, worker, "0")
        job_id = jobs.submit(
            control, JobRequest("shop", "sync", "orders", resource, payload), "test"
        ).job_id
        assert job_id is not None
        claim = jobs.claim(control, worker.worker_id, job_id, lease_seconds=3600)
        assert claim is not None
        jobs.store_plan(control, claim, LoadPlan(update_id or planned, batch, 0, 0).to_json())
    return planned


def test_the_next_run_takes_over_from_a_dead_one_and_keeps_its_plan(
    make_project: MakeProject,
) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "exclude"}, databases=2)
    count(place, *range(1, 11))
    planned = _left_by_a_dead_run(project, place, None, 4)
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
    project, place = make_project({**COUNTED, "null_cursor": "exclude"}, databases=2)
    count(place, *range(1, 11))
    _left_by_a_dead_run(project, place, "shop.orders-of-another-source", 4)
    report = project.run("orders")
    assert [load.rows for load in report.loads] == [10]
    assert same(place)


def test_a_table_that_is_being_loaded_is_busy_and_its_holder_named(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS)
    seed(place)
    context = project.context
    context.control_id()
    jobs, worker = Jobs(context.plane), Worker.of_this_process()
    with context.databases.connect("warehouse") as target:
        resource = resource_name(database_identity(target), Relation("raw", "orders"))
    with context.plane.connect() as control, context.plane.connect() as own:
        Workers(context.plane).register(own, worker, "0")
        job_id = jobs.submit(control, JobRequest("shop", "sync", "orders", resource), "test").job_id
        assert job_id is not None
        jobs.claim(control, worker.worker_id, job_id, lease_seconds=3600)
        with pytest.raises(BusyError, match=f"process {worker.pid} on {worker.host}") as raised:
            project.run("orders")
    assert raised.value.exit_code == 75
    # Its session is gone, so the next run just works.
    assert project.run("orders").rows == 10


def test_the_result_can_be_opened_from_any_folder_of_the_project(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    (place.folder / "deep" / "er").mkdir(parents=True)
    project = tg.open(place.folder / "deep" / "er")
    assert project.name == "shop"
    assert json.loads(json.dumps(sorted(project.syncs))) == ["orders"]


def test_a_marker_without_its_watermark_is_told_instead_of_met_for_ever(
    make_project: MakeProject,
) -> None:
    project, place = make_project({**COUNTED, "null_cursor": "raise", "batch_rows": 2})
    count(place, 1, 2, 3)
    project.run("orders", max_batches=1)
    place.target.execute("DELETE FROM tidegate.etl_state", "DELETE FROM raw.orders")
    with pytest.raises(LoadError, match="but no watermark says that it is loaded") as raised:
        project.run("orders")
    (update_id,) = markers(place)
    assert f"tidegate marker forget warehouse:raw.orders {update_id}" in str(raised.value)


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
