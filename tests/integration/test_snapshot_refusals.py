"""What changes = snapshot refuses, and ids of transactions that come round after 2^32."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from integration.conftest import Database, Make, MakePlace, Place, open_without_spark
from integration.standbys import own_server, point_at
from integration.test_snapshot_sync import ORDERS, plan, same, seed, verify
from tidegate.core.errors import DeclarationError, SourceError, UsageError
from tidegate.load.sources.xmin import EPOCH
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.postgres.server_process import command_as, name_for, programs_for, server_user

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "replaced": ({"mode": "replace"}, 'use mode = "merge"'),
    "appended": ({"mode": "append"}, "declare a key"),
    "newest": ({"duplicates": "newest"}, "choose a unique key"),
    "only_cursor": ({"cursor": "id"}, "declare the lookback too"),
    "only_lookback": ({"lookback": "1 hour"}, "declare the cursor too"),
    "nulls": ({"cursor": "id", "lookback": 5, "null_cursor": "exclude"}, "leave such rows out"),
    "view": ({"source": "shop:public.orders_view", "key": ["id"]}, "sync the table behind it"),
    "query": ({"source": "shop", "query": "SELECT 1 AS id", "key": ["id"]}, "table behind it"),
    "away": ({"source": "shop:public.away", "key": ["id"]}, "sync the table behind it"),
    "parted": ({"source": "shop:public.parted", "key": ["id"]}, 'use changes = "cursor"'),
    "by_xid": ({"cursor": "xid", "lookback": 5}, 'use changes = "cursor"'),
}


def test_what_cannot_be_done_is_refused_before_anything_is_written(make: Make) -> None:
    syncs = [
        {**ORDERS, "name": name, "target": f"warehouse:raw.{name}", **values}
        for name, (values, _) in REFUSED.items()
    ]
    project, place = make(ORDERS, *syncs, databases=2)
    seed(place)
    away = "SERVER files OPTIONS (filename '/dev/null')"
    place.source.execute(
        "ALTER TABLE orders ADD xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
        "CREATE VIEW orders_view AS SELECT * FROM orders",
        "CREATE EXTENSION IF NOT EXISTS file_fdw",
        "CREATE SERVER files FOREIGN DATA WRAPPER file_fdw",
        f"CREATE FOREIGN TABLE away (id int) {away}",
        "CREATE TABLE parted (id int) PARTITION BY RANGE (id)",
        f"CREATE FOREIGN TABLE part PARTITION OF parted FOR VALUES FROM (100) TO (200) {away}",
    )
    for name, (_, words) in REFUSED.items():
        with pytest.raises(DeclarationError) as refused:
            project.run(name)
        assert words in str(refused.value.hint), name
    assert place.target.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'raw'") == 0

    place.target.execute("CREATE SCHEMA IF NOT EXISTS raw", "CREATE TABLE raw.orders (id int)")
    with pytest.raises(UsageError, match="no transaction is known"):
        project.adopt("orders", at="5")


def test_a_role_that_may_read_only_some_columns_is_told_what_it_lacks(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS)
    seed(place)
    role = f"reader_{place.folder.parent.name}"[:60].replace("-", "_")
    place.source.execute(f'CREATE ROLE "{role}"', f'GRANT SELECT (id, name) ON orders TO "{role}"')
    point_at(place, f"{place.source.conninfo} options='-c role={role}'")
    try:
        with pytest.raises(SourceError) as refused:
            place.open().run("orders")
        assert "GRANT SELECT ON public.orders" in str(refused.value.hint)
    finally:
        place.source.execute(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def record(place: Place, **values: Any) -> None:
    """Pretend that the source stood elsewhere when it was loaded."""
    found = json.dumps(values)
    place.target.execute(
        "UPDATE tidegate.etl_state SET declaration = jsonb_set(declaration, '{standing}',"
        f" declaration->'standing' || '{found}'::jsonb)"
    )


def test_another_or_an_older_source_is_refused_with_the_way_back(
    make: Make, make_place: MakePlace
) -> None:
    cursor = {**ORDERS, "changes": "cursor", "cursor": "id", "batch_rows": 4}
    before, place = make(cursor, databases=2)
    seed(place)
    before.run("orders")
    project = open_without_spark(make_place({**ORDERS, "batch_rows": 4}, beside=place))
    with pytest.raises(DeclarationError, match="its changes was cursor and is now snapshot"):
        project.run("orders")
    project.run("orders", full_refresh=True)
    assert project.run("orders").found_nothing

    cases: dict[str, dict[str, Any]] = {
        "server 6900000000000000000": {"system": "6900000000000000000"},
        "database 4": {"database": "4"},
        "timeline 7": {"timeline": 7},
        "its log was at FFFF/0": {"lsn": "FFFF/0"},
    }
    for words, values in cases.items():
        record(place, **values)
        with pytest.raises(SourceError, match=words) as refused:
            project.run("orders")
        assert "tidegate run orders --full-refresh" in str(refused.value.hint)
        place.source.execute("DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)")
        project.run("orders", full_refresh=True)
        assert same(place)

    # It may be loaded from the start in pieces.
    record(place, system="6900000000000000000")
    project.watermark("orders").rewind(reason="moved to another server")
    project.run("orders", max_batches=1)
    project.run("orders")
    assert same(place)
    assert project.run("orders").found_nothing

    # Ids that went back are refused.
    far = "4000000000"
    record(place, xmin=far)
    place.target.execute(f"UPDATE tidegate.etl_state SET high_watermark = '{far}'")
    with pytest.raises(SourceError, match=f"{far} was reached and its next one is"):
        project.run("orders")


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
