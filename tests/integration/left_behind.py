"""A sync's target as loads of ours, or somebody else, have left it; and a table that is held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from integration.conftest import MakePlace, Place
from integration.orders import ORDERS
from tidegate.core.identity import new_attempt_id, resource_name
from tidegate.core.relation import Endpoint
from tidegate.core.watermark import CursorType
from tidegate.jobs.control_database import Tokens
from tidegate.jobs.job import Claim, JobRequest
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.ledger.fences import Fence, Fences
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.inspection import Observations
from tidegate.postgres.catalog import database_identity


def loaded(place: Place, name: str = "orders", target: str = "warehouse:raw.orders") -> None:
    """Leave behind what two loads do."""
    context = place.open().context
    endpoint = Endpoint.parse(target)
    table, pipeline = str(endpoint.relation), f"shop.{name}"
    ledger = context.ledger("warehouse")
    ledger.ensure()
    control_id = context.control_id()
    with context.plane.connect() as control:
        token = Tokens(context.plane).next(control)
    Fences(ledger).raise_(Fence(table, control_id, token, new_attempt_id()))
    watermarks = Watermarks(ledger)
    with place.target.connect() as session, session.transaction():
        session.execute("CREATE SCHEMA IF NOT EXISTS raw")
        session.execute(f"CREATE TABLE IF NOT EXISTS {table} AS SELECT generate_series(1, 3) id")
        # Of an older Tidegate two syncs may have loaded one table.
        session.execute(
            "INSERT INTO tidegate.etl_state (pipeline_name, table_name, cursor_type)"
            " VALUES (%s, %s, 'date')",
            (pipeline, table),
        )
        for day in ("2026-11-01", "2026-11-02"):
            before = watermarks.get(session, pipeline, table)
            after = replace(
                before, value=day, version=before.version + 1, update_id=f"{pipeline}-{day}"
            )
            Markers(ledger).touch(session, f"{pipeline}-{day}", endpoint.relation)
            watermarks.move(
                session,
                before,
                after,
                cursor_type=CursorType.DATE,
                fence=1,
                attempt_id="a",
                moved_by="test",
                reason="load range",
            )
    with context.plane.connect() as control:
        Observations(context.plane, control, pipeline).record(datetime.now(UTC), "7")


def recorded(place: Place, name: str = "orders") -> dict[str, int]:
    """How much there is of a sync, by kind."""
    pipeline = f"shop.{name}"
    counts = {
        kind: place.target.value(f"SELECT count(*) FROM tidegate.{table} WHERE {column} = {value}")
        for kind, table, column, value in (
            ("watermarks", "etl_state", "pipeline_name", f"'{pipeline}'"),
            ("moves", "watermark_log", "pipeline_name", f"'{pipeline}'"),
            ("markers", "table_updates", f"update_id LIKE '{pipeline}-%' AND true", "true"),
            ("fences", "fences", "resource", "'raw.orders'"),
        )
    }
    counts["observations"] = place.control.value(
        f"SELECT count(*) FROM tidegate_control.cursor_observations WHERE pipeline = '{pipeline}'"
    )
    return counts


@contextmanager
def held(place: Place, *, alive: bool = True, name: str = "orders") -> Iterator[Claim]:
    """The table held by a run, in this process or in one that is gone."""
    context = place.open().context
    jobs = Jobs(context.plane)
    context.control_id()
    with context.plane.connect() as control, context.plane.connect() as session:
        worker = WorkerIdentity.of_this_process()
        Workers(context.plane).register(session, worker, "test")
        resource = resource_name(
            database_identity(place.target.connect()),
            Endpoint.parse("warehouse:raw.orders").relation,
        )
        request = JobRequest("shop", "sync", name, resource, {"target": "warehouse:raw.orders"})
        job_id = jobs.submit(control, request, "test").job_id
        claim = jobs.claim(control, worker.worker_id, job_id, lease_seconds=600)
        assert claim is not None
        if not alive:
            session.close()
        yield claim


ALL = {"watermarks": 1, "moves": 2, "markers": 2, "fences": 1, "observations": 1}
NOTHING = dict.fromkeys(ALL, 0)
# Rows 1 to 10 are a minute apart; the last three share a stamp.
STAMP = "'2026-01-01'::timestamptz + least(n, 8) * interval '1 minute'"
NINTH = "2026-01-01 00:07:00+00"
HIGHEST = "2026-01-01 00:08:00+00"


def fill(place: Place, loaded: str = "n <= 9", unique: bool = True) -> None:
    """Ten orders in the source; those that `loaded` names are in the target."""
    columns = "id bigint, total numeric(10,2), updated_at timestamptz NOT NULL DEFAULT now()"
    rows = f"SELECT n, n, {STAMP} FROM generate_series(1, 10) n"
    place.source.execute(
        f"CREATE TABLE orders ({columns}, PRIMARY KEY (id))",
        "CREATE INDEX ON orders (updated_at)",
        f"INSERT INTO orders {rows}",
    )
    place.target.execute(
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.orders ({columns}{', PRIMARY KEY (id)' if unique else ''})",
        f"INSERT INTO raw.orders {rows} WHERE {loaded}",
    )


def filled_place(make_place: MakePlace, loaded: str = "n <= 9", **options: object) -> Place:
    sync = {**ORDERS, **{key: value for key, value in options.items() if key != "unique"}}
    place = make_place(sync, databases=3)
    fill(place, loaded, unique=bool(options.get("unique", True)))
    return place


def state(place: Place) -> list[tuple[object, ...]]:
    """What the ledger says of the sync; nothing where there is no ledger."""
    if not place.target.value("SELECT to_regclass('tidegate.etl_state') IS NOT NULL"):
        return []
    return place.target.execute(
        "SELECT high_watermark, version, rows_synced, update_id FROM tidegate.etl_state"
    )
