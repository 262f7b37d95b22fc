"""Markers: a row in table_updates if and only if the load is in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pytest

from integration.conftest import Database, MakePlace
from tidegate.errors import DestinationError, SettingsError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.markers import Markers
from tidegate.model.relation import Relation
from tidegate.postgres.connect import connect

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


def test_without_a_marker_table_nothing_exists(
    database: Database, make_markers: MakeMarkers
) -> None:
    with database.connect() as session:
        assert make_markers().exists(session, "u", X) is False
    assert tables(database) == []


def test_without_its_table_a_schema_alone_holds_nothing(
    database: Database, make_markers: MakeMarkers
) -> None:
    database.execute("CREATE SCHEMA tidegate")
    with database.connect() as session:
        assert make_markers().exists(session, "u", X) is False


def test_asking_inside_a_transaction_does_not_break_it(
    database: Database, make_markers: MakeMarkers
) -> None:
    with database.connect() as session, session.transaction():
        session.execute("CREATE TABLE mine ()")
        assert make_markers().exists(session, "u", X) is False
        session.execute("SELECT FROM mine")
    assert tables(database, "mine") == ["public"]


def test_a_touch_lives_and_dies_with_the_caller_s_transaction(
    database: Database, make_markers: MakeMarkers
) -> None:
    markers = make_markers()
    database.execute("CREATE TABLE x (n int)")
    with database.connect() as session, session.transaction(force_rollback=True):
        session.execute("INSERT INTO x VALUES (1)")
        assert markers.touch(session, "u", X) is True
        assert markers.exists(session, "u", X)
    with database.connect() as session:
        assert not markers.exists(session, "u", X)
        with session.transaction():
            session.execute("INSERT INTO x VALUES (2)")
            markers.touch(session, "u", X)
        assert markers.exists(session, "u", X)
    assert database.execute("SELECT n FROM x") == [(2,)]


def test_the_marker_is_not_seen_by_others_before_the_commit(
    database: Database, make_markers: MakeMarkers
) -> None:
    markers = make_markers()
    with database.connect() as writer, database.connect() as reader:
        with writer.transaction():
            markers.touch(writer, "u", X)
            assert not markers.exists(reader, "u", X)
        assert markers.exists(reader, "u", X)


def test_the_table_is_made_over_another_session_while_the_load_is_open(
    database: Database, make_markers: MakeMarkers
) -> None:
    with database.connect() as session, session.transaction(force_rollback=True):
        session.execute("CREATE TABLE x ()")
        make_markers().touch(session, "u", X)
        # Seen by others although the load has not committed, and never will.
        assert tables(database) == ["tidegate"]
        assert tables(database, "x") == []
    assert tables(database) == ["tidegate"]
    assert database.execute("SELECT * FROM tidegate.table_updates") == []


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
def test_a_load_with_an_older_snapshot_can_be_marked_as_well(
    database: Database, make_markers: MakeMarkers, level: psycopg.IsolationLevel
) -> None:
    markers = make_markers()
    with database.connect() as session:
        session.isolation_level = level
        with session.transaction():
            session.execute("SELECT 1")
            assert markers.touch(session, "u", X) is True
        assert markers.exists(session, "u", X)


def test_creators_at_once_do_not_hurt_each_other(
    database: Database, make_markers: MakeMarkers
) -> None:
    for round_ in range(20):
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


def test_a_luigi_marker_without_a_table_counts_for_every_table(
    database: Database, make_markers: MakeMarkers
) -> None:
    database.execute(LUIGI.format(""), "INSERT INTO table_updates VALUES ('u', NULL)")
    with database.connect() as session:
        assert make_markers().exists(session, "u", X)


def test_a_luigi_table_refuses_one_update_id_for_a_second_table(
    database: Database, make_markers: MakeMarkers
) -> None:
    database.execute(LUIGI.format(""), "INSERT INTO table_updates VALUES ('u', 'marts.y')")
    with database.connect() as session, pytest.raises(DestinationError) as raised:
        make_markers().touch(session, "u", X)
    assert "'u' is already recorded for another table in public.table_updates" in str(raised.value)
    assert "choose an update_id that names the table" in str(raised.value)


def test_a_table_of_that_name_with_other_columns_is_left_alone(
    database: Database, make_markers: MakeMarkers
) -> None:
    database.execute("CREATE TABLE table_updates (id int)")
    with database.connect() as session:
        assert make_markers().touch(session, "u", X)
    assert tables(database) == ["public", "tidegate"]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"marker_table": "done_loads"}, '"tidegate"."done_loads"'),
        ({"schema": "my ledger", "marker_table": 'a"b'}, '"my ledger"."a""b"'),
        ({"schema": "100%s", "marker_table": "%(x)s {schema}"}, '"100%s"."%(x)s {schema}"'),
        ({"schema": "x; DROP SCHEMA public CASCADE; --"}, None),
    ],
)
def test_name_and_schema_are_the_user_s_choice(
    database: Database, make_markers: MakeMarkers, options: dict[str, str], place: str | None
) -> None:
    markers = make_markers(**options)
    with database.connect() as session:
        assert markers.touch(session, "u", X)
        assert markers.exists(session, "u", X)
        assert [row.update_id for row in markers.newest(session, X)] == ["u"]
        assert markers.forget(session, "u", X) == ["marts.x"]
    place = place or '"x; DROP SCHEMA public CASCADE; --"."table_updates"'
    assert database.execute(f"SELECT * FROM {place}") == []
    assert database.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'public'") == 1


def test_a_marker_table_may_be_named_with_its_schema(
    database: Database, make_markers: MakeMarkers
) -> None:
    database.execute("CREATE SCHEMA other")
    with database.connect() as session:
        make_markers(marker_table="other.done").touch(session, "u", X)
    assert database.value("SELECT update_id FROM other.done") == "u"


def test_a_marker_table_in_a_schema_that_is_not_there_is_refused(
    database: Database, make_markers: MakeMarkers
) -> None:
    markers = make_markers(marker_table="other.done")
    with pytest.raises(DestinationError, match=r"marker table other\.done cannot be made"):
        markers.ledger.ensure()


def test_the_database_s_clock_stamps_unless_the_client_s_is_asked_for(
    database: Database, make_markers: MakeMarkers
) -> None:
    with database.connect() as session, session.transaction():
        stamp = session.execute("SELECT now()").fetchone()
        make_markers().touch(session, "by database", X)
        before = datetime.now(UTC)
        make_markers(client_timestamps=True).touch(session, "by client", X)
        after = datetime.now(UTC)
    found = dict(database.execute("SELECT update_id, inserted FROM tidegate.table_updates"))
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


def test_a_table_with_a_dot_in_its_name_is_not_taken_for_another(
    database: Database, make_markers: MakeMarkers
) -> None:
    markers = make_markers()
    with database.connect() as session:
        markers.touch(session, "u", Relation("marts", "x"))
        assert not markers.exists(session, "u", Relation("public", "marts.x"))


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


def test_a_marker_in_an_unknown_connection_is_refused(make_place: MakePlace) -> None:
    with pytest.raises(SettingsError, match='there is no connection "warehous"'):
        make_place().open().marker("warehous:x", update_id="u").exists()
