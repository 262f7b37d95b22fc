"""What changes = "snapshot" refuses, and what it says to do."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import FAST
from integration.conftest import MakePlace, MakeProject, Place
from integration.test_snapshot_sync import ORDERS, same, seed
from tidegate.errors import DeclarationError, SourceError, UsageError
from tidegate.postgres.embedded import HOST, USER, EmbeddedServer
from tidegate.project import Project


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "replace"}, 'use mode = "merge"'),
        ({"mode": "append"}, "declare a key"),
        ({"duplicates": "newest"}, "choose a unique key"),
        ({"cursor": "id"}, "declare the lookback too"),
        ({"lookback": "1 hour"}, "declare the cursor too"),
        ({"cursor": "id", "lookback": 5, "null_cursor": "exclude"}, "leave such rows out"),
        ({"source": "shop:public.orders_view", "key": ["id"]}, "sync the table behind it"),
        ({"source": "shop", "query": "SELECT * FROM orders", "key": ["id"]}, "table behind it"),
        ({"source": "shop:public.away", "key": ["id"]}, "sync the table behind it"),
        ({"source": "shop:public.parted"}, 'use changes = "cursor"'),
        ({"cursor": "xid", "lookback": 5}, 'use changes = "cursor"'),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    make_place: MakePlace, options: dict[str, Any], words: str
) -> None:
    place = make_place({**ORDERS, **options})
    seed(place)
    place.source.execute(
        "ALTER TABLE orders ADD xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
        "CREATE VIEW orders_view AS SELECT * FROM orders",
        "CREATE EXTENSION IF NOT EXISTS file_fdw",
        "CREATE SERVER files FOREIGN DATA WRAPPER file_fdw",
        "CREATE FOREIGN TABLE away (id int) SERVER files OPTIONS (filename '/dev/null')",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE parted_old (id int NOT NULL)",
    )
    if "parted" in str(options.get("source")):
        place.source.execute(
            "DROP TABLE parted",
            "CREATE TABLE parted (id int) PARTITION BY RANGE (id)",
            "CREATE FOREIGN TABLE parted_away PARTITION OF parted FOR VALUES FROM (100) TO (200)"
            " SERVER files OPTIONS (filename '/dev/null')",
        )
        place = make_place({**ORDERS, **options, "key": ["id"]}, beside=place)
    with pytest.raises(DeclarationError) as refused:
        place.open().run("orders")
    assert words in str(refused.value.hint)
    assert place.target.value("SELECT to_regclass('raw.orders') IS NULL")


def test_a_role_that_may_read_only_some_columns_is_told_what_it_lacks(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS)
    seed(place)
    role = f"reader_{place.folder.parent.name}"[:60].replace("-", "_")
    place.source.execute(
        f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'x'",
        f'GRANT SELECT (id, name) ON orders TO "{role}"',
    )
    toml = place.folder / "tidegate.toml"
    text = toml.read_text(encoding="utf-8")
    shop = f"{place.source.conninfo} options='-c role={role}'"
    text = text.replace(f"shop = {json.dumps(place.source.conninfo)}", f"shop = {json.dumps(shop)}")
    toml.write_text(text, encoding="utf-8")
    try:
        with pytest.raises(SourceError) as refused:
            place.open().run("orders")
        assert "GRANT SELECT ON public.orders" in str(refused.value.hint)
    finally:
        place.source.execute(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def test_adopting_a_table_is_refused_since_no_transaction_is_known(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS)
    seed(place)
    place.target.execute("CREATE SCHEMA raw", "CREATE TABLE raw.orders AS SELECT * FROM orders")
    with pytest.raises(UsageError, match="no transaction is known"):
        project.adopt("orders", at="5")


def test_a_sync_that_was_loaded_by_its_cursor_is_not_continued_by_transactions(
    make_project: MakeProject, make_place: MakePlace
) -> None:
    project, place = make_project({**ORDERS, "changes": "cursor", "cursor": "id"})
    seed(place)
    project.run("orders")
    other = make_place(ORDERS, beside=place)
    with pytest.raises(DeclarationError, match="its changes was cursor and is now snapshot"):
        other.open(project.context.spark).run("orders")
    changed = other.open(project.context.spark)
    changed.run("orders", full_refresh=True)
    assert changed.run("orders").found_nothing


def record(place: Place, **values: Any) -> None:
    """Pretend that the source stood elsewhere when it was loaded."""
    found = json.dumps(values)
    place.target.execute(
        "UPDATE tidegate.etl_state SET declaration = jsonb_set(declaration, '{standing}',"
        f" declaration->'standing' || '{found}'::jsonb)"
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"system": "6900000000000000000"}, "server 6900000000000000000"),
        ({"database": "4"}, "database 4"),
        ({"timeline": 7}, "timeline 7"),
        ({"lsn": "FFFF/0"}, "its log was at FFFF/0"),
    ],
)
def test_another_or_an_older_source_is_refused_with_the_way_back(
    make_project: MakeProject, values: dict[str, Any], words: str
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    record(place, **values)
    with pytest.raises(SourceError, match=words) as refused:
        project.run("orders")
    assert "tidegate run orders --full-refresh" in str(refused.value.hint)
    place.source.execute("DELETE FROM orders WHERE id = 1")
    project.run("orders", full_refresh=True)
    assert same(place)


def test_another_source_may_be_loaded_from_the_start_in_pieces(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 4}, databases=2)
    seed(place)
    project.run("orders")
    record(place, system="6900000000000000000")
    project.watermark("orders").rewind(reason="moved to another server")
    project.run("orders", max_batches=1)
    project.run("orders")
    assert same(place)
    assert project.run("orders").found_nothing


def test_after_a_failover_a_person_may_say_from_which_transaction_on(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    record(place, timeline=7)
    place.source.execute("INSERT INTO orders VALUES (11, 'new')")
    with pytest.raises(SourceError):
        project.run("orders")
    before = place.source.value("SELECT min(xmin::text::bigint) FROM orders")
    project.watermark("orders").rewind(str(before), reason="failed over")
    assert project.run("orders").rows == 11
    assert same(place)
    assert project.run("orders").found_nothing


def test_ids_that_went_back_are_refused(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    far = "4000000000"
    record(place, xmin=far)
    place.target.execute(f"UPDATE tidegate.etl_state SET high_watermark = '{far}'")
    with pytest.raises(SourceError, match=f"{far} was reached and its next one is"):
        project.run("orders")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """A server and a copy of it; the copy is started by the test."""
    first = EmbeddedServer(tmp_path / "primary", FAST)
    first.start()
    second = EmbeddedServer(tmp_path / "copy", FAST)
    yield first, second
    for server in (first, second):
        if server.is_running():
            server.stop("immediate")
    shutil.rmtree(tmp_path)


def copy_server(first: EmbeddedServer, second: EmbeddedServer) -> None:
    first.stop("fast")
    subprocess.run(["cp", "-a", str(first.directory), str(second.directory)], check=True)


def at(server: EmbeddedServer, place: Place, project: Project) -> Project:
    """The project with its source on another server."""
    toml = place.folder / "tidegate.toml"
    lines = toml.read_text(encoding="utf-8").splitlines()
    shop = f"shop = {json.dumps(server.conninfo('postgres'))}"
    toml.write_text(
        "\n".join(shop if line.startswith("shop = ") else line for line in lines) + "\n",
        encoding="utf-8",
    )
    return place.open(project.context.spark)


def test_a_standby_is_refused_and_its_promotion_is_noticed(
    make_project: MakeProject, pair: tuple[EmbeddedServer, EmbeddedServer]
) -> None:
    primary, standby = pair
    cursor = {"name": "by_xid", **ORDERS, "changes": "cursor", "cursor": "xid"}
    project, place = make_project(
        ORDERS,
        {**cursor, "target": "warehouse:raw.by_xid"},
        {**ORDERS, "name": "by_log", "changes": "cdc", "target": "warehouse:raw.by_log"},
    )
    source = Place(
        type(place.source)(primary.conninfo("postgres")), place.target, place.control, place.folder
    )
    seed(source)
    source.source.execute("ALTER TABLE orders ADD xid xid8 NOT NULL DEFAULT pg_current_xact_id()")
    at(primary, place, project).run("orders")
    copy_server(primary, standby)
    (standby.directory / "data" / "standby.signal").touch()
    primary.start()
    address = f"host={HOST} port={primary.port} user={USER} password={primary.password()}"
    standby = EmbeddedServer(standby.directory, {**FAST, "primary_conninfo": address})
    standby.start()
    try:
        moved = at(standby, place, project)
        for name in ("orders", "by_xid", "by_log"):
            with pytest.raises(SourceError, match="is a standby") as refused:
                moved.run(name)
            assert "connect to the primary" in str(refused.value.hint)
        copied = type(place.source)(standby.conninfo("postgres"))
        assert copied.value("SELECT pg_promote()")
        with pytest.raises(SourceError, match="restored or failed over"):
            moved.run("orders")
    finally:
        standby.stop("immediate")


def test_a_source_put_back_from_a_copy_of_its_files_is_refused(
    make_project: MakeProject, pair: tuple[EmbeddedServer, EmbeddedServer]
) -> None:
    server, backup = pair
    project, place = make_project(ORDERS)
    source = type(place.source)(server.conninfo("postgres"))
    seed(Place(source, place.target, place.control, place.folder))
    copy_server(server, backup)
    server.start()
    source.execute("INSERT INTO orders SELECT i, 'x' FROM generate_series(100, 2000) i")
    at(server, place, project).run("orders")
    server.stop("fast")
    backup.start()
    restored = type(place.source)(backup.conninfo("postgres"))
    restored.execute("INSERT INTO orders VALUES (11, 'other')")
    with pytest.raises(SourceError, match="it was restored"):
        at(backup, place, project).run("orders")
