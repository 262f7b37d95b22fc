"""`doctor` looks at a lake: its catalog, its files, the fence of its commits, Spark's jars."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from integration.commands import DONE, FAILED, USAGE, tidegate
from integration.conftest import MakePlace, Place
from integration.filled_lakes import fill_table, lake_place, make_table, orders, schema_of
from integration.orders import CREATE, FILL, contents
from integration.test_doctor import examine_place, named
from tidegate.lake.jars import ICEBERG
from tidegate.model.check import Level

SECRET = "s3cr3t-t0k3n"
LAKE = 'connection "lake"'


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    return place


@contextmanager
def rest_server(status: int) -> Iterator[str]:
    """A server that answers every question in one way, with the question's token in it."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization", "")
            body = f'{{"error": {{"message": "no {token}", "type": "X", "code": {status}}}}}'
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def rest_lake(uri: str) -> str:
    return f'type = "iceberg"\ncatalog = "rest"\nuri = "{uri}"\ntoken = "{SECRET}"'


def conf(**values: str) -> str:
    return "\n".join(f'"{key}" = "{value}"' for key, value in values.items())


def test_a_lake_that_is_well_passes_every_check_and_stays_as_it_was(place: Place) -> None:
    before = contents(place.control)
    found = examine_place(place)
    assert contents(place.control) == before
    assert [check for check in found.checks if check.level is Level.FAIL] == []
    assert named(found, LAKE).found == "catalog embedded can be read, 0 namespaces"
    assert "will be created" in named(found, f"{LAKE}: ledger").found
    assert "first use" in named(found, f"{LAKE}: fence of the catalog").found
    assert named(found, f"{LAKE}: from Spark").found == (
        "the catalog is reached over TCP, at 127.0.0.1"
    )
    assert named(found, f"{LAKE}: files").found.endswith(".tidegate/lake/lake may be written")
    assert "will be created" in named(found, f"{LAKE}: raw.orders").found
    assert named(found, "pyiceberg").level is Level.OK
    fill_table(place, orders([1]))
    found = examine_place(place)
    assert named(found, LAKE).found == "catalog embedded can be read, 1 namespaces"
    assert named(found, f"{LAKE}: raw.orders").found == "is there"
    assert named(found, f"{LAKE}: fence of the catalog").found == (
        "its triggers are there and enabled"
    )


def test_a_catalog_without_its_trigger_is_told_and_the_next_use_makes_it(place: Place) -> None:
    make_table(place)
    table = f"{schema_of(place)}.iceberg_tables"
    place.control.execute(f"ALTER TABLE {table} DISABLE TRIGGER refuse_stale_attempt")
    check = named(examine_place(place), f"{LAKE}: fence of the catalog")
    assert check.level is Level.FAIL
    assert check.fix is not None
    assert "ENABLE TRIGGER refuse_stale_attempt" in check.fix
    place.control.execute(check.fix.replace(";", ""))
    assert named(examine_place(place), f"{LAKE}: fence of the catalog").level is Level.OK
    place.control.execute(f"DROP TRIGGER refuse_stale_attempt ON {table}")
    check = named(examine_place(place), f"{LAKE}: fence of the catalog")
    assert (check.level, "is not there" in check.found) == (Level.FAIL, True)
    place.open().context.ledger("lake").ensure()
    assert named(examine_place(place), f"{LAKE}: fence of the catalog").level is Level.OK


def test_a_place_that_cannot_hold_the_files_is_told(place: Place) -> None:
    state = place.folder / ".tidegate"
    state.mkdir(exist_ok=True)
    (state / "lake").write_text("in the way")
    check = named(examine_place(place), f"{LAKE}: files")
    assert check.level is Level.FAIL
    assert check.found == f"{state / 'lake'} is not a folder"


def test_files_elsewhere_that_cannot_be_reached_are_told_without_their_keys(
    make_place: MakePlace,
) -> None:
    lake = 'type = "iceberg"\nwarehouse = "s3://lake/"\n"s3.endpoint" = "http://127.0.0.1:1"\n'
    lake += f'"s3.access-key-id" = "me"\n"s3.secret-access-key" = "{SECRET}"\n'
    lake += '"s3.connect-timeout" = "1"\n"s3.request-timeout" = "1"'
    place = lake_place(make_place, lake=lake)
    place.source.execute(*CREATE)
    check = named(examine_place(place), f"{LAKE}: files")
    assert check.level is Level.FAIL
    assert check.found.startswith("s3://lake cannot be reached: ")
    done = tidegate(place.folder, "doctor", "--json")
    assert done.code == FAILED
    assert SECRET not in done.said


def test_folders_and_addresses_of_this_machine_are_no_use_to_spark_elsewhere(place: Place) -> None:
    found = examine_place(place, **{"spark.remote": "sc://spark.example:15002"})
    assert named(found, f"{LAKE}: files").level is Level.WARN
    assert named(found, f"{LAKE}: from Spark").level is Level.WARN
    assert ICEBERG in str(named(found, "iceberg for spark").fix)


def test_jars_are_there_or_fetched_or_missing(place: Place) -> None:
    file = place.folder / "tidegate.toml"
    text = file.read_text()
    there = place.folder / "iceberg-spark-runtime.jar"
    there.write_text("")
    driver = place.folder / "postgresql.jar"
    driver.write_text("")
    given = conf(**{"spark.jars": f"{there},{driver}"})
    file.write_text(f"{text}\n[spark.conf]\n{given}\n")
    assert named(examine_place(place), "iceberg for spark").found == "the jars are there"
    driver.unlink()
    check = named(examine_place(place), "iceberg for spark")
    assert (check.level, check.found) == (Level.FAIL, f"{driver} is not there")
    assert check.fix == 'correct "spark.jars" in [spark.conf]'
    done = tidegate(place.folder, "run", "orders")
    assert done.code == USAGE, done
    assert f'"spark.jars" in [spark.conf] names {driver}, which is not there' in done.err
    file.write_text(f"{text}\n[spark.conf]\n" + conf(**{"spark.jars.ivy": str(place.folder)}))
    check = named(examine_place(place), "iceberg for spark")
    assert check.level is Level.WARN
    assert ICEBERG in check.found
    assert '"spark.jars" = "FILE,FILE"' in str(check.fix)


@pytest.mark.parametrize(
    ("lake", "words", "fix"),
    [
        (
            'type = "iceberg"\ncatalog = "rset"',
            'catalog = "rset" is not one that Tidegate can read; did you mean "rest"?',
            "one of embedded, bigquery, dynamodb, glue, hadoop, hive, jdbc, rest",
        ),
        (
            rest_lake("http://127.0.0.1:1"),
            'the catalog of connection "lake" (rest) cannot be read: ConnectionError',
            "see that it is running",
        ),
        (
            'type = "iceberg"\ncatalog = "rest"',
            'the catalog of connection "lake" (rest) cannot be read: ',
            "the options of the connection are right",
        ),
        (
            'type = "iceberg"\ncatalog = "hive"\nuri = "thrift://127.0.0.1:1"',
            'the catalog of connection "lake" (hive)',
            "",
        ),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_told_alike_by_every_command(
    make_place: MakePlace, lake: str, words: str, fix: str
) -> None:
    place = lake_place(make_place, lake=lake)
    place.source.execute(*CREATE, FILL)
    check = named(examine_place(place), LAKE)
    assert check.level is Level.FAIL
    assert words in check.found
    assert fix in str(check.fix)
    for command in (["plan"], ["run", "orders"], ["adopt", "orders", "--from-target-max"]):
        done = tidegate(place.folder, *command)
        assert done.code in (FAILED, USAGE), done
        assert words in done.err
        assert SECRET not in done.said


@pytest.mark.parametrize(
    "status",
    [401, 503, *(pytest.param(status, marks=pytest.mark.chaos) for status in (403, 500))],
)
def test_what_a_catalog_answers_is_told_without_the_token(
    make_place: MakePlace, status: int
) -> None:
    with rest_server(status) as uri:
        place = lake_place(make_place, lake=rest_lake(uri))
        place.source.execute(*CREATE, FILL)
        for command in (["plan"], ["plan", "--json"], ["doctor", "--json"], ["run", "orders"]):
            done = tidegate(place.folder, *command)
            assert done.code in (FAILED, USAGE), done
            assert 'the catalog of connection \\"lake\\"' in done.said.replace(
                '"lake"', '\\"lake\\"'
            )
            assert SECRET not in done.said
        told = tidegate(place.folder, "plan").err
        assert ("refuses us" in told) == (status in (401, 403))
        # What is recorded of it lies in the control database, and needs no catalog.
        for command in (["status"], ["watermark", "list"], ["marker", "list"], ["db", "check"]):
            done = tidegate(place.folder, *command)
            assert done.code == DONE or command == ["db", "check"], done
            assert SECRET not in done.said
    for file in (place.folder / ".tidegate").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_other_commands_that_meet_a_lake_of_a_wrong_type_name_it(make_place: MakePlace) -> None:
    place = lake_place(make_place, lake='type = "icberg"')
    done = tidegate(place.folder, "plan")
    assert done.code == USAGE
    assert "connections.lake.type" in done.err
    assert 'type = "iceberg"' in done.err


@pytest.mark.parametrize("scheme", ["sc", "thrift"])
def test_an_engine_of_maintenance_that_is_not_there_is_named_without_its_secrets(
    place: Place, scheme: str
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        where = f"{scheme}://127.0.0.1:{bound.getsockname()[1]}"
        secret = {
            "sc": f"{where}/;token={SECRET}",
            "thrift": where.replace("://", f"://u:{SECRET}@"),
        }
        found = examine_place(place, maintenance={"engine": secret[scheme]})
    check = named(found, "maintenance engine")
    assert check.level is Level.FAIL
    assert where in check.found
    assert "refused" in check.found
    assert SECRET not in str(found)
    assert not any(one.name == "maintenance engine" for one in examine_place(place).checks)
