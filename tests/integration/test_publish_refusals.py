"""What `tg.publish` refuses: by name, before a row is computed, and without a trace."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration.conftest import MakeProject, Place
from tidegate.errors import (
    DeclarationError,
    DestinationError,
    SettingsError,
    TransformError,
    UsageError,
)
from tidegate.model.relation import Endpoint
from tidegate.project import Project
from tidegate.runtime.sweeper import Sweeper
from tidegate.spark.session import SparkSessions

Made = tuple[Project, Place]
TARGET = "warehouse:marts.revenue"


@pytest.fixture
def spark(warm_spark: SparkSessions) -> SparkSession:
    """The user's own session."""
    return warm_spark.get()


@pytest.fixture
def made(make_project: MakeProject) -> Made:
    """A project without syncs, on one database."""
    return make_project()


def refused(
    made: Made, df: object, error: type[Exception], message: str, **options: Any
) -> Exception:
    """The publish fails with these words; no marker, no table, no staging is left."""
    project, place = made
    given = {"target": TARGET, "key": "id", "update_id": "r-1", **options}
    with pytest.raises(error, match=message) as caught:
        project.publish(df, **given)  # type: ignore[arg-type]
    if staged(place):
        # Of a task that Spark had not stopped yet when another one failed.
        sweeper = Sweeper(project.context, actor="test", targets=lambda: [Endpoint.parse(TARGET)])
        with project.context.plane.connect() as control:
            sweeper.run_once(control, tidy=True)
    assert staged(place) == []
    if place.target.value("SELECT to_regclass('tidegate.table_updates')"):
        assert place.target.execute("SELECT * FROM tidegate.table_updates") == []
    return caught.value


def staged(place: Place) -> list[Any]:
    return place.target.execute("SELECT relname FROM pg_class WHERE relname LIKE 'stg\\_%'")


def number_of_jobs(place: Place) -> int:
    if place.control.value("SELECT to_regclass('tidegate_control.jobs')") is None:
        return 0
    found: int = place.control.value("SELECT count(*) FROM tidegate_control.jobs")
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_id": ""}, 'update_id is "".*not empty'),
        ({"update_id": "  "}, "update_id is .*not empty"),
        ({"update_id": None}, "update_id is null; expected text"),
        ({"update_id": 20261101}, "update_id is 20261101; expected text"),
        ({"target": "marts.revenue"}, 'target is "marts.revenue"; expected "connection:schema'),
        ({"target": [TARGET, TARGET]}, "target is .*; expected"),
        ({"target": "nowhere:marts.revenue"}, "nowhere"),
        ({"target": "warehouse:a.b.c"}, "'a.b.c' is not a table name"),
        ({"mode": "upsert"}, 'mode is "upsert"; expected one of "merge"'),
        ({"duplicates": "newest"}, "no cursor says which"),
        ({"key": []}, "key is .*expected a column or a list"),
        ({"key": ["id", "id"]}, "key is .*different columns"),
        ({"checks": {"positive": ""}}, "checks .*expected a table of names and conditions"),
        ({"before_sql": "COMMIT"}, "before_sql is .*COMMIT would"),
        ({"partitions": 0}, "partitions is 0"),
        ({"wait": "soon"}, 'wait is "soon"'),
    ],
)
def test_a_wrong_keyword_is_named(
    made: Made, spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    refused(made, spark.range(1), UsageError, message, **options)
    assert number_of_jobs(made[1]) == 0


def test_everything_wrong_with_the_keywords_is_said_at_once(
    made: Made, spark: SparkSession
) -> None:
    error = refused(
        made, spark.range(1), SettingsError, "publish: mode", mode="x", update_id="", key=[]
    )
    assert [line.split()[1] for line in str(error).splitlines()] == ["update_id", "key", "mode"]


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        (pd.DataFrame({"id": [1]}), r"not pandas\..*DataFrame", "spark.createDataFrame"),
        ([(1, "a")], "a Spark DataFrame, not list", "give the DataFrame itself"),
        (None, "a Spark DataFrame, not NoneType", "give the DataFrame itself"),
    ],
)
def test_only_dataframes_of_spark_are_taken(
    made: Made, value: object, message: str, hint: str
) -> None:
    assert hint in str(refused(made, value, UsageError, message))


def test_a_stream_is_refused(made: Made, spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    error = refused(made, stream, UsageError, "not a stream")
    assert "foreachBatch" in str(error)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("array(1) AS tags", "column tags is array<int>"),
        ("map('a', 1) AS m", "column m is map<string,int>"),
        ("named_struct('a', 1) AS s", "column s is struct<a:int>"),
        ("NULL AS nothing", "column nothing is void"),
        ("INTERVAL '1' DAY AS d", "column d is interval day"),
        ("2 AS id", "has column id twice"),
    ],
)
def test_a_column_that_postgres_cannot_take_is_named(
    made: Made, spark: SparkSession, expression: str, message: str
) -> None:
    df = spark.sql(f"SELECT 1 AS id, {expression}")
    refused(made, df, DeclarationError, f"the DataFrame for {TARGET}.*{message}")
    assert number_of_jobs(made[1]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "idd"}, "has no key column idd"),
        ({"key": ["id", "day"]}, "has no key column day"),
        ({"cursor": "seen"}, "has no cursor seen"),
        ({"key": None}, "does not exist yet, and merge needs a key"),
        ({"key": None, "mode": "delete_insert"}, "and delete_insert needs a key"),
    ],
)
def test_a_key_or_cursor_that_the_dataframe_lacks_is_named(
    made: Made, spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    refused(made, spark.range(1), DeclarationError, message, **options)
    assert number_of_jobs(made[1]) == 0


def test_a_target_without_a_primary_key_needs_a_key(made: Made, spark: SparkSession) -> None:
    made[1].target.execute("CREATE SCHEMA marts", "CREATE TABLE marts.revenue (id bigint)")
    refused(made, spark.range(1), DeclarationError, "has no primary key", key=None)


def ids(spark: SparkSession, text: str) -> DataFrame:
    return spark.sql(f"SELECT * FROM VALUES {text} AS t (id)")


@pytest.mark.parametrize("mode", ["merge", "delete_insert", "replace"])
def test_keys_that_are_missing_or_occur_twice_are_refused(
    made: Made, spark: SparkSession, mode: str
) -> None:
    missing = ids(spark, "(1), (NULL)")
    refused(made, missing, DestinationError, "1 rows for marts.revenue have no value", mode=mode)
    twice = ids(spark, "(1), (7), (7)")
    refused(made, twice, DeclarationError, "one occurs 2 times", mode=mode)
    assert made[1].target.execute("SELECT * FROM marts.revenue") == []


def test_a_target_that_cannot_take_the_rows_is_refused(made: Made, spark: SparkSession) -> None:
    place = made[1]
    place.target.execute(
        "CREATE SCHEMA marts", "CREATE TABLE marts.revenue (id smallint PRIMARY KEY)"
    )
    df = spark.sql("SELECT 1L AS id, 'a' AS name")
    refused(made, df, DestinationError, "id is smallint, the rows have bigint.*")
    refused(made, df, DestinationError, "it has no column name: ALTER TABLE")
    place.target.execute("DROP TABLE marts.revenue", "CREATE VIEW marts.revenue AS SELECT 1 AS id")
    refused(made, df, DestinationError, "is not a table")


def test_a_dataframe_that_fails_while_it_runs_leaves_nothing(
    made: Made, spark: SparkSession
) -> None:
    df = spark.range(100, numPartitions=4).withColumn(
        "x", f.expr("IF(id = 99, raise_error('no such rate'), 1)").cast("int")
    )
    refused(made, df, TransformError, "no such rate")
    assert made[1].target.execute("SELECT * FROM marts.revenue") == []
    assert made[1].control.execute("SELECT kind, status FROM tidegate_control.jobs") == [
        ("publish", "failed")
    ]
