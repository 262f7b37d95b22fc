"""`doctor` finds what stands in the way in a project, in its databases and on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
import venv
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
from tidegate.admin.doctor.machine import check_disk, check_java, check_pyspark, check_worker_python
from tidegate.config import Settings, SparkSettings, load_settings
from tidegate.postgres.connection import connect
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project
from tidegate.spark import java


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


LOCAL = SparkSettings()


@pytest.fixture(autouse=True)
def no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the set-up of this machine noted must not decide."""
    monkeypatch.setattr(java, "NOTE", tmp_path / "no note")


def fake_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    fake_program(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
    return home


def test_java_must_be_of_a_version_that_spark_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "PLACES", ())
    for version, level in (
        ("1.8.0_402", FindingLevel.FAIL),
        ("11.0.22", FindingLevel.FAIL),
        ("17.0.15", FindingLevel.OK),
        ("21", FindingLevel.OK),
        ("25.0.1", FindingLevel.FAIL),
    ):
        home = fake_java(tmp_path / version, version)
        for environment in (
            {"JAVA_HOME": str(home), "PATH": ""},
            {"PATH": f"{home / 'bin'}:/usr/bin:/bin"},
        ):
            assert check_java(LOCAL, environment).level is level, (version, environment)
    remote = SparkSettings(remote="sc://host")
    assert check_java(remote, {"PATH": ""}).level is FindingLevel.OK, "it is not needed here"


def test_a_broken_java_home_is_named_with_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "jvm" / "good", "17.0.1")
    fake_java(tmp_path / "jvm" / "early", "11.0.1")
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/jvm/*",))
    check = check_java(LOCAL, {"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})
    assert check.level is FindingLevel.FAIL
    assert "which has no bin/java" in check.found
    assert check.fix == f"export JAVA_HOME={good}"


def test_no_java_at_all_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/*",))
    check = check_java(LOCAL, {"PATH": str(tmp_path)})
    assert check.level is FindingLevel.FAIL
    assert "apt-get install" in str(check.fix)


def test_a_java_in_a_usual_place_is_found_when_path_has_none_that_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "jvm" / "good", "21.0.2")
    fake_java(tmp_path / "jvm" / "early", "11.0.1")
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/none/*", f"{tmp_path}/jvm/*"))
    paths = [str(tmp_path)]
    for version in ("11.0.1", "25.0.1"):
        paths.append(f"{fake_java(tmp_path / version, version)}/bin:/usr/bin:/bin")
    for path in paths:
        check = check_java(LOCAL, {"PATH": path})
        assert (check.level, check.found) == (FindingLevel.OK, f"Java 21 ({good}/bin/java)"), path
        assert java.choose_java({"PATH": path}).home == good


@pytest.mark.chaos
def test_spark_starts_with_a_java_that_is_not_on_path(tmp_path: Path) -> None:
    """In a process of its own, where PATH has all that a shell script needs but java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            if program.name != "java" and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    real = java.choose_java(os.environ)
    assert real.program is not None
    home = Path(real.program).resolve().parent.parent
    code = (
        "import os, sys; from pathlib import Path;"
        "from tidegate.config import SparkSettings;"
        "from tidegate.spark import java; from tidegate.spark.session import SparkSessions;"
        "java.NOTE = Path('none'); java.PLACES = sys.argv[2:];"
        "spark = SparkSessions(SparkSettings(master='local[1]'), Path(sys.argv[1]));"
        "print(spark.get().range(3).count(), os.environ['JAVA_HOME']); spark.stop()"
    )

    def start(*places: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "state"), *places],
            env={**environment, "PATH": str(programs)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = start(str(home))
    assert done.stdout == f"3 {home}\n", done.stderr
    none = start()
    assert "Spark cannot start: no java on PATH, and JAVA_HOME is not set" in none.stderr
    assert "apt-get install" in none.stderr


def test_the_workers_python_must_run_and_have_what_tasks_import(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    environment = {**os.environ, "PYSPARK_PYTHON": str(bare)}
    environment.pop("PYTHONPATH", None)
    check = check_worker_python(LOCAL, environment)
    assert check.level is FindingLevel.FAIL
    assert "cannot import pyarrow" in check.found
    assert check.fix == "unset PYSPARK_PYTHON, so that this environment's Python is used"
    gone = check_worker_python(LOCAL, {**environment, "PYSPARK_PYTHON": str(tmp_path / "gone")})
    assert (gone.level, "does not run" in gone.found) == (FindingLevel.FAIL, True)
    answer = json.dumps({"version": [3, 8], "missing": {}})
    python = fake_program(tmp_path / "python", f"echo '{answer}'")
    check = check_worker_python(LOCAL, {**os.environ, "PYSPARK_PYTHON": str(python)})
    assert check.level is FindingLevel.FAIL
    assert "Python 3.8; this is" in check.found


def test_our_own_python_passes_and_workers_elsewhere_cannot_be_seen() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    assert check_worker_python(LOCAL, environment).level is FindingLevel.OK
    cluster = SparkSettings(master="spark://host:7077")
    assert check_worker_python(cluster, environment).level is FindingLevel.WARN
    assert check_pyspark().level is FindingLevel.OK


def test_little_room_is_a_warning_even_where_the_folder_is_not_made_yet(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    assert check_disk("state", folder, low_bytes=1).level is FindingLevel.OK
    assert check_disk("state", folder, low_bytes=1 << 60).level is FindingLevel.WARN
