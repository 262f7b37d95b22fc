"""Markers: a row in table_updates if and only if the load is in; `tidegate marker` lists them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pytest

from integration.commands import DONE, FAILED, USAGE, Done
from integration.conftest import Database, MakePlace, Place
from integration.here import tidegate
from integration.left_behind import loaded
from integration.orders import ORDERS
from tidegate.core.errors import DestinationError, SettingsError
from tidegate.core.relation import Relation
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.markers import Markers
from tidegate.postgres.connection import connect

ODD = '"Odd ""schema"""."a.b; DROP TABLE x"'
X = Relation("marts", "x")
LUIGI = (
    "CREATE TABLE {}table_updates"
    " (update_id TEXT PRIMARY KEY, target_table TEXT, inserted TIMESTAMP DEFAULT NOW())"
)

MakeMarkers = Callable[..., Markers]


@pytest.fixture
def make_markers(database: Database) -> MakeMarkers:
    """A maker of marker stores on the test's database."""

    def make(**options: Any) -> Markers:
        opened = partial(connect, database.conninfo, name="the destination")
        return Markers(Ledger(connect=opened, **options))

    return make


def tables(database: Database, name: str = "table_updates") -> list[str]:
    rows = database.execute(
        "SELECT schemaname FROM pg_tables WHERE tablename = "
        f"'{name}' AND schemaname <> 'pg_catalog' ORDER BY 1"
    )
    return [row[0] for row in rows]


def test_without_a_marker_table_nothing_exists_and_asking_makes_nothing(
    database: Database, make_markers: MakeMarkers
) -> None:
    with database.connect() as session:
        with session.transaction():
            session.execute("CREATE TABLE mine ()")
            assert make_markers().exists(session, "u", X) is False
            session.execute("SELECT FROM mine")
        assert tables(database, "mine") == ["public"]
        assert tables(database) == []
        # Without its table a schema alone holds nothing.
        session.execute("CREATE SCHEMA tidegate")
        assert make_markers().exists(session, "u", X) is False


def test_a_touch_lives_and_dies_with_the_caller_s_transaction(
    database: Database, make_markers: MakeMarkers
) -> None:
    markers = make_markers()
    database.execute("CREATE TABLE x (n int)")
    with database.connect() as writer, database.connect() as reader:
        with writer.transaction(force_rollback=True):
            writer.execute("CREATE TABLE y ()")
            writer.execute("INSERT INTO x VALUES (1)")
            assert markers.touch(writer, "u", X) is True
            assert markers.exists(writer, "u", X)
            # The table is made over another session: others see it, although this load never
            # commits.
            assert (tables(database), tables(database, "y")) == (["tidegate"], [])
        assert tables(database) == ["tidegate"]
        assert database.execute("SELECT * FROM tidegate.table_updates") == []
        with writer.transaction():
            writer.execute("INSERT INTO x VALUES (2)")
            markers.touch(writer, "u", X)
            assert not markers.exists(reader, "u", X)
        assert markers.exists(reader, "u", X)
    assert database.execute("SELECT n FROM x") == [(2,)]


def test_a_load_with_an_older_snapshot_can_be_marked_as_well(
    database: Database, make_markers: MakeMarkers
) -> None:
    levels = psycopg.IsolationLevel
    for level in (levels.REPEATABLE_READ, levels.SERIALIZABLE):
        markers = make_markers(schema=f"ledger_{level.value}")
        with database.connect() as session:
            session.isolation_level = level
            with session.transaction():
                session.execute("SELECT 1")
                assert markers.touch(session, "u", X) is True
            assert markers.exists(session, "u", X)


def test_creators_at_once_do_not_hurt_each_other(
    database: Database, make_markers: MakeMarkers
) -> None:
    for round_ in range(5):
        ledgers = [make_markers(schema=f"ledger_{round_}").ledger for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            made = [future.result() for future in [pool.submit(one.ensure) for one in ledgers]]
        assert made == [Relation(f"ledger_{round_}", "table_updates")] * 4
        found = database.value(
            f"SELECT count(*) FROM pg_tables WHERE schemaname = 'ledger_{round_}'"
        )
        assert found == 4


def test_two_loads_of_one_update_id_leave_one_marker(
    database: Database, make_markers: MakeMarkers
) -> None:
    markers = make_markers()
    markers.ledger.ensure()

    def load() -> bool:
        with database.connect() as session, session.transaction():
            return markers.touch(session, "u", X)

    with ThreadPoolExecutor(4) as pool:
        firsts = [future.result() for future in [pool.submit(load) for _ in range(8)]]
    assert sorted(firsts) == [False] * 7 + [True]
    assert database.value("SELECT count(*) FROM tidegate.table_updates") == 1


@pytest.mark.parametrize("schema", ["public", "luigi"])
def test_a_luigi_table_in_the_search_path_is_used_as_it_is(
    database: Database, make_markers: MakeMarkers, schema: str
) -> None:
    database.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}", LUIGI.format(f"{schema}."))
    name = database.value("SELECT current_database()")
    database.execute(f'ALTER DATABASE "{name}" SET search_path = luigi, public')
    database.execute(
        f"INSERT INTO {schema}.table_updates VALUES ('old', 'x'), ('older', 'marts.x')"
    )
    markers = make_markers()
    with database.connect() as session:
        assert markers.exists(session, "old", X)
        assert markers.exists(session, "older", X)
        assert not markers.exists(session, "new", X)
        assert markers.touch(session, "new", X) is True
        assert markers.touch(session, "new", X) is False
        assert markers.touch(session, "old", X) is False
    markers.ledger.ensure()
    assert tables(database) == [schema]
    rows = database.execute(
        f"SELECT update_id, target_table, inserted IS NOT NULL FROM {schema}.table_updates"
        " ORDER BY 1"
    )
    assert rows == [("new", "marts.x", True), ("old", "x", True), ("older", "marts.x", True)]
    columns = database.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        f" WHERE attrelid = '{schema}.table_updates'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert columns[2] == ("inserted", "timestamp without time zone")


def test_what_a_luigi_table_says_of_other_tables_is_respected(
    database: Database, make_markers: MakeMarkers
) -> None:
    database.execute(
        LUIGI.format(""), "INSERT INTO table_updates VALUES ('all', NULL), ('u', 'marts.y')"
    )
    with database.connect() as session:
        assert make_markers().exists(session, "all", X), "it names no table"
        with pytest.raises(DestinationError) as raised:
            make_markers().touch(session, "u", X)
    assert "'u' is already recorded for another table in public.table_updates" in str(raised.value)
    assert "choose an update_id that names the table" in str(raised.value)
    # One of that name with other columns is left alone.
    database.execute("DROP TABLE table_updates", "CREATE TABLE table_updates (id int)")
    with database.connect() as session:
        assert make_markers().touch(session, "u", X)
    assert tables(database) == ["public", "tidegate"]


def test_name_and_schema_are_the_user_s_choice(
    database: Database, make_markers: MakeMarkers
) -> None:
    evil = "x; DROP SCHEMA public CASCADE; --"
    options: dict[str, str]
    for options, place in (
        ({"marker_table": "done_loads"}, '"tidegate"."done_loads"'),
        ({"schema": "my ledger", "marker_table": 'a"b'}, '"my ledger"."a""b"'),
        ({"schema": "100%s", "marker_table": "%(x)s {schema}"}, '"100%s"."%(x)s {schema}"'),
        ({"schema": evil}, f'"{evil}"."table_updates"'),
    ):
        markers = make_markers(**options)
        with database.connect() as session:
            assert markers.touch(session, "u", X)
            assert markers.exists(session, "u", X)
            assert [row.update_id for row in markers.newest(session, X)] == ["u"]
            assert markers.forget(session, "u", X) == ["marts.x"]
        assert database.execute(f"SELECT * FROM {place}") == []
    assert database.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'public'") == 1

    elsewhere = make_markers(marker_table="other.done")
    with pytest.raises(DestinationError, match=r"marker table other\.done cannot be made"):
        elsewhere.ledger.ensure()
    database.execute("CREATE SCHEMA other")
    with database.connect() as session:
        make_markers(marker_table="other.done").touch(session, "u", X)
    assert database.value("SELECT update_id FROM other.done") == "u"


def test_the_database_s_clock_stamps_unless_the_client_s_is_asked_for(
    database: Database, make_markers: MakeMarkers
) -> None:
    with database.connect() as session, session.transaction():
        stamp = session.execute("SELECT now()").fetchone()
        make_markers().touch(session, "by database", X)
        before = datetime.now(UTC)
        make_markers(client_timestamps=True).touch(session, "by client", X)
        after = datetime.now(UTC)
    found: dict[str, datetime] = dict(
        database.execute("SELECT update_id, inserted FROM tidegate.table_updates")
    )
    assert stamp is not None
    assert found["by database"] == stamp[0]
    assert before <= found["by client"] <= after


def test_one_update_id_may_stand_for_loads_into_two_tables(
    database: Database, make_markers: MakeMarkers
) -> None:
    markers, y = make_markers(), Relation("marts", "y")
    with database.connect() as session:
        assert markers.touch(session, "u", X)
        assert not markers.exists(session, "u", y)
        assert markers.touch(session, "u", y)
        assert markers.forget(session, "u", X) == ["marts.x"]
        assert not markers.exists(session, "u", X)
        assert markers.exists(session, "u", y)
        # A table with a dot in its name is not taken for another.
        assert not markers.exists(session, "u", Relation("public", "marts.y"))


def test_the_public_api_marks_a_load_of_one_s_own(make_place: MakePlace) -> None:
    place = make_place(databases=2)
    place.target.execute("CREATE SCHEMA marts", "CREATE TABLE marts.x (n int)")
    project = place.open()
    marker = project.marker("warehouse:marts.x", update_id="x-2026-11-01")
    with project.connect("warehouse") as conn, conn.transaction(force_rollback=True):
        marker.touch(conn)
    for _ in range(2):
        if not marker.exists():
            with project.connect("warehouse") as conn, conn.transaction():
                conn.execute("INSERT INTO marts.x VALUES (1)")
                assert marker.touch(conn)
    assert place.target.execute("SELECT n FROM marts.x") == [(1,)]
    assert place.target.execute("SELECT update_id, target_table FROM tidegate.table_updates") == [
        ("x-2026-11-01", "marts.x")
    ]
    # The other database of the project knows nothing of it.
    assert not project.marker("shop:marts.x", update_id="x-2026-11-01").exists()
    assert tables(place.source) == []


def test_settings_name_the_marker_table_for_the_public_api(make_place: MakePlace) -> None:
    place = make_place(ledger={"schema": "Led ger", "marker_table": "Done", "timestamps": "client"})
    project = place.open()
    with project.connect("warehouse") as conn:
        project.marker("warehouse:x", update_id="u").touch(conn)
    assert place.target.execute('SELECT update_id, target_table FROM "Led ger"."Done"') == [
        ("u", "public.x")
    ]
    with pytest.raises(SettingsError, match='there is no connection "warehous"'):
        project.marker("warehous:x", update_id="u").exists()


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(ORDERS, databases=2)


def marker(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "marker", *arguments)


def touch(place: Place, update_id: str, target: str = "warehouse:raw.orders") -> None:
    made = place.open().marker(target, update_id=update_id)
    with place.target.connect() as session:
        assert made.touch(session)


def listed(place: Place, *arguments: str) -> list[str]:
    return [one["update_id"] for one in marker(place, "list", *arguments, "--json").document]


def test_the_newest_markers_come_first_of_all_tables_or_of_one(place: Place) -> None:
    done = marker(place, "list")
    assert (done.code, done.out) == (DONE, "no markers in warehouse\n")
    assert listed(place) == []
    assert place.target.value("SELECT to_regnamespace('tidegate') IS NULL")
    for update_id in ("one", "two", "three"):
        touch(place, update_id)
    touch(place, "four", f"warehouse:{ODD}")
    assert listed(place) == ["four", "three", "two", "one"]
    assert listed(place, "--limit", "2") == ["four", "three"]
    text = marker(place, "list", "warehouse").out
    assert "raw.orders" in text
    assert text.index("three") < text.index("one")
    assert listed(place, "--table", "raw.orders") == ["three", "two", "one"]
    assert listed(place, "--table", ODD) == ["four"]
    assert listed(place, "--table", "raw.other") == []
    assert "for raw.other" in marker(place, "list", "--table", "raw.other").out
    for arguments, message in (
        (("list", "--limit", "0"), ""),
        (("list", "--table", "a.b.c"), "is not a table name"),
        (("list", "nowhere"), 'there is no connection "nowhere"'),
        (("forget", "nowhere:raw.orders", "x"), 'there is no connection "nowhere"'),
        (("forget", "raw.orders", "x"), "names no connection"),
        (("forget", "warehouse:a.b.c", "x"), "is not a table name"),
    ):
        refused = marker(place, *arguments)
        assert (refused.code, message in refused.err) == (USAGE, True), arguments


def test_a_forgotten_load_counts_as_not_done(place: Place) -> None:
    odd = "it's 100%; DROP TABLE x"
    touch(place, odd)
    touch(place, odd, "warehouse:raw.other")
    done = marker(place, "forget", "warehouse:raw.orders", odd)
    assert done.code == DONE
    assert f"forgot {odd} for warehouse:raw.orders" in done.out
    assert done.err == ""
    # For one table, it leaves the others.
    assert [one["table"] for one in marker(place, "list", "--json").document] == ["raw.other"]
    for table in ("orders", "third"):
        again = marker(place, "forget", f"warehouse:raw.{table}", odd)
        assert again.code == USAGE
        assert "there is no marker" in again.err
        assert "tidegate marker list warehouse" in again.err
    assert listed(place) == [odd]


def test_forgetting_the_load_of_a_sync_warns_that_a_rewind_is_what_reloads(place: Place) -> None:
    loaded(place)
    first, last = reversed(listed(place))
    done = marker(place, "forget", "warehouse:raw.orders", first)
    assert done.code == DONE
    assert f"warning: {first} was a load of orders" in done.err
    assert "tidegate watermark rewind orders VALUE" in done.err
    as_json = marker(place, "forget", "warehouse:raw.orders", last, "--json")
    assert as_json.document["pipelines"] == ["shop.orders"]
    assert "rewind" in as_json.document["warning"]


def test_markers_that_luigi_wrote_without_a_schema_are_listed_and_forgotten(place: Place) -> None:
    place.target.execute(
        "CREATE TABLE table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        "INSERT INTO table_updates VALUES ('a', 'orders'), ('b', 'raw.orders'), ('c', 'other'),"
        " ('d', NULL), ('e', 'mart.orders'), ('f', '')",
    )
    found = listed(place, "--table", "raw.orders")
    assert sorted(found) == ["a", "b", "d"]
    project = place.open()
    for update_id in "abcdef":
        exists = project.marker("warehouse:raw.orders", update_id=update_id).exists()
        assert exists == (update_id in found)
    assert marker(place, "list", "--table", "raw.orders").code == DONE
    for update_id, code in (("a", DONE), ("b", DONE), ("c", USAGE)):
        assert marker(place, "forget", "warehouse:raw.orders", update_id).code == code, update_id
    left = place.target.execute("SELECT update_id FROM table_updates ORDER BY 1")
    assert left == [("c",), ("d",), ("e",), ("f",)]


def test_which_connection_is_looked_into_and_with_which_rights(
    place: Place, make_place: MakePlace
) -> None:
    touch(place, "one")
    only = make_place(beside=place, connections={"warehouse": place.target.conninfo})
    assert listed(only) == ["one"]
    bare = make_place(beside=place)
    refused = marker(bare, "list")
    assert refused.code == USAGE
    assert "no sync says which of shop, warehouse has the markers" in refused.err
    assert "tidegate marker list warehouse" in refused.err
    assert listed(bare, "warehouse") == ["one"]
    none = marker(make_place(beside=place, connections={}), "list")
    assert none.code == USAGE
    assert "under [connections]" in none.err

    role = f"reader_{place.target.value('SELECT current_database()')}"
    place.target.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    try:
        reader = place.target.conninfo.replace("user=postgres", f"user={role}")
        reader = reader.replace("password=''", "password=reader")
        weak = make_place(beside=place, connections={"warehouse": reader})
        refused = marker(weak, "list")
        assert refused.code == FAILED
        assert "listing markers: permission denied" in refused.err
    finally:
        place.target.execute(f"DROP ROLE {role}")
