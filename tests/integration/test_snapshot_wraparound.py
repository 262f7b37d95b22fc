"""Ids of transactions come round after 2^32: rows written on both sides of that are found."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from integration.conftest import Database
from integration.standbys import own_server, point_at
from integration.test_snapshot_sync import ORDERS, plan, verify
from integration.without_spark import Make, make, open_without_spark
from tidegate.load.sources.xmin import EPOCH
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.postgres.server_process import command_as, name_for, programs_for, server_user

__all__ = ["make"]

_IDS_PER_FILE = 1 << 20


def advance(server: EmbeddedServer, next_xid: int) -> None:
    """Let the server go on with another id; no further than half a round from the oldest row."""
    for name in ("template0", "template1", "postgres", "tidegate"):
        with psycopg.connect(server.conninfo("postgres"), autocommit=True) as session:
            session.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")  # type: ignore[arg-type]
        with psycopg.connect(server.conninfo(name), autocommit=True) as session:
            session.execute("VACUUM FREEZE")
    server.stop("fast")
    data = server.directory / "data"
    file = data / "pg_xact" / f"{next_xid // _IDS_PER_FILE:04X}"
    if not file.exists():
        # Ids that were never given have no outcome, which is nothing but zeros.
        file.write_bytes(bytes(_IDS_PER_FILE // 4))
        owner = data.stat()
        shutil.chown(file, owner.st_uid, owner.st_gid)
    user = server_user(data)
    reset = command_as(user, programs_for(user, server.bin_directory) / "pg_resetwal")
    folder = name_for(user, data)
    subprocess.run([*reset, "-x", str(next_xid), folder], check=True, capture_output=True, cwd=data)
    server.start()


@pytest.fixture
def old_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that is about to give its ids out for the second time."""
    with own_server(tmp_path / "old") as server:
        for next_xid in (2_000_000_000, 4_000_000_000, EPOCH - 40):
            advance(server, next_xid)
        yield server


@pytest.mark.chaos
def test_no_row_is_lost_when_ids_come_round(make: Make, old_server: EmbeddedServer) -> None:
    _, place = make(ORDERS)
    source = Database(old_server.conninfo("postgres"))
    point_at(place, source.conninfo)
    project = open_without_spark(place)

    def now() -> int:
        return int(source.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))

    def same() -> bool:
        text = "SELECT t::text FROM {} t ORDER BY 1"
        ours = source.execute(text.format("orders"))
        return ours == place.target.execute(text.format("raw.orders"))

    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text)",
        "INSERT INTO orders SELECT i, 'n' FROM generate_series(1, 10) i",
    )
    assert now() < EPOCH
    assert project.run("orders").rows == 10
    with source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (11, 'before the end')")
        began = now()
        assert began < EPOCH
        number = 100
        while now() < EPOCH + 20:
            number += 1
            source.execute(f"INSERT INTO orders VALUES ({number}, 'on the way')")
        late.execute("SAVEPOINT s")
        late.execute("UPDATE orders SET name = 'in the next round' WHERE id = 1")
        # Rows of both rounds, and the lower halves of the newer ones are the lower numbers.
        assert project.run("orders").rows == number - 100
        late.execute("COMMIT")
    waiting = verify(project)
    assert (waiting.difference, waiting.not_yet_loaded) == (None, number - 100 + 2)
    assert project.run("orders").outcome.changed == 2
    assert same()
    assert int(str(project.watermark("orders").value)) > EPOCH
    assert plan(project).rows == 0
    source.execute("UPDATE orders SET name = 'x' WHERE id IN (2, 101)")
    assert project.run("orders").rows == 2
    assert same()
