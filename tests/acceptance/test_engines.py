"""The same maintenance wherever it runs: here, on a cluster, behind Spark Connect and Thrift."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from acceptance.engine_suite import SECRET, EngineSuite, engine_place
from acceptance.processes import Process, until
from acceptance.relay import Relay
from acceptance.spark_server import SparkServer
from acceptance.thrift_server import ThriftServer
from conftest import MakeDatabase
from databases import Databases
from integration.conftest import MakePlace, Place
from integration.shared_places import shared_places
from tidegate.admin.doctor.finding import FindingLevel
from tidegate.admin.doctor.iceberg import check_engine
from tidegate.core.errors import ConnectionFailed, DestinationError
from tidegate.iceberg.engines import ThriftEngine
from tidegate.maintenance.procedures import engine_of

LOCAL_CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture
def place(make_database: MakeDatabase, tmp_path: Path) -> Place:
    """A project with a table to maintain."""
    return engine_place(MakePlace(make_database, tmp_path))


@pytest.fixture(scope="module")
def known_place(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A project whose catalog the Thrift server was started with."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("known")) as make_place:
        yield engine_place(make_place)


@pytest.fixture(scope="module")
def thrift_server(
    tmp_path_factory: pytest.TempPathFactory, known_place: Place
) -> Iterator[ThriftServer]:
    """Spark's Thrift server; what it says until it is stopped is kept."""
    conf = known_place.open().context.catalog("lake").spark_conf()
    server = ThriftServer(tmp_path_factory.mktemp("thrift"), conf)
    yield server
    server.stop()


def suite(place: Place, **sections: dict[str, str]) -> EngineSuite:
    """The suite on an engine that the project's settings say."""
    file = place.folder / "tidegate.toml"
    for name, values in sections.items():
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
        file.write_text(f"{file.read_text()}\n[{name}]\n{lines}\n")
    return EngineSuite(place.open(), place)


def test_a_spark_connect_server_maintains_beside_a_spark_of_this_process(
    place: Place, spark_server: SparkServer
) -> None:
    connect = suite(place, maintenance={"engine": spark_server.url}, spark={"master": "local[2]"})
    context = connect.project.context
    assert engine_of(context) is engine_of(context)
    connect.check()
    assert not context.spark.started
    # Otherwise every function of pyspark would speak to the server from now on.
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    (found,) = check_engine(context)
    assert found.level is FindingLevel.OK, found


@pytest.mark.chaos
def test_a_spark_of_this_process_maintains(place: Place) -> None:
    local = suite(place, spark={"master": "local[2]"})
    local.check()
    assert check_engine(local.project.context) == []
    local.project.context.spark.stop()


@pytest.mark.chaos
def test_a_cluster_maintains(place: Place) -> None:
    suite(place, spark={"master": LOCAL_CLUSTER})
    search = [str(Path(__file__).parents[1]), str(Path(tidegate.__file__).parents[1])]
    process = Process(
        [sys.executable, "-m", "acceptance.engine_suite", str(place.folder)],
        place.folder / "suite",
        {"PYTHONPATH": os.pathsep.join(search)},
    )
    try:
        ended = process.wait()
    finally:
        process.kill_all()
    assert ended.code == 0, ended
    assert LOCAL_CLUSTER in ended.out


@pytest.mark.chaos
def test_a_thrift_server_maintains_and_logs_no_secret(
    place: Place, thrift_server: ThriftServer
) -> None:
    thrift = suite(place, maintenance={"engine": thrift_server.url})
    context = thrift.project.context
    assert engine_of(context) is engine_of(context)
    thrift.check()
    (found,) = check_engine(context)
    assert found.level is FindingLevel.OK, found
    assert "CALL `lake`.system.rewrite_data_files" in thrift_server.log
    assert SECRET not in thrift_server.log


@pytest.mark.chaos
def test_a_catalog_that_the_thrift_server_knows_is_fenced_and_sent_no_secret(
    known_place: Place, thrift_server: ThriftServer
) -> None:
    thrift = suite(known_place, maintenance={"engine": f"{thrift_server.url}?catalog=server"})
    engine, context = thrift.engine, thrift.project.context
    assert isinstance(engine, ThriftEngine)
    sent = engine.conf(context.catalog("lake"), thrift.attempt())
    assert sorted(key for key in sent if "catalog" in key) == [
        "spark.sql.catalog.lake.jdbc.ApplicationName",
        "spark.sql.catalog.lake.jdbc.options",
    ]
    thrift.check_maintenance()
    thrift.check_fence()


@pytest.mark.chaos
def test_a_session_of_thrift_ends_with_its_attempt_and_may_be_lost(
    place: Place, thrift_server: ThriftServer
) -> None:
    relay = Relay(int(thrift_server.url.rpartition(":")[2]))
    thrift = suite(place, maintenance={"engine": f"thrift://127.0.0.1:{relay.port}"})
    with thrift.session("one") as session:
        numbers = session.run("SELECT id FROM range(2500)")
        assert [row["id"] for row in numbers] == list(range(2500))
    until(lambda: relay.open == 0, "the session to be closed")
    with thrift.session("two") as session:
        relay.cut()
        with pytest.raises(ConnectionFailed, match="thrift://"):
            list(session.run("SELECT 1"))
    with thrift.session("three") as session:
        thrift.engine.interrupt("three")
        with pytest.raises(DestinationError, match="interrupted"):
            list(session.run("SELECT 1"))
    # Its rows are made while they are fetched, and the server answers nothing else meanwhile.
    with thrift.session("four") as session:
        list(session.run("SET spark.sql.thriftServer.incrementalCollect = true"))
        jobs = thrift_server.log.count("Got job")

        interrupted: list[float] = []

        def interrupt() -> None:
            until(lambda: thrift_server.log.count("Got job") > jobs, "rows to be made")
            interrupted.append(time.monotonic())
            thrift.engine.interrupt("four")

        thread = threading.Thread(target=interrupt)
        rows = session.run(
            "SELECT id FROM range(0, 100000000, 1, 1) WHERE md5(CAST(id AS string)) = ''"
        )
        thread.start()
        with pytest.raises(DestinationError, match="interrupted"):
            list(rows)
        thread.join()
        assert time.monotonic() - interrupted[0] < 5
    relay.close()
    with pytest.raises(ConnectionFailed, match="refused"), thrift.session("five"):
        pass
    (found,) = check_engine(thrift.project.context)
    assert (found.level, found.name) == (FindingLevel.FAIL, "maintenance engine")
