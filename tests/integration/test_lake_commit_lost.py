"""The catalog's connection is lost at a commit: the table tells what became of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
from psycopg.conninfo import make_conninfo

from acceptance.proxy import Cut, Proxy
from acceptance.proxy import _read_message as read_message
from integration.lake_harness import (
    Lake,
    LakeHarness,
    append_harness,
    lake,
    shared,
    spelled_out,
)
from tidegate.config.sync import Mode
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import LoadError
from tidegate.load.targets.iceberg import publish
from tidegate.postgres.embedded import EmbeddedServer

__all__ = ["lake", "shared"]

ROWS = [(1, "a", 1), (2, "b", 2)]
QUICK = {(Cut.BEFORE_ANSWER, 2), (Cut.BEFORE_ANSWER, 3), (Cut.BEFORE_COMMIT, 3)}


class CatalogProxy(Proxy):
    """Cuts the line at one of the catalog's commits, which are single statements."""

    def __init__(self, port: int, cut: Cut) -> None:
        super().__init__(port, cut, "tidegate.attempt=")
        self.cut_at: int | None = None
        self.before_commit: Callable[[int], None] = lambda _: None
        self.before_cut: Callable[[], None] = lambda: None
        self.seen = 0

    def aim(self, cut: Cut, number: int) -> None:
        """Cut at the commit with this number from now on."""
        self._cut, self.cuts, self.cut_at = cut, 0, self.seen + number

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


@pytest.fixture(scope="module")
def proxy(server: EmbeddedServer) -> Iterator[CatalogProxy]:
    proxy = CatalogProxy(server.port, Cut.BEFORE_ANSWER)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def proxied(lake: Lake, proxy: CatalogProxy) -> Lake:
    """A lake whose catalog is reached through the proxy."""
    address = make_conninfo(spelled_out(lake.database), port=proxy.port)
    return replace(lake, catalog=replace(lake.catalog, control=lambda: address))


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
    """Every snapshot that main is made of can be read: no file of it was cleaned up."""
    table = harness.static()
    for one in harness.read().ancestors():
        assert table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows >= 0


@pytest.mark.parametrize(
    ("cut", "number"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.chaos)
        for case in product(Cut, range(1, 5))
    ],
)
def test_a_commit_whose_answer_is_lost_is_neither_assumed_nor_made_twice(
    proxied: Lake, proxy: CatalogProxy, cut: Cut, number: int
) -> None:
    """The commits of a load are those of its branch, its rows, main, and the branch's end."""
    harness = append_harness(proxied)
    proxy.aim(cut, number)
    load_until_done(harness)
    assert proxy.cuts == 1
    assert_in_once(harness)


@pytest.mark.parametrize(
    ("mode", "external"),
    [
        (Mode.APPEND, True),
        pytest.param(Mode.MERGE, False, marks=pytest.mark.chaos),
        pytest.param(Mode.APPEND, False, marks=pytest.mark.chaos),
        pytest.param(Mode.MERGE, True, marks=pytest.mark.chaos),
    ],
)
def test_a_commit_to_main_itself_is_not_repeated_when_its_answer_is_lost(
    proxied: Lake,
    proxy: CatalogProxy,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    external: bool,
) -> None:
    """The driver sends it again, and Iceberg takes its own first try for somebody else's."""
    monkeypatch.setattr(publish, "_RACES", 0)
    harness = append_harness(proxied) if mode is Mode.APPEND else LakeHarness(proxied)
    first = [(7, "first", 0)]
    fence = harness.attempt()
    harness.publish(fence, harness.stage(fence, first), Batch(BatchKind.RANGE, None, "0"))
    others = [(9, "external", 0)] if external else []
    if external:
        monkeypatch.setattr(proxy, "before_cut", harness.insert)
    proxy.aim(Cut.BEFORE_ANSWER, 3 if mode is Mode.APPEND else 2)
    load_until_done(harness)
    assert proxy.cuts == 1
    assert harness.rows() == [*ROWS, *first, *others]
    assert harness.markers()[1:] == ["u"]
    assert_readable(harness)


def test_a_session_that_is_lost_after_main_has_moved_is_no_error(lake: Lake) -> None:
    harness = append_harness(lake)
    # The first time it is a trial, before the rows are in.
    lake.database.execute(
        "CREATE SEQUENCE moves",
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF nextval(''public.moves'') = 2 THEN"
        " PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END'",
        f"CREATE TRIGGER die BEFORE UPDATE ON {lake.schema}.etl_state FOR EACH ROW"
        f" WHEN (OLD.table_name = '{harness.table}') EXECUTE FUNCTION die()",
    )
    fence = harness.attempt()
    writes = harness.stage(fence, ROWS)
    harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "2"), update_id="u")
    assert lake.database.value("SELECT last_value FROM moves") == 3
    assert_in_once(harness)
