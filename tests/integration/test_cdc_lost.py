"""Changes that cannot be had any more are never passed over: an error says so, and the way back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from conftest import FAST
from integration.cdc_places import FILL, ORDERS, orders_sync, place_on, rows, slot_of
from integration.conftest import Database, MakePlace, MakeProject, Place
from tidegate.errors import ChangesLost, SourceError, TidegateError
from tidegate.insight.status import read_status
from tidegate.pipeline.plan import plan_project
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

PUBLICATION = "SELECT quote_ident(pubname) FROM pg_publication"


def refused(project: Project, said: str) -> None:
    """Run, plan and status all say it, and the way back."""
    with pytest.raises(ChangesLost, match=said) as raised:
        project.run("orders")
    assert "tidegate run orders --full-refresh" in (raised.value.hint or "")
    assert raised.value.permanent
    refusals = plan_project(project.context, [project.syncs["orders"]]).refusals
    assert said in refusals[0].message
    assert said in (read_status(project.context, [project.syncs["orders"]]).syncs[0].problem or "")


def comes_back(project: Project, place: Place) -> None:
    """The way back that every error names leads back."""
    project.run("orders", full_refresh=True, allow_removal=True)
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")
    place.source.execute("DELETE FROM orders WHERE id = 2", "INSERT INTO orders VALUES (900, 9)")
    report = project.run("orders")
    assert report.loads
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")


@pytest.fixture
def loaded(make_project: MakeProject) -> tuple[Project, Place]:
    """A sync with its copy and some changes behind it."""
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    place.source.execute("UPDATE orders SET note = 'told'")
    project.run("orders")
    return project, place


def change(place: Place) -> None:
    """What would be lost."""
    place.source.execute("DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (50, 5)")


def test_a_slot_that_was_dropped(loaded: tuple[Project, Place]) -> None:
    project, place = loaded
    place.source.execute(f"SELECT pg_drop_replication_slot('{slot_of(place.source)[0]}')")
    change(place)
    refused(project, "is gone")
    comes_back(project, place)


def test_a_slot_that_was_made_anew(loaded: tuple[Project, Place]) -> None:
    project, place = loaded
    name, _ = slot_of(place.source)
    place.source.execute(f"SELECT pg_drop_replication_slot('{name}')")
    change(place)
    place.source.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    refused(project, "there is a gap")
    comes_back(project, place)


def test_a_slot_that_somebody_else_has_read(loaded: tuple[Project, Place]) -> None:
    project, place = loaded
    change(place)
    name, _ = slot_of(place.source)
    place.source.execute(f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
    refused(project, "there is a gap")
    comes_back(project, place)


def test_a_slot_of_another_plugin(loaded: tuple[Project, Place]) -> None:
    project, place = loaded
    name, _ = slot_of(place.source)
    place.source.execute(f"SELECT pg_drop_replication_slot('{name}')")
    place.source.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")
    refused(project, "was made anew, for test_decoding")
    comes_back(project, place)


def test_a_publication_that_was_dropped_or_made_anew(loaded: tuple[Project, Place]) -> None:
    project, place = loaded
    name = place.source.value(PUBLICATION)
    place.source.execute(f"DROP PUBLICATION {name}")
    change(place)
    refused(project, "was dropped")
    place.source.execute(f"CREATE PUBLICATION {name} FOR TABLE orders")
    refused(project, "was made anew")
    comes_back(project, place)


def test_a_publication_that_leaves_something_out(loaded: tuple[Project, Place]) -> None:
    project, place = loaded
    name = place.source.value(PUBLICATION)
    place.source.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
    change(place)
    refused(project, "was altered")
    comes_back(project, place)


def test_a_table_that_was_made_anew(loaded: tuple[Project, Place]) -> None:
    project, place = loaded
    place.source.execute("DROP TABLE orders", ORDERS, "INSERT INTO orders VALUES (1, 1), (2, 2)")
    refused(project, "is not in it")
    comes_back(project, place)


def test_a_destination_that_was_restored_from_a_backup(
    loaded: tuple[Project, Place],
) -> None:
    project, place = loaded
    project.context.databases.close()
    with psycopg.connect(place.target.conninfo) as session:
        name = session.info.dbname
    server = Database(place.source.conninfo)
    server.execute(f'CREATE DATABASE "{name}_backup" TEMPLATE "{name}"')
    change(place)
    project.run("orders")
    project.context.databases.close()

    server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    server.execute(f'ALTER DATABASE "{name}_backup" RENAME TO "{name}"')

    refused(project, "there is a gap")
    comes_back(project, place)


# --- servers of their own


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path / "own", FAST)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(tmp_path)


def test_a_slot_that_the_server_has_given_up(
    make_place: MakePlace, own_server: EmbeddedServer, warm_spark: SparkSessions
) -> None:
    place = place_on(make_place, own_server)
    with place.open(warm_spark) as project:
        project.run("orders")
        place.source.execute(
            "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
            "SELECT pg_reload_conf()",
            "CREATE TABLE busy AS SELECT repeat(md5(i::text), 30) FROM generate_series(1, 20000) i",
            "SELECT pg_switch_wal()",
            "INSERT INTO busy SELECT repeat(md5(i::text), 30) FROM generate_series(1, 20000) i",
            "CHECKPOINT",
        )
        change(place)
        refused(project, "has given up slot")
        place.source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
        comes_back(project, place)


def test_a_source_that_was_restored_from_a_copy_of_its_files(
    make_place: MakePlace, own_server: EmbeddedServer, warm_spark: SparkSessions, tmp_path: Path
) -> None:
    place = place_on(make_place, own_server)
    with place.open(warm_spark) as project:
        project.run("orders")
        project.context.databases.close()
        own_server.stop("fast")
        backup = tmp_path / "backup"
        subprocess.run(["cp", "-a", str(own_server.directory / "data"), str(backup)], check=True)
        own_server.start()
        place.source.execute(
            "INSERT INTO orders SELECT i, 1, 'x' FROM generate_series(100, 3000) i"
        )
        project.run("orders")
        project.context.databases.close()

        own_server.stop("fast")
        shutil.rmtree(own_server.directory / "data")
        backup.rename(own_server.directory / "data")
        own_server.start()

        refused(project, "it was restored from a backup")
        comes_back(project, place)


def promote(server: EmbeddedServer) -> None:
    """Let the server begin a new timeline, as one does that was restored or has taken over."""
    server.stop("fast")
    (server.directory / "data" / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as session:
        session.execute("SELECT pg_promote()")


def test_a_source_on_a_new_timeline_goes_on_where_nothing_was_lost(
    make_place: MakePlace, own_server: EmbeddedServer, warm_spark: SparkSessions, tmp_path: Path
) -> None:
    place = place_on(make_place, own_server)
    with place.open(warm_spark) as project:
        project.run("orders")
        change(place)
        project.context.databases.close()
        promote(own_server)
        place.source.execute("INSERT INTO orders VALUES (700, 7)")

        assert project.run("orders").loads
        assert rows(place.target, "raw.orders") == rows(place.source, "orders")

        # The same server as it was a while ago takes over: what it never had is loaded.
        project.context.databases.close()
        own_server.stop("fast")
        backup = tmp_path / "backup"
        subprocess.run(["cp", "-a", str(own_server.directory / "data"), str(backup)], check=True)
        own_server.start()
        place.source.execute("INSERT INTO orders VALUES (701, 7)")
        project.run("orders")
        project.context.databases.close()
        own_server.stop("fast")
        shutil.rmtree(own_server.directory / "data")
        backup.rename(own_server.directory / "data")
        own_server.start()
        promote(own_server)
        place.source.execute(
            "INSERT INTO orders SELECT i, 1, 'x' FROM generate_series(1000, 4000) i"
        )

        refused(project, "its source was restored, or another server took over")
        comes_back(project, place)


def test_another_server_behind_the_same_name(
    make_place: MakePlace,
    own_server: EmbeddedServer,
    warm_spark: SparkSessions,
    server: EmbeddedServer,
    tmp_path: Path,
) -> None:
    place = place_on(make_place, own_server)
    with place.open(warm_spark) as project:
        project.run("orders")
    other = EmbeddedServer(tmp_path / "other", FAST)
    other.start()
    try:
        other.ensure_database("shop")
        source = Database(other.conninfo("shop"))
        source.execute(ORDERS, FILL)
        file = place.folder / "tidegate.toml"
        text = file.read_text()
        file.write_text(
            text.replace(str(own_server.port), str(other.port)).replace(
                str(own_server.passfile), str(other.passfile)
            )
        )
        moved = Place(source, place.target, place.control, place.folder)
        with moved.open(warm_spark) as project:
            refused(project, "whose log is another")
            comes_back(project, moved)
    finally:
        other.stop("immediate")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wal_level": "replica"}, "wal_level is replica"),
        ({"max_replication_slots": "1"}, "1 of max_replication_slots are free, and 2"),
        ({"max_wal_senders": "0", "wal_level": "logical"}, "0 of max_wal_senders are free"),
    ],
)
def test_a_server_that_cannot_tell_its_changes_is_refused_first(
    make_place: MakePlace,
    tmp_path: Path,
    warm_spark: SparkSessions,
    settings: dict[str, str],
    said: str,
) -> None:
    server = EmbeddedServer(tmp_path / "own", {**FAST, **settings})
    server.start()
    try:
        place = place_on(make_place, server)
        with place.open(warm_spark) as project:
            assert (
                said in plan_project(project.context, [project.syncs["orders"]]).refusals[0].message
            )
            with pytest.raises(SourceError, match=said):
                project.run("orders")
        assert place.source.execute("SELECT FROM pg_publication") == []
    finally:
        server.stop("immediate")


def test_a_role_without_the_right_to_replicate_is_told(
    make_place: MakePlace, own_server: EmbeddedServer, warm_spark: SparkSessions
) -> None:
    place = place_on(make_place, own_server)
    place.source.execute(
        "CREATE ROLE plain LOGIN PASSWORD 'plain'",
        "ALTER TABLE orders OWNER TO plain",
        "GRANT CREATE ON DATABASE shop TO plain",
    )
    address = f"host=127.0.0.1 port={own_server.port} user=plain password=plain dbname=shop"
    file = place.folder / "tidegate.toml"
    file.write_text(file.read_text().replace(place.source.conninfo, address))
    with place.open(warm_spark) as project:
        with pytest.raises(TidegateError, match="may not make or read a slot") as raised:
            project.run("orders")
        assert "ALTER ROLE plain REPLICATION" in (raised.value.hint or "")
        place.source.execute("ALTER ROLE plain REPLICATION")
        project.run("orders")
        assert rows(place.target, "raw.orders") == rows(place.source, "orders")


def test_a_slot_waits_for_open_transactions_no_longer_than_it_may(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(), databases=2, cdc={"start_timeout": "1s"})
    place.source.execute(ORDERS, FILL)
    with place.source.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO orders VALUES (40, 4)")
        with pytest.raises(SourceError, match=f"session {session.info.backend_pid}"):
            project.run("orders")
        session.execute("COMMIT")
    project.run("orders")
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")
