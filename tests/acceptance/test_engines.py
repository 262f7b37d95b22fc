"""The same maintenance wherever it runs: here, on a cluster, behind Spark Connect and Thrift."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import tidegate
from acceptance.engine_suite import (
    SECRET,
    check_engine,
    check_fence,
    make_engine_lake,
    make_table,
)
from acceptance.processes import Process, until
from acceptance.relay import Relay
from acceptance.spark_server import SparkServer
from acceptance.thrift_server import ThriftServer
from databases import Databases
from integration.lake_harness import Lake
from tidegate.errors import ConnectionFailed, DestinationError
from tidegate.insight.doctor_engine import check_engine as examine_engine
from tidegate.lake.engine import SparkEngine
from tidegate.lake.jars import lake_conf
from tidegate.lake.thrift_engine import ThriftEngine
from tidegate.model.check import Level
from tidegate.pipeline.maintenance_engine import engine_of
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project
from tidegate.settings import SparkSettings
from tidegate.spark.session import SparkSessions

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
KEPT = "kept"
"""the catalog that the Thrift server knows by itself"""


@pytest.fixture(scope="module")
def conninfo(server: EmbeddedServer, kept_databases: Databases) -> Iterator[str]:
    name = kept_databases.make("engines")
    yield server.conninfo(name)
    server.start()
    kept_databases.give_back(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def lake(conninfo: str, folder: Path) -> Lake:
    return make_engine_lake(conninfo, folder)


@pytest.fixture(scope="module")
def thrift_server(
    tmp_path_factory: pytest.TempPathFactory, conninfo: str, folder: Path
) -> Iterator[ThriftServer]:
    known = make_engine_lake(conninfo, folder, KEPT).catalog
    server = ThriftServer(tmp_path_factory.mktemp("thrift"), known.spark_conf())
    yield server
    server.stop()


@pytest.fixture
def make_project(conninfo: str, tmp_path: Path):  # type: ignore[no-untyped-def]
    def make(engine: str) -> Project:
        (tmp_path / "tidegate.toml").write_text(
            f'[project]\nname = "shop"\ncontrol = "{conninfo}"\n'
            f'[connections]\nlake = {{ type = "iceberg" }}\n[maintenance]\nengine = "{engine}"\n'
        )
        return Project.open(tmp_path)

    return make


def test_a_spark_connect_server_maintains_beside_a_spark_of_this_process(
    lake: Lake, folder: Path, spark_server: SparkServer, make_project
) -> None:
    project = make_project(spark_server.url)
    engine = engine_of(project.context)
    assert engine_of(project.context) is engine
    check_engine(lake, engine)
    # Otherwise every function of pyspark would speak to the server from now on.
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    (found,) = examine_engine(project.context)
    assert found.level is Level.OK, found


def test_a_spark_of_this_process_maintains(lake: Lake, folder: Path) -> None:
    sessions = SparkSessions(
        SparkSettings(master="local[2]"), folder, lambda: lake_conf({}, postgres=True)
    )
    check_engine(lake, SparkEngine(sessions))
    sessions.stop()


def test_a_cluster_maintains(conninfo: str, tmp_path: Path, lake: Lake) -> None:
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "acceptance.engine_suite", LOCAL_CLUSTER, conninfo]
    search = [str(tests), str(Path(tidegate.__file__).parents[1])]
    process = Process(
        [*command, str(lake.catalog.warehouse.parent)],
        tmp_path / "suite",
        {"PYTHONPATH": os.pathsep.join(search)},
    )
    try:
        ended = process.wait()
    finally:
        process.kill_all()
    assert ended.code == 0, ended


def test_a_thrift_server_maintains_and_learns_no_secret_by_heart(
    lake: Lake, conninfo: str, thrift_server: ThriftServer, make_project
) -> None:
    project = make_project(thrift_server.url)
    engine = engine_of(project.context)
    assert engine_of(project.context) is engine
    check_engine(lake, engine)
    (found,) = examine_engine(project.context)
    assert found.level is Level.OK, found
    assert "CALL `lake`.system.rewrite_data_files" in thrift_server.log
    password = psycopg.conninfo.conninfo_to_dict(conninfo).get("password")
    for secret in filter(None, (SECRET, password)):
        assert str(secret) not in thrift_server.log


def test_a_catalog_that_the_thrift_server_knows_is_fenced_as_well(
    conninfo: str, folder: Path, thrift_server: ThriftServer
) -> None:
    lake = make_engine_lake(conninfo, folder, KEPT)
    engine = ThriftEngine(f"{thrift_server.url}?catalog=server")
    attempt_id = "some-attempt"
    sent = engine.conf(lake.catalog, attempt_id)
    assert SECRET not in str(sent)
    assert sorted(key for key in sent if "catalog" in key) == [
        "spark.sql.catalog.kept.jdbc.ApplicationName",
        "spark.sql.catalog.kept.jdbc.options",
    ]
    check_fence(make_table(lake, engine))


def test_a_session_ends_with_its_attempt_and_is_told_from_one_that_was_lost(
    lake: Lake, thrift_server: ThriftServer
) -> None:
    relay = Relay(int(thrift_server.url.rpartition(":")[2]))
    engine = ThriftEngine(f"thrift://127.0.0.1:{relay.port}")
    with engine.session(lake.catalog, "one") as session:
        numbers = session.run("SELECT id FROM range(2500)")
        assert [row["id"] for row in numbers] == list(range(2500))
    until(lambda: relay.open == 0, "the session to be closed")
    with engine.session(lake.catalog, "two") as session:
        relay.cut()
        with pytest.raises(ConnectionFailed, match="thrift://"):
            list(session.run("SELECT 1"))
    with engine.session(lake.catalog, "three") as session:
        engine.interrupt("three")
        with pytest.raises(DestinationError, match="interrupted"):
            list(session.run("SELECT 1"))
    relay.close()
    with pytest.raises(ConnectionFailed), engine.session(lake.catalog, "four"):
        pass
