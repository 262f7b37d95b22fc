"""What the metadata of files tells of a cursor, so that a merge need not read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.conftest import Database
from integration.destination_conformance import Row, load
from integration.lake_harness import Lake, LakeHarness, make_lake
from tidegate.lake.bounds import all_newer
from tidegate.lake.metadata import read_table
from tidegate.model.lake import MAIN
from tidegate.spark.session import SparkSessions


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


def is_newer(harness: LakeHarness, *rows: Row, column: str = "c") -> bool:
    relation = harness.destination.relation
    table = read_table(harness.lake.catalog, relation)
    assert table is not None
    writes = harness.stage(harness.attempt(), rows)
    return all_newer(harness.lake.catalog, relation, MAIN, table.location, writes, column)


def test_rows_are_newer_only_if_each_is_above_all_that_is_there(lake: Lake) -> None:
    harness = LakeHarness(lake)
    load(harness, (1, "a", 5), (2, "b", 7), (3, "no cursor", None), high=7)
    load(harness, (4, "c", 9), high=9)
    assert is_newer(harness, (1, "later", 10), (9, "new", 12))
    assert not is_newer(harness, (1, "at the same time", 9))
    assert not is_newer(harness, (1, "later", 10), (2, "earlier", 6))
    assert not is_newer(harness, (1, "later", 10), (2, "without one", None))


def test_a_column_whose_bounds_are_cut_off_or_that_is_not_there_tells_nothing(lake: Lake) -> None:
    harness = LakeHarness(lake)
    load(harness, (1, "a", 5), high=5)
    assert not is_newer(harness, (1, "z", 10), column="name")
    assert not is_newer(harness, (1, "z", 10), column="missing")
