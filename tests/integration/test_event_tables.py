"""The tables of events: made once, by whoever comes first, and following the model."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from psycopg import errors as pg

from integration.conftest import Database
from integration.event_models import field, small_events, small_model
from tidegate.errors import DeclarationError
from tidegate.model.event_model import Field, FieldType
from tidegate.pipeline.event_tables import ensure_tables
from tidegate.postgres.connect import Connection, connect

TABLES = (
    "SELECT table_schema || '.' || table_name FROM information_schema.tables"
    " WHERE table_schema IN ('public', 'warehouse', 'analytics', 'tidegate') ORDER BY 1"
)


@pytest.fixture
def session(database: Database) -> Connection:
    return connect(database.conninfo, name="test")


def test_everything_is_made_and_a_second_time_nothing(
    session: Connection, database: Database
) -> None:
    made = ensure_tables(session, small_events())
    assert {"public.raw_events", "warehouse.fact_events", "schema analytics"} <= set(made)
    assert [row[0] for row in database.execute(TABLES)] == [
        "analytics.mv_refresh_log",
        "public.raw_events",
        "tidegate.event_batches",
        "tidegate.event_changes",
        "warehouse.dim_places",
        "warehouse.dim_users",
        "warehouse.fact_events",
    ]
    assert database.execute("SELECT id, changes FROM tidegate.event_changes") == [(1, 0)]
    assert ensure_tables(session, small_events()) == []


def test_a_column_that_the_model_gains_is_added_empty_and_one_it_loses_may_be(
    session: Connection, database: Database
) -> None:
    ensure_tables(session, small_events())
    database.execute("SELECT warehouse.create_monthly_partition('2026-11-17')")
    database.execute(
        "INSERT INTO warehouse.fact_events (event_hash, occurred_at, page) VALUES"
        " ('a', '2026-11-01Z', 'home')"
    )
    occurred, _, cost = small_model().columns
    gained = small_model(columns=(occurred, cost, field("kind", "$.kind", required=True)))
    made = ensure_tables(session, small_events(gained))
    assert made == ["warehouse.fact_events.kind", "warehouse.fact_events.page may be empty"]
    database.execute(
        "INSERT INTO warehouse.fact_events (event_hash, occurred_at, kind) VALUES"
        " ('b', '2026-11-01Z', 'click')"
    )
    assert database.execute(
        "SELECT page, kind FROM warehouse.fact_events_2026_11 ORDER BY page"
    ) == [("home", None), (None, "click")]
    assert ensure_tables(session, small_events(gained)) == []


def _other(column: str, type_: FieldType) -> tuple[Field, ...]:
    return tuple(
        replace(one, type=type_) if one.name == column else one for one in small_model().columns
    )


def test_a_changed_type_or_key_is_refused_by_name(session: Connection) -> None:
    model = small_model()
    ensure_tables(session, small_events(model))
    with pytest.raises(DeclarationError, match=r"fact_events.page is text; the model says bigint"):
        ensure_tables(session, small_events(small_model(columns=_other("page", FieldType.BIGINT))))
    users, places = model.dimensions
    keyed = replace(users, key=(field("account", "$.user.id"),))
    with pytest.raises(DeclarationError, match=r"key of warehouse.dim_users is \(user_id\)"):
        ensure_tables(session, small_events(small_model(dimensions=(keyed, places))))
    other = field("seen_at", "$.seen", FieldType.TIMESTAMPTZ, required=True)
    cut = small_model(columns=(*model.columns, other), partition_column="seen_at")
    with pytest.raises(DeclarationError, match="partitioned by occurred_at"):
        ensure_tables(session, small_events(cut))


def test_a_table_of_another_making_is_refused_before_anything_is_made(
    session: Connection, database: Database
) -> None:
    database.execute("CREATE TABLE public.raw_events (id uuid PRIMARY KEY, payload jsonb)")
    with pytest.raises(DeclarationError, match=r"public.raw_events is there already.*no body"):
        ensure_tables(session, small_events())
    assert database.value("SELECT to_regnamespace('warehouse')") is None


def test_ten_creators_at_once_make_each_thing_once(database: Database) -> None:
    made: list[str] = []

    def work() -> None:
        with connect(database.conninfo, name="test") as one:
            made.extend(ensure_tables(one, small_events()))

    threads = [threading.Thread(target=work) for _ in range(10)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(made) == len(set(made)) > 8


def test_months_are_made_by_any_number_of_sessions_while_readers_and_writers_go_on(
    session: Connection, database: Database
) -> None:
    ensure_tables(session, small_events())
    database.execute("SELECT warehouse.create_monthly_partition('2026-10-01')")
    # An open reader and an open writer: neither waits, nor is waited for.
    with database.connect() as reader, database.connect() as writer:
        reader.execute("BEGIN; SELECT count(*) FROM warehouse.fact_events")
        writer.execute(
            "BEGIN; INSERT INTO warehouse.fact_events (event_hash, occurred_at, page)"
            " VALUES ('a', '2026-10-31T23:59:59.999999Z', 'home')"
        )
        results: list[bool] = []

        def work(months: range) -> None:
            with database.connect() as one, one.transaction():
                one.execute("SET LOCAL lock_timeout = '20s'")
                for month in months:
                    row = one.execute(
                        "SELECT warehouse.create_monthly_partition(make_date(2027, %s, 17))",
                        (month,),
                    ).fetchone()
                    assert row is not None
                    results.append(row[0])

        orders = [range(1, 13), range(12, 0, -1)] * 3
        threads = [threading.Thread(target=work, args=(one,)) for one in orders]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        reader.execute("SELECT count(*) FROM warehouse.fact_events")
        writer.execute("COMMIT")
    assert len(results) == 72
    assert results.count(True) == 12
    assert (
        database.value(
            "SELECT count(*) FROM pg_inherits WHERE inhparent ="
            " 'warehouse.fact_events'::regclass AND NOT inhdetachpending"
        )
        == 13
    )
    bounds = (
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class"
        " WHERE oid = 'warehouse.fact_events_2027_12'::regclass"
    )
    assert "'2027-12-01 00:00:00+00') TO ('2028-01-01 00:00:00+00')" in database.value(bounds)


def test_a_fact_of_no_month_has_nowhere_to_go(session: Connection, database: Database) -> None:
    ensure_tables(session, small_events())
    with pytest.raises(pg.CheckViolation, match="no partition"):
        database.execute(
            "INSERT INTO warehouse.fact_events (event_hash, occurred_at, page)"
            " VALUES ('a', '2026-10-31Z', 'home')"
        )


def test_a_month_in_another_zone_is_still_one_of_utc(
    session: Connection, database: Database
) -> None:
    ensure_tables(session, small_events())
    database.execute(
        "SET TimeZone = 'Pacific/Auckland'",
        "SELECT warehouse.create_monthly_partition('2026-10-31')",
    )
    bounds = (
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class"
        " WHERE oid = 'warehouse.fact_events_2026_10'::regclass"
    )
    assert "'2026-10-01 00:00:00+00') TO ('2026-11-01 00:00:00+00')" in database.value(bounds)


def test_names_need_quotes_and_may_hold_percent_signs(
    session: Connection, database: Database
) -> None:
    model = small_model()
    odd = small_model(
        facts=replace(model.facts, schema='Ware "house" 100%s', name="Fact%s Events"),
        columns=(*model.columns, field("Order {by} %s", "$.o")),
    )
    events = small_events(odd, raw_table='"Raw %s".events')
    assert ensure_tables(session, events)
    assert ensure_tables(session, events) == []
    assert database.value(
        """SELECT "Ware ""house"" 100%s".create_monthly_partition('2026-10-31')"""
    )


def test_a_log_of_another_making_gets_what_it_lacks(
    session: Connection, database: Database
) -> None:
    database.execute(
        "CREATE SCHEMA analytics",
        "CREATE TABLE analytics.mv_refresh_log"
        " (mv_name text PRIMARY KEY, refreshed_at timestamptz NOT NULL)",
    )
    made = ensure_tables(session, small_events())
    assert "analytics.mv_refresh_log.error" in made
    assert "analytics.mv_refresh_log.refreshed_at may be empty" in made
    assert ensure_tables(session, small_events()) == []


def test_a_column_of_the_users_own_that_must_be_filled_is_refused_and_kept(
    session: Connection, database: Database
) -> None:
    ensure_tables(session, small_events())
    database.execute("ALTER TABLE raw_events ADD tenant text NOT NULL")
    with pytest.raises(DeclarationError, match=r"public.raw_events.tenant is NOT NULL"):
        ensure_tables(session, small_events())
    database.execute("ALTER TABLE raw_events ALTER tenant SET DEFAULT 'us'")
    assert ensure_tables(session, small_events()) == []


def test_facts_that_had_no_transactions_get_them_from_now_on(
    session: Connection, database: Database
) -> None:
    ensure_tables(session, small_events())
    database.execute("ALTER TABLE warehouse.fact_events DROP COLUMN loaded_in")
    assert ensure_tables(session, small_events()) == ["warehouse.fact_events.loaded_in"]
    database.execute(
        "SELECT warehouse.create_monthly_partition('2026-10-01')",
        "INSERT INTO warehouse.fact_events (event_hash, occurred_at, page)"
        " VALUES ('a', '2026-10-31Z', 'home')",
    )
    assert database.value("SELECT loaded_in IS NOT NULL FROM warehouse.fact_events")
