"""`doctor` looks at a lake: its catalog, its files, the fence of its commits, Spark's jars."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from integration import commands
from integration.commands import DONE, FAILED, USAGE
from integration.conftest import MakePlace, Place
from integration.filled_lakes import fill_table, lake_place, orders, schema_of
from integration.here import tidegate
from integration.orders import CREATE, FILL, contents
from integration.test_doctor import examine_place, named
from tidegate.admin.doctor.finding import Finding, FindingLevel
from tidegate.admin.doctor.iceberg import check_engine, check_lakes
from tidegate.config import load_settings
from tidegate.iceberg.jars import ICEBERG
from tidegate.project import Project

SECRET = "s3cr3t-t0k3n"
LAKE = 'connection "lake"'
FENCE = f"{LAKE}: fence of the catalog"
JARS = "iceberg for spark"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return unread(make_place, 'type = "iceberg"')


def unread(make_place: MakePlace, lake: str) -> Place:
    place = lake_place(make_place, lake=lake, databases=1)
    place.source.execute(*CREATE, FILL)
    return place


def look(place: Place, **settings: Any) -> dict[str, Finding]:
    """What is said of the lakes and of who maintains them."""
    with Project(load_settings(place.folder, overrides=settings)) as project:
        checks = check_lakes(project.context, project.syncs.values())
        return {one.name: one for one in (*checks, *check_engine(project.context))}


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

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def rest_lake(uri: str) -> str:
    return f'type = "iceberg"\ncatalog = "rest"\nuri = "{uri}"\ntoken = "{SECRET}"'


def test_a_lake_that_is_well_passes_every_check_and_stays_as_it_was(place: Place) -> None:
    before = contents(place.control)
    found = examine_place(place)
    assert contents(place.control) == before
    assert [check for check in found.checks if check.level is FindingLevel.FAIL] == []
    assert named(found, LAKE).found == "catalog embedded can be read, 0 namespaces"
    assert "will be created" in named(found, f"{LAKE}: ledger").found
    assert "first use" in named(found, FENCE).found
    reached = "the catalog is reached over TCP, at 127.0.0.1"
    assert named(found, f"{LAKE}: from Spark").found == reached
    assert named(found, f"{LAKE}: files").found.endswith(".tidegate/lake/lake may be written")
    assert "will be created" in named(found, f"{LAKE}: raw.orders").found
    assert named(found, "pyiceberg").level is FindingLevel.OK
    fill_table(place, orders([1]))
    checks = look(place)
    assert "maintenance engine" not in checks
    assert checks[LAKE].found == "catalog embedded can be read, 1 namespaces"
    assert checks[f"{LAKE}: raw.orders"].found == "is there"
    assert checks[FENCE].found == "its triggers are there and enabled"
    # A catalog without its trigger is told, and the next use makes it.
    table = f"{schema_of(place)}.iceberg_tables"
    place.control.execute(f"ALTER TABLE {table} DISABLE TRIGGER refuse_stale_attempt")
    check = look(place)[FENCE]
    assert check.level is FindingLevel.FAIL
    assert check.fix is not None
    assert "ENABLE TRIGGER refuse_stale_attempt" in check.fix
    place.control.execute(check.fix.replace(";", ""))
    assert look(place)[FENCE].level is FindingLevel.OK
    place.control.execute(f"DROP TRIGGER refuse_stale_attempt ON {table}")
    check = look(place)[FENCE]
    assert (check.level, "is not there" in check.found) == (FindingLevel.FAIL, True)
    place.open().context.ledger("lake").ensure()
    assert look(place)[FENCE].level is FindingLevel.OK


def test_a_place_that_cannot_hold_the_files_is_told_without_its_keys(
    place: Place, make_place: MakePlace
) -> None:
    # Folders and addresses of this machine are no use to a Spark elsewhere.
    checks = look(place, **{"spark.remote": "sc://spark.example:15002"})
    for what in ("files", "from Spark"):
        assert checks[f"{LAKE}: {what}"].level is FindingLevel.WARN
    assert ICEBERG in str(checks[JARS].fix)
    state = place.folder / ".tidegate"
    state.mkdir(exist_ok=True)
    (state / "lake").write_text("in the way")
    check = look(place)[f"{LAKE}: files"]
    assert (check.level, check.found) == (FindingLevel.FAIL, f"{state / 'lake'} is not a folder")

    lake = 'type = "iceberg"\nwarehouse = "s3://lake/"\n"s3.endpoint" = "http://127.0.0.1:1"\n'
    lake += f'"s3.access-key-id" = "me"\n"s3.secret-access-key" = "{SECRET}"\n'
    lake += '"s3.connect-timeout" = "1"\n"s3.request-timeout" = "1"'
    place = unread(make_place, lake)
    done = tidegate(place.folder, "doctor", "--json")
    assert (done.code, SECRET in done.said) == (FAILED, False)
    assert "s3://lake cannot be reached: " in done.out


def test_jars_are_there_or_fetched_or_missing(place: Place) -> None:
    file = place.folder / "tidegate.toml"
    text = file.read_text()
    there, driver = (place.folder / f"{one}.jar" for one in ("iceberg-spark-runtime", "postgresql"))
    for jar in (there, driver):
        jar.write_text("")
    file.write_text(f'{text}\n[spark.conf]\n"spark.jars" = "{there},{driver}"\n')
    assert look(place)[JARS].found == "the jars are there"
    driver.unlink()
    check = look(place)[JARS]
    assert (check.level, check.found) == (FindingLevel.FAIL, f"{driver} is not there")
    assert check.fix == 'correct "spark.jars" in [spark.conf]'
    # In a process of its own, which has no Spark yet.
    done = commands.tidegate(place.folder, "run", "orders")
    assert done.code == USAGE, done
    assert f'"spark.jars" in [spark.conf] names {driver}, which is not there' in done.err
    file.write_text(f'{text}\n[spark.conf]\n"spark.jars.ivy" = "{place.folder}"\n')
    check = look(place)[JARS]
    assert (check.level, ICEBERG in check.found) == (FindingLevel.WARN, True)
    assert '"spark.jars" = "FILE,FILE"' in str(check.fix)


CANNOT = 'the catalog of connection "lake" '
UNREADABLE = [
    (
        rest_lake("http://127.0.0.1:1"),
        f"{CANNOT}(rest) cannot be read: ConnectionError",
        "see that it is running",
    ),
    (
        'type = "iceberg"\ncatalog = "rset"',
        'catalog = "rset" is not one that Tidegate can read; did you mean "rest"?',
        "one of embedded, bigquery, dynamodb, glue, hadoop, hive, jdbc, rest",
    ),
    (
        'type = "iceberg"\ncatalog = "rest"',
        f"{CANNOT}(rest) cannot be read: ",
        "the options of the connection are right",
    ),
    ('type = "iceberg"\ncatalog = "hive"\nuri = "thrift://127.0.0.1:1"', f"{CANNOT}(hive)", ""),
]


def test_a_catalog_that_cannot_be_opened_is_told_alike_by_every_command(
    make_place: MakePlace,
) -> None:
    commands = [["plan"], ["run", "orders"], ["adopt", "orders", "--from-target-max"]]
    for lake, words, fix in UNREADABLE:
        place = unread(make_place, lake)
        check = look(place)[LAKE]
        assert (check.level, words in check.found) == (FindingLevel.FAIL, True), check
        assert fix in str(check.fix)
        for command in commands if SECRET in lake else commands[:1]:
            done = tidegate(place.folder, *command)
            assert done.code in (FAILED, USAGE), done
            assert words in done.err
            assert SECRET not in done.said
    done = tidegate(unread(make_place, 'type = "icberg"').folder, "plan")
    assert (done.code, "connections.lake.type" in done.err) == (USAGE, True), done
    assert 'type = "iceberg"' in done.err


@pytest.mark.parametrize(
    "status",
    [401, *(pytest.param(status, marks=pytest.mark.chaos) for status in (403, 500, 503))],
)
def test_what_a_catalog_answers_is_told_without_the_token(
    make_place: MakePlace, status: int
) -> None:
    with rest_server(status) as uri:
        place = unread(make_place, rest_lake(uri))
        for command in (["plan"], ["plan", "--json"], ["doctor", "--json"], ["run", "orders"]):
            done = tidegate(place.folder, *command)
            assert done.code in (FAILED, USAGE), done
            assert CANNOT in done.said.replace('\\"', '"')
            assert SECRET not in done.said
        assert ("refuses us" in done.err) == (status in (401, 403))
        # What is recorded of it lies in the control database, and needs no catalog.
        for command in (["status"], ["watermark", "list"], ["marker", "list"], ["db", "check"]):
            done = tidegate(place.folder, *command)
            assert done.code == DONE or command == ["db", "check"], done
            assert SECRET not in done.said
    for file in (place.folder / ".tidegate").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("engine", ["sc://{}/;token={}", "thrift://u:{1}@{0}"])
def test_an_engine_of_maintenance_that_is_not_there_is_named_without_its_secrets(
    place: Place, engine: str
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        where = f"127.0.0.1:{bound.getsockname()[1]}"
        given = {"engine": engine.format(where, SECRET)}
        checks = look(place, maintenance=given)
    check = checks["maintenance engine"]
    assert check.level is FindingLevel.FAIL
    assert f"{engine.partition('/')[0]}//{where}" in check.found
    assert "refused" in check.found
    assert SECRET not in str(checks)
