"""Whoever holds back vacuum in the control database is found, as VACUUM itself tells, and named."""

from __future__ import annotations

import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from acceptance.processes import until
from conftest import FAST, MakeDatabase
from integration.commands import DONE
from integration.conftest import Database, Make, MakePlace, Place
from integration.here import tidegate
from integration.orders import CREATE, FILL, ORDERS
from integration.standbys import standby_of
from integration.test_doctor import examine_place, named
from tidegate.admin.doctor.finding import Finding, FindingLevel
from tidegate.admin.vacuum_horizon import (
    MANY_DEAD_ROWS,
    MANY_TRANSACTIONS,
    HolderKind,
    VacuumHolder,
    VacuumHorizon,
    read_vacuum_horizon,
    remark_on_holder,
)
from tidegate.jobs.control_database import ControlDatabase
from tidegate.postgres.connection import begin_read_only, connect
from tidegate.postgres.embedded import EmbeddedServer

ROWS = 10
FIVE_MINUTES = 300.0


def look(
    database: Database, warning_seconds: float = 0.0, conninfo: str | None = None
) -> VacuumHorizon:
    plane = ControlDatabase(database.connect)
    with psycopg.connect(conninfo or database.conninfo, autocommit=True) as session:
        return read_vacuum_horizon(session, plane, warning_seconds)


def holder_of(horizon: VacuumHorizon, pid: int) -> VacuumHolder | None:
    return next((holder for holder in horizon.holders if holder.pid == pid), None)


def fill(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (n int) WITH (autovacuum_enabled = off)",
        f"INSERT INTO t SELECT generate_series(1, {ROWS})",
    )


def kept_by_vacuum(database: Database) -> int:
    """Delete all rows, and count those that VACUUM then has to leave."""
    said: list[str] = []
    with database.connect() as session:
        session.execute("SET client_min_messages = info")
        session.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        session.execute("DELETE FROM t")
        session.execute("VACUUM (VERBOSE) t")
    found = re.search(r"(\d+) are dead but not yet removable", "\n".join(said))
    assert found is not None, said
    return int(found[1])


def pass_transactions(database: Database, count: int) -> None:
    database.execute(
        "CREATE TABLE passed (n int)",
        f"DO $$ BEGIN FOR n IN 1..{count} LOOP BEGIN INSERT INTO passed VALUES (n);"
        " EXCEPTION WHEN others THEN RAISE; END; END LOOP; END $$",
    )


@contextmanager
def snapshot(database: Database, application: str = "report") -> Iterator[psycopg.Connection[Any]]:
    session = psycopg.connect(database.conninfo, application_name=application)
    session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    session.execute("SELECT 1")
    try:
        yield session
    finally:
        session.close()


@pytest.fixture
def pair(make_database: MakeDatabase) -> tuple[Database, Database]:
    """The control database, and another one of the same server."""
    return Database(make_database("control")), Database(make_database("other"))


@pytest.fixture
def role(pair: tuple[Database, Database]) -> Iterator[tuple[Database, str, str]]:
    """The control database, and a role that may only connect to it."""
    control, _ = pair
    name = f"Role {uuid.uuid4().hex[:8]}"
    control.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret'")
    yield control, name, make_conninfo(control.conninfo, user=name, password="secret")
    control.execute(f'DROP ROLE "{name}"')


__all__ = ["pair", "role"]
KEY = 4242


def prepared(horizon: VacuumHorizon) -> list[str | None]:
    return [one.name for one in horizon.holders if one.kind is HolderKind.PREPARED]


def test_a_snapshot_counts_in_its_own_database_alone(pair: tuple[Database, Database]) -> None:
    control, other = pair
    fill(control)
    for statement in (b"SELECT 1", b"CREATE TABLE written (n int)"):
        with snapshot(other) as session:
            session.execute(statement)
            assert kept_by_vacuum(control) == 0
            assert holder_of(look(control), session.info.backend_pid) is None
            assert holder_of(look(other), session.info.backend_pid) is not None
    control.execute("DROP TABLE t")
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
        expected = [writer.info.backend_pid, reader.info.backend_pid]
        two = [one for one in look(control).holders if one.pid in expected]
        assert [one.pid for one in two] == expected
        assert two[0].transactions == two[1].transactions
        reader.rollback()
        writer.rollback()
    # A reader of our own is told apart.
    with connect(control.conninfo, name="control", application="tidegate source") as session:
        begin_read_only(session)
        session.execute("SELECT pg_export_snapshot()")
        holder = holder_of(look(control), session.info.backend_pid)
        session.execute("ROLLBACK")
    assert holder is not None
    assert (holder.is_ours, holder.application, holder.job_id) == (True, "tidegate read", None)


def test_a_prepared_transaction_and_a_logical_slot_count_where_they_should(
    pair: tuple[Database, Database],
) -> None:
    control, other = pair
    fill(control)
    fill(other)
    for gid in ("plain", 'it\'s \\ "two"', "a\nb\x1b[2J"):
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

    # A logical slot holds the catalogs, and not the queue.
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
        "INSERT INTO large SELECT generate_series(1, 5000)",
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


def checked(place: Place, name: str, **overrides: str) -> Finding:
    found = examine_place(place, **overrides)
    return named(found, f"the control database: {name}")


def test_without_the_right_to_see_others_it_says_what_to_grant(
    role: tuple[Database, str, str], make_place: MakePlace
) -> None:
    control, name, address = role
    place = make_place(ORDERS)
    place.source.execute(*CREATE)
    check = checked(place, "vacuum", **{"project.control": address})
    assert (check.level, check.fix) == (FindingLevel.WARN, f'GRANT pg_read_all_stats TO "{name}"')
    assert "cannot be told" in check.found
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


def crowd(place: Place) -> None:
    """Leave many dead rows in the job queue, with nobody to blame."""
    queue = "tidegate_control.job_queue"
    place.control.execute(
        f"ALTER TABLE {queue} SET (autovacuum_enabled = off)",
        "ALTER TABLE tidegate_control.jobs SET (autovacuum_enabled = off)",
        "CREATE TABLE ids WITH (autovacuum_enabled = off) AS SELECT gen_random_uuid() AS job_id"
        f" FROM generate_series(1, {MANY_DEAD_ROWS + 1})",
        "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, resource, payload,"
        " submitted_by) SELECT job_id, 'shop', 'test', 'x', 'x', '{}', 'test' FROM ids",
        f"INSERT INTO {queue} (job_id, project, kind) SELECT job_id, 'shop', 'test' FROM ids",
        f"DELETE FROM {queue}",
        # What it did is told to others before it answers, not some time after it has gone.
        "SELECT pg_stat_force_next_flush()",
    )


def told(place: Place) -> list[str]:
    """What `status` says of the control database."""
    shown = tidegate(place.folder, "status")
    assert shown.code == DONE
    return [line for line in shown.out.splitlines() if line.startswith("control database:")]


def test_status_and_doctor_tell_of_dead_rows_and_of_who_holds_them(make_place: MakePlace) -> None:
    patient = make_place(ORDERS, installed=False)
    hasty = make_place(ORDERS, beside=patient, worker={"horizon_warning": "1ms"})
    patient.source.execute(*CREATE, FILL)
    control = patient.control
    patient.open().context.control_id()
    with snapshot(control) as session:
        pid = session.info.backend_pid
        assert told(patient) == []
        (line,) = told(hasty)
        document = tidegate(patient.folder, "status", "--json").document
        check = checked(hasty, "vacuum")
    assert f"process {pid} of postgres (report)" in line
    assert line.endswith(f"; end it: SELECT pg_terminate_backend({pid})")
    assert document["vacuum_horizon"]["held"] is None
    assert pid in [one["pid"] for one in document["vacuum_horizon"]["holders"]]
    assert (check.level, str(pid) in str(check.fix)) == (FindingLevel.WARN, True)

    crowd(patient)
    remark = look(control).queue_crowded
    assert remark is not None
    assert remark.found.startswith("the job queue has 10,001 dead rows and 0 live ones")
    vacuum = "VACUUM tidegate_control.job_queue"
    assert remark.fix.startswith(f"{vacuum}; ")
    with snapshot(control) as session:
        held = look(control, FIVE_MINUTES).queue_crowded
        assert held is not None
        pid = session.info.backend_pid
        assert f"{remark.found}; process {pid} of postgres (report) from" in held.found
        assert held.fix == f"end it: SELECT pg_terminate_backend({pid}); then: {vacuum}"
        assert told(hasty) == [f"control database: {held.found}; {held.fix}"]
    crowded = checked(hasty, "job queue")
    assert (crowded.level, "10,001 dead rows" in crowded.found) == (FindingLevel.WARN, True)
    control.execute(vacuum)
    after = look(control)
    assert (after.queue_crowded, after.queue and after.queue.dead) == (None, 0)
    empty = checked(hasty, "job queue")
    assert (empty.level, empty.found) == (FindingLevel.OK, "0 dead rows, 0 live ones")

    gone = {"TIDEGATE_PROJECT__CONTROL": make_conninfo(control.conninfo, port=1)}
    document = tidegate(patient.folder, "status", "--json", environment=gone).document
    assert document["control_unreachable"] is not None
    assert document["vacuum_horizon"]["holders"] == []


SLOT = "standby_slot"


@contextmanager
def primary_and_standby(folder: Path, slot: str) -> Iterator[tuple[Database, EmbeddedServer]]:
    """A standby reports the oldest snapshot of its own sessions every second."""
    primary = EmbeddedServer(folder / "primary", FAST)
    primary.start()
    control = Database(primary.conninfo())
    fill(control)
    if slot:
        control.execute(f"SELECT pg_create_physical_replication_slot('{slot}')")
    settings = {
        "primary_slot_name": slot,
        "hot_standby_feedback": "on",
        "wal_receiver_status_interval": "1s",
    }
    try:
        with standby_of(primary, folder / "standby", settings) as standby:
            yield control, standby
    finally:
        primary.stop("immediate")
        shutil.rmtree(folder)


def from_outside(control: Database) -> list[VacuumHolder]:
    return [one for one in look(control).holders if one.kind is not HolderKind.SESSION]


def wait_for_feedback(control: Database) -> VacuumHolder:
    """Look until the standby's snapshot has come through and is not the newest any more."""

    def has_come() -> bool:
        control.execute("SELECT pg_current_xact_id()")
        return any(one.transactions for one in from_outside(control)[:1])

    until(has_come, "feedback of the standby")
    return from_outside(control)[0]


@pytest.mark.chaos
def test_a_slot_of_a_standby_counts_until_it_is_dropped(tmp_path: Path) -> None:
    with primary_and_standby(tmp_path, SLOT) as (control, standby):
        with snapshot(Database(standby.conninfo("postgres"))):
            used = wait_for_feedback(control)
            assert (used.kind, used.name, used.state) == (HolderKind.SLOT, SLOT, "active")
            assert (used.seconds, used.is_late(0.0)) == (None, False)
            assert kept_by_vacuum(control) > 0
        standby.stop("immediate")
        active = "SELECT active FROM pg_replication_slots"
        until(lambda: not control.value(active), "a slot that nobody uses")
        horizon = look(control)
        assert horizon.held is not None
        said = f"replication slot '{SLOT}' (inactive) holds back vacuum"
        assert horizon.held.found.startswith(said)
        statement = f"SELECT pg_drop_replication_slot('{SLOT}')"
        assert horizon.held.fix.endswith(f": {statement}")
        control.execute("INSERT INTO t VALUES (1)")
        assert kept_by_vacuum(control) > 0
        control.execute(statement)
        assert from_outside(control) == []
        assert kept_by_vacuum(control) == 0


@pytest.mark.chaos
def test_a_standby_without_a_slot_counts_through_its_connection(tmp_path: Path) -> None:
    with (
        primary_and_standby(tmp_path, "") as (control, standby),
        snapshot(Database(standby.conninfo("postgres"))),
    ):
        holder = wait_for_feedback(control)
        assert (holder.kind, holder.application) == (HolderKind.STANDBY, "reports")
        assert kept_by_vacuum(control) > 0
        assert (holder.is_ours, holder.seconds, holder.is_late(0.0)) == (False, None, False)
