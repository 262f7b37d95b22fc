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
from tidegate.errors import SettingsError
from tidegate.lake.metadata import list_tables, read_table
from tidegate.model.relation import Relation
from tidegate.model.rules import Mode
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


def test_one_that_is_not_in_postgres_is_refused(lake: Lake) -> None:
    mysql = replace(lake.catalog, options={"uri": "jdbc:mysql://host/db", "jdbc.password": "pw"})
    with pytest.raises(SettingsError, match="read in Postgres only") as refused:
        read_table(mysql, Relation("raw", "orders"))
    assert "pw" not in str(refused.value)
