"""`tg.publish`: a DataFrame of the user's own, in one line, exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from integration.conftest import MakeProject, Place
from tidegate.model.publish import PublishReport
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

Made = tuple[Project, Place]
TARGET = "warehouse:marts.revenue"
SCHEMA = "id int, name string"
COUNT_JOBS = "SELECT kind, status, count(*)::int FROM tidegate_control.jobs GROUP BY 1, 2"


@pytest.fixture
def spark(warm_spark: SparkSessions) -> SparkSession:
    """The user's own session."""
    return warm_spark.get()


@pytest.fixture
def made(make_project: MakeProject) -> Made:
    """A project without syncs, on three databases."""
    return make_project(databases=3)


def frame(spark: SparkSession, *rows: tuple[Any, ...], schema: str = SCHEMA) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)


def rows_of(place: Place, table: str = "marts.revenue") -> list[tuple[Any, ...]]:
    return place.target.execute(f"SELECT * FROM {table} ORDER BY 1, 2")


def markers_of(place: Place) -> list[tuple[Any, ...]]:
    return place.target.execute(
        "SELECT update_id, target_table FROM tidegate.table_updates ORDER BY 1, 2"
    )


def test_a_dataframe_is_in_its_table_with_its_marker(made: Made, spark: SparkSession) -> None:
    project, place = made
    df = frame(spark, (1, "a"), (2, "b"))
    report = tg.publish(df, target=TARGET, key="id", update_id="r-1", project=project)
    assert report == PublishReport("done", 2, 2, 0, False, "r-1")
    assert rows_of(place) == [(1, "a"), (2, "b")]
    assert markers_of(place) == [("r-1", "marts.revenue")]
    assert place.control.execute(COUNT_JOBS) == [("publish", "done", 1)]
