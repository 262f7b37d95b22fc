"""`doctor` finds what stands in the way, on this machine and in the databases."""

from __future__ import annotations

import json
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

from conftest import FAST
from integration.orders import CREATE, ORDERS, contents
from pgbouncer import pgbouncer
from tidegate.insight.doctor import Examination, examine
from tidegate.insight.doctor_pooler import Pooling, detect_pooling
from tidegate.model.check import Check, Level
from tidegate.postgres.connect import connect
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project
from tidegate.settings import Settings, load_settings


def examine_place(place: Any, **overrides: Any) -> Examination:
    def load(root: Path) -> Settings:
        return load_settings(root, overrides=overrides)

    return examine(place.folder, load=load, declared=lambda s: Project(s).syncs.values())


def named(found: Examination, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


@pytest.fixture
def role(make_place: Any) -> Iterator[tuple[Any, str, str]]:
    """A project on one database, and a role that may do nothing there."""
    place = make_place(ORDERS)
    name = f"role_{uuid.uuid4().hex[:12]}"
    place.source.execute(
        *CREATE,
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
    )
    yield place, name, make_conninfo(place.source.conninfo, user=name, password="secret")
    place.source.execute(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


def test_a_healthy_project_passes_every_check_and_stays_as_it_was(make_place: Any) -> None:
    place = make_place(ORDERS, databases=3)
    place.source.execute(*CREATE)
    before = contents(place.source, place.target, place.control)
    found = examine_place(place)
    assert contents(place.source, place.target, place.control) == before
    assert [check for check in found.checks if check.level is Level.FAIL] == []
    assert found.project == "shop"
    assert named(found, "settings").level is Level.OK
    assert "PostgreSQL 18" in named(found, 'connection "shop"').found
    assert named(found, 'connection "shop": public.orders').found == "may be read"
    assert named(found, 'connection "shop": wal_level').found == "logical"
    assert named(found, 'connection "shop": pooler').found.startswith("none")
    assert "will be created" in named(found, 'connection "warehouse": ledger').found
    assert "will be created" in named(found, 'connection "warehouse": raw.orders').found
    assert "will be created" in named(found, "the control database: schema").found


def test_outside_a_project_only_the_machine_is_checked(tmp_path: Path) -> None:
    code = (
        "import sys; from tidegate.cli.main import app\n"
        "app(['doctor', '--json', '-C', sys.argv[1]], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["project"] is None
    names = [check["name"] for check in found["checks"]]
    assert names == ["java", "pyspark", "worker python", "disk: here"]


def test_a_failed_check_sets_the_exit_code(make_place: Any) -> None:
    place = make_place(ORDERS)
    command = [sys.executable, "-m", "tidegate.cli.main", "doctor", "-C", str(place.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert 'fail  connection "shop": public.orders: does not exist' in done.stdout
    assert "fix: " in done.stdout


def test_broken_settings_are_a_finding_not_a_crash(make_place: Any) -> None:
    place = make_place({**ORDERS, "cursr": "x"})
    found = examine_place(place)
    assert named(found, "settings").level is Level.FAIL
    assert "cursr" in named(found, "settings").found
    assert named(found, "java").level is Level.OK


def test_a_pipelines_file_that_fails_is_a_finding(make_place: Any) -> None:
    place = make_place(pipelines="1 / 0\n")
    found = examine_place(place)
    assert "ZeroDivisionError" in named(found, "declarations").found
    assert named(found, "the control database").level is Level.OK


def test_an_unreachable_database_is_named_with_its_fix(make_place: Any) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE)
    address = make_conninfo(place.source.conninfo, port=1)
    found = examine_place(place, **{"connections.warehouse": address})
    assert named(found, 'connection "warehouse"').level is Level.FAIL
    assert named(found, 'connection "shop"').level is Level.OK
    unset = examine_place(place, **{"connections.warehouse": "postgresql://nobody@127.0.0.1:1/x"})
    assert "is the server running" in str(named(unset, 'connection "warehouse"').fix)


def test_a_server_that_is_too_old_is_refused(
    make_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(ORDERS)
    monkeypatch.setattr("tidegate.postgres.connect.MINIMUM_VERSION", 990000)
    check = named(examine_place(place), 'connection "shop"')
    assert check.level is Level.FAIL
    assert "is too old" in check.found


def test_a_source_role_needs_its_tables_and_should_see_transactions(
    role: tuple[Any, str, str],
) -> None:
    place, name, address = role

    def look() -> tuple[Check, Check]:
        found = examine_place(place, **{"connections.shop": address})
        return (
            named(found, 'connection "shop": public.orders'),
            named(found, 'connection "shop": open transactions'),
        )

    table, transactions = look()
    assert (table.level, table.fix) == (Level.FAIL, f"GRANT USAGE ON SCHEMA public TO {name}")
    assert transactions.level is Level.WARN
    assert transactions.fix == f"GRANT pg_read_all_stats TO {name}"
    place.source.execute(table.fix, f"GRANT SELECT (id) ON orders TO {name}")
    table, _ = look()
    assert "may not read total, updated_at" in table.found
    place.source.execute(table.fix, transactions.fix)
    table, transactions = look()
    assert (table.level, transactions.level) == (Level.OK, Level.OK)


def test_a_destination_role_needs_room_for_the_ledger_and_its_targets(
    role: tuple[Any, str, str],
) -> None:
    place, name, address = role

    def look() -> tuple[Check, Check]:
        found = examine_place(place, **{"connections.warehouse": address})
        return (
            named(found, 'connection "warehouse": ledger'),
            named(found, 'connection "warehouse": raw.orders'),
        )

    ledger, target = look()
    assert (ledger.level, target.level) == (Level.FAIL, Level.FAIL)
    assert ledger.fix == f"as the owner: CREATE SCHEMA tidegate AUTHORIZATION {name}"
    for check in (ledger, target):
        place.target.execute(str(check.fix).removeprefix("as the owner: "))
    ledger, target = look()
    assert (ledger.level, target.level) == (Level.OK, Level.OK)
    place.target.execute("CREATE TABLE raw.orders (id int)", "CREATE TABLE tidegate.fences (x int)")
    ledger, target = look()
    assert "may not write fences" in ledger.found
    assert "lacks SELECT, INSERT, UPDATE, DELETE" in target.found
    for check in (ledger, target):
        place.target.execute(str(check.fix))
    assert [check.level for check in look()] == [Level.OK, Level.OK]


def test_a_control_role_that_may_create_nothing_is_a_failure(role: tuple[Any, str, str]) -> None:
    place, name, address = role
    check = named(
        examine_place(place, **{"project.control": address}), "the control database: schema"
    )
    assert check.level is Level.FAIL
    assert check.fix == f"as the owner: CREATE SCHEMA tidegate_control AUTHORIZATION {name}"


def test_a_standby_may_be_read_but_not_written(
    make_place: Any, tmp_path_factory: pytest.TempPathFactory
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
        assert named(read, 'connection "shop": standby').level is Level.WARN
        written = examine_place(place, **{"connections.warehouse": standby.conninfo()})
        assert named(written, 'connection "warehouse": standby').level is Level.FAIL
    finally:
        standby.stop("immediate")


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pool_mode": "transaction"}, Pooling.TRANSACTION),
        ({"pool_mode": "statement"}, Pooling.TRANSACTION),
        ({"pool_mode": "transaction", "server_round_robin": "1"}, Pooling.TRANSACTION),
        ({"pool_mode": "session"}, Pooling.SESSION),
        (
            {"pool_mode": "session", "default_pool_size": "1", "query_wait_timeout": "1"},
            Pooling.EXHAUSTED,
        ),
    ],
)
def test_a_pooler_is_recognised_by_the_server_processes_behind_it(
    server: EmbeddedServer,
    make_database: Any,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    settings: dict[str, str],
    pooling: Pooling,
) -> None:
    address = make_database("pooled")
    assert pytestconfig.cache is not None
    with pgbouncer(server, pytestconfig.cache.mkdir("pgbouncer"), tmp_path, settings) as port:
        pooled = make_conninfo(address, port=port)
        assert detect_pooling(partial(connect, pooled, name="pooled")) is pooling
    assert detect_pooling(partial(connect, address, name="direct")) is Pooling.NONE


@pytest.mark.parametrize("servers", [2, 16])
def test_servers_handed_out_in_turn_do_not_pass_for_sessions(
    server: EmbeddedServer,
    make_database: Any,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    servers: int,
) -> None:
    address = make_database("pooled")
    settings = {"pool_mode": "transaction", "server_round_robin": "1"}
    assert pytestconfig.cache is not None
    with pgbouncer(server, pytestconfig.cache.mkdir("pgbouncer"), tmp_path, settings) as port:
        pooled = make_conninfo(address, port=port)
        with ExitStack() as stack:
            # Transactions at the same time make the pool open as many servers.
            for _ in range(servers):
                stack.enter_context(psycopg.connect(pooled)).execute("SELECT 1")
        assert detect_pooling(partial(connect, pooled, name="pooled")) is Pooling.TRANSACTION


def test_a_pooler_in_transaction_mode_is_a_failure_with_its_fix(
    server: EmbeddedServer, make_place: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE)
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("pgbouncer")
    with pgbouncer(server, cache, tmp_path, {"pool_mode": "transaction"}) as port:
        address = make_conninfo(place.source.conninfo, port=port)
        check = named(
            examine_place(place, **{"connections.shop": address}), 'connection "shop": pooler'
        )
    assert check.level is Level.FAIL
    assert "pool_mode = session" in str(check.fix)
