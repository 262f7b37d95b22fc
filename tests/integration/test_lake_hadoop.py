"""A lake that is nothing but folders: read without Spark, loaded as any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from integration.conftest import Database
from integration.destination_conformance import load
from integration.interleaving import Steps, stepwise
from integration.lake_harness import Lake, LakeHarness, make_lake
from integration.test_lake_races import (
    append_harness,
    assert_in_once,
    first_attempt,
    next_attempt,
)
from tidegate.errors import FenceLost, SettingsError
from tidegate.lake.metadata import list_tables, read_table
from tidegate.model.batch import BatchKind
from tidegate.model.relation import Relation
from tidegate.spark.session import SparkSessions

__all__ = ["stepwise"]


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    warehouse = (tmp_path / "warehouse").as_uri()
    return make_lake(database, tmp_path, warm_spark, "hadoop", warehouse=warehouse)


def test_loads_into_folders_bring_rows_markers_and_watermark(lake: Lake) -> None:
    assert list_tables(lake.catalog) == []
    assert read_table(lake.catalog, Relation("raw", "nothing")) is None
    harness = LakeHarness(lake)
    load(harness, (1, "a", 1), (2, "b", 1), high=1, update_id="u1")
    published = load(harness, (1, "changed", 2), (3, "c", 2), high=2, update_id="u2")
    assert published.changed == 2
    assert harness.rows() == [(1, "changed", 2), (2, "b", 1), (3, "c", 2)]
    load(harness, (3, "only", 3), high=3, kind=BatchKind.FULL, update_id="u3")
    assert harness.rows() == [(3, "only", 3)]
    assert harness.markers() == ["u1", "u2", "u3"]
    assert harness.watermark().value == "3"
    assert list_tables(lake.catalog) == [harness.destination.relation]


def test_a_commit_that_its_writer_left_without_a_hint_counts(lake: Lake, tmp_path: Path) -> None:
    harness = LakeHarness(lake)
    load(harness, (1, "a", 1))
    (hint,) = (tmp_path / "warehouse").glob("raw/*/metadata/version-hint.text")
    now = harness.read()
    for text in ("1", "", None):
        hint.write_text(text) if text is not None else hint.unlink()
        assert harness.read() == now


@pytest.mark.parametrize(
    ("at", "until"), [("intent.noted", "fence.raised"), ("intent.noted", "healed")]
)
@pytest.mark.usefixtures("stepwise")
def test_of_two_attempts_at_one_load_one_publishes(lake: Lake, at: str, until: str) -> None:
    harness = append_harness(lake)
    zombie = Steps(first_attempt(harness, "u"), at).start()
    successor = Steps(lambda: next_attempt(harness, "u"), until).start()
    zombie.finish()
    successor.finish()
    assert successor.error is None
    assert isinstance(zombie.error, FenceLost)
    assert_in_once(harness, "u")


def test_a_catalog_of_folders_says_which(lake: Lake) -> None:
    catalog = replace(lake.catalog, options={})
    with pytest.raises(SettingsError, match="needs the folder of its tables"):
        read_table(catalog, Relation("raw", "orders"))
