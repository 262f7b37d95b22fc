"""Whoever holds back vacuum in the control database is found: it agrees with what VACUUM does."""

from __future__ import annotations

import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql

from integration.conftest import Database
from integration.holding import (
    FIVE_MINUTES,
    ROWS,
    fill,
    holder_of,
    kept_by_vacuum,
    look,
    pair,
    pass_transactions,
    role,
    snapshot,
)
from integration.orders import CREATE, FILL, ORDERS
from integration.without_spark import Make, make
from tidegate.insight.vacuum_remarks import remark_on_holder
from tidegate.model.vacuum_horizon import (
    MANY_TRANSACTIONS,
    HolderKind,
    VacuumHorizon,
)
from tidegate.postgres.connect import begin_read_only, connect

__all__ = ["make", "pair", "role"]

KEY = 4242


def test_a_snapshot_in_the_same_database_counts(pair: tuple[Database, Database]) -> None:
    control, _ = pair
    fill(control)
    with snapshot(control) as session:
        assert kept_by_vacuum(control) == ROWS
        horizon = look(control)
        pid = session.info.backend_pid
        assert horizon.held is not None
        assert re.fullmatch(
            rf"process {pid} of postgres \(report\) from 127.0.0.1, idle in transaction, "
            r"holds back vacuum, \d+ transactions? by now, open since 20[-: \d]+",
            horizon.held.found,
        )
        assert horizon.held.fix == f"end it: SELECT pg_terminate_backend({pid})"
        assert horizon.grant is None
        assert look(control, FIVE_MINUTES).held is None
        control.execute(horizon.held.fix.removeprefix("end it: "))
        with pytest.raises(pg.AdminShutdown):
            session.execute("SELECT 1")
    assert holder_of(look(control), pid) is None
    assert kept_by_vacuum(control) == 0


@pytest.mark.parametrize("statement", ["SELECT 1", "CREATE TABLE written (n int)"])
def test_a_transaction_in_another_database_does_not_count(
    pair: tuple[Database, Database], statement: str
) -> None:
    control, other = pair
    fill(control)
    with snapshot(other) as session:
        session.execute(statement.encode())
        assert kept_by_vacuum(control) == 0
        assert holder_of(look(control), session.info.backend_pid) is None
        assert holder_of(look(other), session.info.backend_pid) is not None


def test_the_writer_is_named_before_those_whose_snapshots_wait_for_it(
    pair: tuple[Database, Database],
) -> None:
    control, _ = pair
    fill(control)
    with psycopg.connect(control.conninfo) as reader, psycopg.connect(control.conninfo) as writer:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("BEGIN")
        reader.execute("SHOW work_mem")  # it began first, and has no snapshot yet
        writer.execute("INSERT INTO t VALUES (0)")
        reader.execute("SELECT 1")
        found = look(control).holders
        expected = [writer.info.backend_pid, reader.info.backend_pid]
        two = [one for one in found if one.pid in expected]
        assert [one.pid for one in two] == expected
        assert two[0].transactions == two[1].transactions
        reader.rollback()
        writer.rollback()


def prepared(horizon: VacuumHorizon) -> list[str | None]:
    return [one.name for one in horizon.holders if one.kind is HolderKind.PREPARED]


@pytest.mark.parametrize("gid", ["plain", 'it\'s \\ "two"', "a\nb\x1b[2J"])
def test_a_prepared_transaction_counts_in_its_own_database(
    pair: tuple[Database, Database], gid: str
) -> None:
    control, other = pair
    fill(control)
    fill(other)
    with other.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO t VALUES (0)")
        session.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
    assert kept_by_vacuum(control) == 0
    assert prepared(look(control)) == []
    horizon = look(other)
    assert prepared(horizon) == [gid]
    assert horizon.held is not None
    assert horizon.held.found.isprintable()
    commit, rollback = horizon.held.fix.removeprefix("end it in that database: ").split(" or ")
    assert commit.startswith("COMMIT PREPARED ")
    other.execute(rollback)
    assert prepared(look(other)) == []
    assert other.value("SELECT count(*) FROM pg_prepared_xacts") == 0


def test_a_logical_slot_holds_the_catalogs_and_not_the_queue(
    pair: tuple[Database, Database],
) -> None:
    control, other = pair
    fill(control)
    name = f"slot_{uuid.uuid4().hex[:8]}"
    other.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        assert kept_by_vacuum(control) == 0
        horizon = look(control)
        assert [one for one in horizon.holders if one.kind is HolderKind.SLOT] == []
        assert [one.name for one in horizon.catalog_holders] == [name]
        remark = horizon.catalogs_held
        assert remark is not None
        assert f"slot '{name}' (inactive) holds back vacuum of the system cat" in remark.found
        assert remark.fix.endswith(f": SELECT pg_drop_replication_slot('{name}')")
        assert look(control, FIVE_MINUTES).catalogs_held is None
    finally:
        control.execute(f"SELECT pg_drop_replication_slot('{name}')")
    assert look(control).catalog_holders == ()


def test_a_vacuum_under_way_does_not_hold_back_another(pair: tuple[Database, Database]) -> None:
    control, _ = pair
    fill(control)
    control.execute(
        "CREATE TABLE large (n int) WITH (autovacuum_enabled = off, fillfactor = 10)",
        "INSERT INTO large SELECT generate_series(1, 20000)",
        "DELETE FROM large",
    )
    with control.connect() as slow:
        slow.execute("SET vacuum_cost_delay = 100")
        slow.execute("SET vacuum_cost_limit = 1")
        ended: list[type[BaseException]] = []

        def vacuum() -> None:
            try:
                slow.execute("VACUUM large")
            except psycopg.Error as error:
                ended.append(type(error))

        thread = threading.Thread(target=vacuum)
        thread.start()
        seen = (
            "SELECT count(*) FROM pg_stat_progress_vacuum JOIN pg_stat_activity a USING (pid)"
            " WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL"
        )
        while control.value(seen) == 0:
            assert thread.is_alive()
        holder = holder_of(look(control), slow.info.backend_pid)
        kept = kept_by_vacuum(control)
        slow.cancel_safe()
        thread.join()
    assert ended == [pg.QueryCanceled]
    assert (holder, kept) == (None, 0)


def test_without_the_right_to_see_others_it_says_what_to_grant(
    role: tuple[Database, str, str],
) -> None:
    control, name, address = role
    with snapshot(control) as session:
        pid = session.info.backend_pid
        hidden = look(control, conninfo=address)
        assert hidden.grant == f'GRANT pg_read_all_stats TO "{name}"'
        holder = holder_of(hidden, pid)
        assert holder is not None
        assert (holder.since, holder.client, holder.state) == (None, None, None)
        assert hidden.held is None
        pass_transactions(control, MANY_TRANSACTIONS)
        hidden = look(control, conninfo=address)
        assert hidden.held is not None
        assert f"process {pid} of postgres (report) holds back vacuum, 10," in hidden.held.found
        assert hidden.held.found.endswith("; since when cannot be told")
        assert hidden.held.fix.endswith(f"; to see: {hidden.grant}")
        control.execute(str(hidden.grant))
        seen = look(control, FIVE_MINUTES, address)
        holder = holder_of(seen, pid)
        assert holder is not None
        assert holder.since is not None
        assert (seen.grant, seen.held) == (None, None)


def test_a_publisher_of_our_own_is_told_with_its_job(make: Make) -> None:
    project, place = make(
        {**ORDERS, "after_sql": f"SELECT pg_advisory_xact_lock({KEY})"},
        worker={"lock_timeout": "60s"},
    )
    place.source.execute(*CREATE, FILL)
    waiting = f"SELECT count(*) FROM pg_locks WHERE objid = {KEY} AND NOT granted"
    with place.target.connect() as session, ThreadPoolExecutor(1) as pool:
        session.execute(f"SELECT pg_advisory_lock({KEY})".encode())
        running = pool.submit(project.run, "orders")
        while place.target.value(waiting) == 0:
            assert not running.done()
        horizon = look(place.control)
        session.execute("SELECT pg_advisory_unlock_all()")
        job_id = running.result().job_id
    publisher = next(one for one in horizon.holders if one.job_id is not None)
    assert publisher.is_ours
    assert (str(publisher.job_id), publisher.job_name) == (str(job_id), "orders")
    remark = remark_on_holder(publisher)
    assert remark.found.startswith(f"Tidegate's own process {publisher.pid} of postgres (tidegate")
    assert f", job {job_id} (orders), active, holds back" in remark.found
    assert remark.fix == (
        f"it ends with its run; if that hangs: SELECT pg_terminate_backend({publisher.pid})"
    )


def test_a_reader_of_our_own_is_told_apart(pair: tuple[Database, Database]) -> None:
    control, _ = pair
    with connect(control.conninfo, name="control", application="tidegate source") as session:
        begin_read_only(session)
        session.execute("SELECT pg_export_snapshot()")
        holder = holder_of(look(control), session.info.backend_pid)
        session.execute("ROLLBACK")
    assert holder is not None
    assert (holder.is_ours, holder.application, holder.job_id) == (True, "tidegate read", None)
