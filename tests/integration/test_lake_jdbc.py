"""A lake behind a JDBC catalog in somebody else's Postgres: no trigger of ours is in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from conftest import MakeDatabase
from integration.conftest import Database
from integration.destination_conformance import load
from integration.lake_harness import Lake, make_lake, maker, spelled_out
from tidegate.errors import LedgerBehind, SettingsError, TargetUnknown
from tidegate.lake.metadata import list_tables, read_table
from tidegate.ledger.markers import Markers
from tidegate.model.relation import Relation
from tidegate.model.rules import Mode, Rules
from tidegate.spark.session import SparkSessions


@pytest.fixture
def lake(
    database: Database, make_database: MakeDatabase, tmp_path: Path, warm_spark: SparkSessions
) -> Lake:
    backend = Database(make_database("catalog"))
    backend.execute("CREATE SCHEMA iceberg")
    address = conninfo_to_dict(spelled_out(backend))
    options = {
        "uri": f"jdbc:postgresql://{address['host']}:{address['port']}/{address['dbname']}"
        "?currentSchema=iceberg",
        "jdbc.user": str(address["user"]),
        "jdbc.password": str(address.get("password", "")),
        "jdbc.schema-version": "V1",
        "warehouse": (tmp_path / "theirs").as_uri(),
    }
    made = make_lake(database, tmp_path, warm_spark, "jdbc", **options)
    return replace(made, backend=backend, tables="iceberg.iceberg_tables")


def test_rows_go_into_it_and_are_seen_without_spark(lake: Lake) -> None:
    harness = maker(lake, Mode.MERGE)()
    load(harness, (1, "a", 1), (2, "b", 1), high=1, update_id="u1")
    load(harness, (2, "changed", 2), (3, "new", 2), high=2, update_id="u2")
    assert harness.rows() == [(1, "a", 1), (2, "changed", 2), (3, "new", 2)]
    assert harness.markers() == ["u1", "u2"]
    found = lake.backend.execute("SELECT table_namespace, table_name FROM iceberg.iceberg_tables")
    assert list_tables(lake.catalog) == [Relation(*row) for row in found]
    assert read_table(lake.catalog, Relation("raw", "missing")) is None


def forget_newest(lake: Lake) -> None:
    """As a ledger that is restored from a backup taken after the first load."""
    lake.database.execute(
        f"DELETE FROM {lake.schema}.table_updates WHERE update_id <> 'u1'",
        f"DELETE FROM {lake.schema}.watermark_log WHERE version > 1",
        f"UPDATE {lake.schema}.etl_state SET high_watermark = '1', version = 1, rows_synced = 2,"
        " update_id = 'u1', position = NULL",
    )


@pytest.mark.parametrize("moved", [False, True])
def test_a_ledger_that_is_older_than_the_table_catches_up_or_stops(lake: Lake, moved: bool) -> None:
    harness = maker(lake, Mode.APPEND, keyless=True)()
    load(harness, (1, "a", 1), (2, "b", 1), high=1, update_id="u1")
    load(harness, (3, "c", 2), high=2, update_id="u2")
    load(harness, (4, "d", 3), (5, "e", 3), high=3, update_id="u3")
    before = harness.watermark()
    forget_newest(lake)
    fence = harness.attempt()
    if moved:
        # Somebody has gone on from the backup: nobody can tell what follows what.
        lake.database.execute(f"UPDATE {lake.schema}.etl_state SET high_watermark = '1.5'")
        with pytest.raises(LedgerBehind, match="holds loads of orders up to 3") as stopped:
            harness.destination.heal(fence)
        assert "tidegate marker touch lake:raw." in str(stopped.value)
        with lake.open() as connection:
            Markers(lake.ledger()).touch(connection, "u3", harness.destination.relation)
        harness.destination.heal(fence)
        return
    harness.destination.heal(fence)
    after = harness.watermark()
    assert (after.value, after.version, after.rows_synced) == ("3", 3, 5)
    assert replace(after, updated_at=None) == replace(before, updated_at=None)
    assert harness.markers() == ["u1", "u2", "u3"]
    logged = lake.database.execute(
        f"SELECT version, new_watermark, rows, reason FROM {lake.schema}.watermark_log ORDER BY id"
    )
    assert logged[1:] == [(2, "2", 1, "load range"), (3, "3", 2, "load range")]
    # One that knows of nothing at all cannot tell whether that is meant so.
    lake.database.execute(
        f"DELETE FROM {lake.schema}.table_updates", f"DELETE FROM {lake.schema}.etl_state"
    )
    harness.destination.heal(fence)
    with pytest.raises(TargetUnknown):
        harness.destination.prepare(harness.shape, harness.watermark(), Rules(mode=Mode.APPEND))


def test_one_that_is_not_in_postgres_is_refused(lake: Lake) -> None:
    mysql = replace(lake.catalog, options={"uri": "jdbc:mysql://host/db", "jdbc.password": "pw"})
    with pytest.raises(SettingsError, match="read in Postgres only") as refused:
        read_table(mysql, Relation("raw", "orders"))
    assert "pw" not in str(refused.value)
