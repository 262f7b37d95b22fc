"""`doctor` finds what stands in the way in a project and in its databases."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from conftest import FAST, MakeDatabase
from integration.commands import DONE, FAILED
from integration.conftest import MakePlace, Place
from integration.here import tidegate
from integration.orders import CREATE, ORDERS, contents
from pgbouncer import pgbouncer
from tidegate.admin.doctor import examination
from tidegate.admin.doctor.databases import Pooling, detect_pooling
from tidegate.admin.doctor.examination import DoctorReport
from tidegate.admin.doctor.finding import Finding, FindingLevel
from tidegate.config import Settings, load_settings
from tidegate.postgres.connection import connect
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project


def examine_place(place: Place, **overrides: Any) -> DoctorReport:
    """All but the machine, whose Java and Python take most of a second to be asked."""

    def load(root: Path) -> Settings:
        return load_settings(root, overrides=overrides)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(examination, "check_machine", lambda *_: [])
        return examination.run_checks(
            place.folder, load=load, declared=lambda s: Project(s).syncs.values()
        )


def named(found: DoctorReport, name: str) -> Finding:
    return next(check for check in found.checks if check.name == name)


@pytest.fixture
def role(make_place: MakePlace) -> Iterator[tuple[Place, str, str]]:
    """A project on one database, and a role that may do nothing there."""
    place = make_place(ORDERS, installed=False)
    name = f"role_{uuid.uuid4().hex[:12]}"
    place.source.execute(
        *CREATE,
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
    )
    yield place, name, make_conninfo(place.source.conninfo, user=name, password="secret")
    place.source.execute(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


def test_a_healthy_project_passes_every_check_and_stays_as_it_was(make_place: MakePlace) -> None:
    place = make_place(ORDERS, databases=3, installed=False)
    place.source.execute(*CREATE)
    before = contents(place.source, place.target, place.control)
    found = examination.run_checks(place.folder, declared=lambda s: Project(s).syncs.values())
    assert contents(place.source, place.target, place.control) == before
    assert [check for check in found.checks if check.level is FindingLevel.FAIL] == []
    assert found.project == "shop"
    for name in ("java", "settings"):
        assert named(found, name).level is FindingLevel.OK, name
    assert "PostgreSQL 18" in named(found, 'connection "shop"').found
    assert named(found, 'connection "shop": public.orders').found == "may be read"
    assert named(found, 'connection "shop": wal_level').found == "logical"
    assert named(found, 'connection "shop": pooler').found.startswith("none")
    assert "will be created" in named(found, 'connection "warehouse": ledger').found
    assert "will be created" in named(found, 'connection "warehouse": raw.orders').found
    assert "will be created" in named(found, "the control database: schema").found


def test_outside_a_project_only_the_machine_is_checked(tmp_path: Path) -> None:
    done = tidegate(tmp_path, "doctor", "--json")
    assert (done.code, done.err) == (DONE, "")
    assert done.document["project"] is None
    names = [check["name"] for check in done.document["checks"]]
    assert names == ["java", "pyspark", "worker python", "disk: here"]


@pytest.mark.chaos
def test_asking_the_doctor_does_not_load_spark(tmp_path: Path) -> None:
    code = (
        "import sys; from tidegate.cli.main import app\n"
        "app(['doctor', '--json', '-C', sys.argv[1]], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True)


def test_what_is_broken_is_a_finding_and_sets_the_exit_code(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(ORDERS)
    done = tidegate(place.folder, "doctor")
    assert done.code == FAILED
    assert 'fail  connection "shop": public.orders: does not exist' in done.out
    assert "fix: " in done.out

    wrong = make_place({**ORDERS, "cursr": "x"}, beside=place)
    check = named(examine_place(wrong), "settings")
    assert (check.level, "cursr" in check.found) == (FindingLevel.FAIL, True)
    found = examine_place(make_place(beside=place, pipelines="1 / 0\n"))
    assert "ZeroDivisionError" in named(found, "declarations").found
    assert named(found, "the control database").level is FindingLevel.OK

    address = make_conninfo(place.source.conninfo, port=1)
    found = examine_place(place, **{"connections.warehouse": address})
    assert named(found, 'connection "warehouse"').level is FindingLevel.FAIL
    assert named(found, 'connection "shop"').level is FindingLevel.OK
    assert "is the server running" in str(named(found, 'connection "warehouse"').fix)

    monkeypatch.setattr("tidegate.postgres.connection.MINIMUM_VERSION", 990000)
    check = named(examine_place(place), 'connection "shop"')
    assert (check.level, "is too old" in check.found) == (FindingLevel.FAIL, True)


def test_a_source_role_needs_its_tables_and_should_see_transactions(
    role: tuple[Place, str, str],
) -> None:
    place, name, address = role

    def look() -> tuple[Finding, Finding]:
        found = examine_place(place, **{"connections.shop": address})
        return (
            named(found, 'connection "shop": public.orders'),
            named(found, 'connection "shop": open transactions'),
        )

    table, transactions = look()
    assert (table.level, table.fix) == (
        FindingLevel.FAIL,
        f"GRANT USAGE ON SCHEMA public TO {name}",
    )
    assert transactions.level is FindingLevel.WARN
    assert transactions.fix == f"GRANT pg_read_all_stats TO {name}"
    place.source.execute(str(table.fix), f"GRANT SELECT (id) ON orders TO {name}")
    table, _ = look()
    assert "may not read total, updated_at" in table.found
    place.source.execute(str(table.fix), str(transactions.fix))
    table, transactions = look()
    assert (table.level, transactions.level) == (FindingLevel.OK, FindingLevel.OK)


def test_a_destination_role_needs_room_for_the_ledger_and_its_targets(
    role: tuple[Place, str, str],
) -> None:
    place, name, address = role
    # A control role as well.
    found = examine_place(place, **{"project.control": address})
    check = named(found, "the control database: schema")
    assert check.level is FindingLevel.FAIL
    assert check.fix == f"as the owner: CREATE SCHEMA tidegate_control AUTHORIZATION {name}"

    def look() -> tuple[Finding, Finding]:
        found = examine_place(place, **{"connections.warehouse": address})
        return (
            named(found, 'connection "warehouse": ledger'),
            named(found, 'connection "warehouse": raw.orders'),
        )

    ledger, target = look()
    assert (ledger.level, target.level) == (FindingLevel.FAIL, FindingLevel.FAIL)
    assert ledger.fix == f"as the owner: CREATE SCHEMA tidegate AUTHORIZATION {name}"
    for check in (ledger, target):
        place.target.execute(str(check.fix).removeprefix("as the owner: "))
    assert [check.level for check in look()] == [FindingLevel.OK, FindingLevel.OK]
    place.target.execute("CREATE TABLE raw.orders (id int)", "CREATE TABLE tidegate.fences (x int)")
    ledger, target = look()
    assert "may not write fences" in ledger.found
    assert "lacks SELECT, INSERT, UPDATE, DELETE" in target.found
    for check in (ledger, target):
        place.target.execute(str(check.fix))
    assert [check.level for check in look()] == [FindingLevel.OK, FindingLevel.OK]


def test_a_standby_may_be_read_but_not_written(
    make_place: MakePlace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    standby = EmbeddedServer(tmp_path_factory.mktemp("standby") / "postgres", FAST)
    standby.start()
    with psycopg.connect(standby.conninfo(), autocommit=True) as connection:
        for statement in CREATE:
            connection.execute(statement)
    standby.stop("fast")
    (standby.directory / "data" / "standby.signal").touch()
    standby.start()
    try:
        place = make_place(ORDERS)
        read = examine_place(place, **{"connections.shop": standby.conninfo()})
        assert named(read, 'connection "shop": standby').level is FindingLevel.WARN
        written = examine_place(place, **{"connections.warehouse": standby.conninfo()})
        assert named(written, 'connection "warehouse": standby').level is FindingLevel.FAIL
    finally:
        standby.stop("immediate")


IN_TURN = {"pool_mode": "transaction", "server_round_robin": "1"}


@pytest.mark.parametrize(
    ("settings", "servers", "pooling"),
    [
        ({"pool_mode": "transaction"}, 0, Pooling.TRANSACTION),
        ({"pool_mode": "session"}, 0, Pooling.SESSION),
        # Servers that are handed out in turn do not pass for sessions.
        (IN_TURN, 2, Pooling.TRANSACTION),
        pytest.param(IN_TURN, 0, Pooling.TRANSACTION, marks=pytest.mark.chaos),
        pytest.param(IN_TURN, 16, Pooling.TRANSACTION, marks=pytest.mark.chaos),
        pytest.param({"pool_mode": "statement"}, 0, Pooling.TRANSACTION, marks=pytest.mark.chaos),
        pytest.param(
            {"pool_mode": "session", "default_pool_size": "1", "query_wait_timeout": "1"},
            0,
            Pooling.EXHAUSTED,
            marks=pytest.mark.chaos,
        ),
    ],
)
def test_a_pooler_is_recognised_by_the_server_processes_behind_it(
    server: EmbeddedServer,
    make_database: MakeDatabase,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    settings: dict[str, str],
    servers: int,
    pooling: Pooling,
) -> None:
    address = make_database("pooled")
    assert pytestconfig.cache is not None
    with pgbouncer(server, pytestconfig.cache.mkdir("pgbouncer"), tmp_path, settings) as port:
        pooled = make_conninfo(address, port=port)
        with ExitStack() as stack:
            # Transactions at the same time make the pool open as many servers.
            for _ in range(servers):
                stack.enter_context(psycopg.connect(pooled)).execute("SELECT 1")
        assert detect_pooling(partial(connect, pooled, name="pooled")) is pooling
    assert detect_pooling(partial(connect, address, name="direct")) is Pooling.NONE


def test_a_pooler_in_transaction_mode_is_a_failure_with_its_fix(
    server: EmbeddedServer, make_place: MakePlace, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE)
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("pgbouncer")
    with pgbouncer(server, cache, tmp_path, {"pool_mode": "transaction"}) as port:
        address = make_conninfo(place.source.conninfo, port=port)
        found = examine_place(place, **{"connections.shop": address})
    check = named(found, 'connection "shop": pooler')
    assert check.level is FindingLevel.FAIL
    assert "pool_mode = session" in str(check.fix)
