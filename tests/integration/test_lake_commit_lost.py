"""The catalog's connection is lost at a commit: the table tells what became of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from acceptance.proxy import Cut, Proxy
from acceptance.proxy import _read_message as read_message
from integration.conftest import Database
from integration.lake_harness import LakeHarness, lake_shape, make_lake, spelled_out
from tidegate.destinations import lake_publishing
from tidegate.errors import LoadError
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.rules import Mode, Rules
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.spark.session import SparkSessions

ROWS = [(1, "a", 1), (2, "b", 2)]
COMMITS = ("the branch", "the rows", "main", "the branch's end")


class CatalogProxy(Proxy):
    """Cuts the line at one of the catalog's commits, which are single statements."""

    def __init__(self, port: int, cut: Cut) -> None:
        super().__init__(port, cut, "tidegate.attempt=")
        self.cut_at: int | None = None
        self.before_commit: Callable[[int], None] = lambda _: None
        self.before_cut: Callable[[], None] = lambda: None
        self.seen = 0

    def _forward(
        self,
        client: socket.socket,
        server: socket.socket,
        watched: bool,
        silenced: threading.Event,
    ) -> None:
        commits = False
        try:
            while True:
                message = read_message(client)
                if watched and message[:1] == b"P" and b"UPDATE" in message:
                    self.seen += 1
                    self.before_commit(self.seen)
                    commits = self.seen == self.cut_at
                    if commits and self._cut is Cut.BEFORE_COMMIT:
                        self.cuts += 1
                        return
                if not (commits and message[:1] == b"S"):
                    server.sendall(message)
                    continue
                self.cuts += 1
                silenced.set()
                server.sendall(message)
                # The server has answered, to nobody; only then is the line cut.
                server.shutdown(socket.SHUT_WR)
                while server.recv(65536):
                    pass
                self.before_cut()
                return
        finally:
            for line in (client, server):
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)


MakeProxied = Callable[..., tuple[LakeHarness, CatalogProxy]]


@pytest.fixture
def make_proxied(
    server: EmbeddedServer, database: Database, tmp_path: Path, warm_spark: SparkSessions
) -> Iterator[MakeProxied]:
    """A maker of tables whose catalog is reached through a proxy."""
    made: list[CatalogProxy] = []

    def make(cut: Cut, mode: Mode = Mode.APPEND) -> tuple[LakeHarness, CatalogProxy]:
        proxy = CatalogProxy(server.port, cut)
        made.append(proxy)
        lake = make_lake(database, tmp_path, warm_spark)
        address = make_conninfo(spelled_out(database), port=proxy.port)
        lake = replace(lake, catalog=replace(lake.catalog, control=lambda: address))
        key = "" if mode is Mode.APPEND else "id"
        return LakeHarness(lake, lake_shape(key=key, unique=bool(key)), Rules(mode=mode)), proxy

    yield make
    for proxy in made:
        proxy.close()


def load_until_done(harness: LakeHarness) -> None:
    """As a worker does, attempt by attempt."""
    for _ in range(3):
        fence = harness.attempt()
        harness.destination.heal(fence)
        if harness.exists("u"):
            return
        writes = harness.stage(fence, ROWS)
        try:
            harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "2"), update_id="u")
        except LoadError:
            continue
        return
    raise AssertionError("the load did not end")


def assert_in_once(harness: LakeHarness) -> None:
    assert harness.rows() == ROWS
    assert harness.markers() == ["u"]
    assert (harness.watermark().version, harness.watermark().rows_synced) == (1, 2)
    assert_readable(harness)


def assert_readable(harness: LakeHarness) -> None:
    with harness.session() as session:
        # Every snapshot that main is made of can be read: no file of it was cleaned up.
        table = harness.lake.catalog.quoted(harness.destination.relation)
        for one in harness.read().ancestors():
            session.run(f"SELECT count(*) FROM {table} VERSION AS OF {one.snapshot_id}")


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("number", range(1, 5), ids=COMMITS)
def test_a_commit_whose_answer_is_lost_is_neither_assumed_nor_made_twice(
    make_proxied: MakeProxied, cut: Cut, number: int
) -> None:
    harness, proxy = make_proxied(cut)
    proxy.cut_at = number
    load_until_done(harness)
    assert proxy.cuts == 1
    assert_in_once(harness)


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.MERGE])
@pytest.mark.parametrize("external", [False, True])
def test_a_commit_to_main_itself_is_not_repeated_when_its_answer_is_lost(
    make_proxied: MakeProxied, monkeypatch: pytest.MonkeyPatch, mode: Mode, external: bool
) -> None:
    """The driver sends it again, and Iceberg takes its own first try for somebody else's."""
    monkeypatch.setattr(lake_publishing, "_RACES", 0)
    harness, proxy = make_proxied(Cut.BEFORE_ANSWER, mode)
    table = harness.lake.catalog.quoted(harness.destination.relation)
    first = [(7, "first", 0)]
    fence = harness.attempt()
    harness.publish(fence, harness.stage(fence, first), Batch(BatchKind.RANGE, None, "0"))
    proxy.cut_at = proxy.seen + (3 if mode is Mode.APPEND else 2)
    others = [(9, "external", 0)] if external else []

    def insert() -> None:
        if external:
            with harness.session() as session:
                session.run(f"INSERT INTO {table} VALUES (9, 'external', 0)")

    proxy.before_cut = insert
    load_until_done(harness)
    assert proxy.cuts == 1
    assert harness.rows() == [*ROWS, *first, *others]
    assert harness.markers()[1:] == ["u"]
    assert_readable(harness)


@pytest.mark.parametrize("number", range(1, 5), ids=COMMITS)
def test_a_session_of_the_catalog_that_is_ended_in_its_commit_has_committed_nothing(
    database: Database, tmp_path: Path, warm_spark: SparkSessions, number: int
) -> None:
    lake = make_lake(database, tmp_path, warm_spark)
    harness = LakeHarness(lake, lake_shape(key="", unique=False), Rules(mode=Mode.APPEND))
    database.execute(
        "CREATE SEQUENCE commits",
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN IF nextval(''public.commits'') = {number} THEN"
        " PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END'",
        f"CREATE TRIGGER die BEFORE UPDATE ON {lake.schema}.iceberg_tables"
        " FOR EACH ROW EXECUTE FUNCTION die()",
    )
    load_until_done(harness)
    assert database.value("SELECT last_value FROM commits") >= number
    assert_in_once(harness)


def test_a_session_that_is_lost_after_main_has_moved_is_no_error(
    database: Database, tmp_path: Path, warm_spark: SparkSessions
) -> None:
    lake = make_lake(database, tmp_path, warm_spark)
    harness = LakeHarness(lake, lake_shape(key="", unique=False), Rules(mode=Mode.APPEND))
    # The first time it is a trial, before the rows are in.
    database.execute(
        "CREATE SEQUENCE moves",
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF nextval(''public.moves'') = 2 THEN"
        " PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END'",
        f"CREATE TRIGGER die BEFORE UPDATE ON {lake.schema}.etl_state"
        " FOR EACH ROW EXECUTE FUNCTION die()",
    )
    fence = harness.attempt()
    writes = harness.stage(fence, ROWS)
    harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "2"), update_id="u")
    assert database.value("SELECT last_value FROM moves") == 3
    assert_in_once(harness)
