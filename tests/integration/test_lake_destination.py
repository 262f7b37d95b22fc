"""The lake as destination: the common contract in every mode, and what only a lake has."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.conftest import Database
from integration.deletes_conformance import DeletesConformance
from integration.destination_conformance import (
    DestinationConformance,
    MakeHarness,
    MergeConformance,
)
from integration.lake_harness import Lake, make_lake, maker
from tidegate.model.rules import Mode
from tidegate.spark.session import SparkSessions


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


class TestMerge(MergeConformance):
    """merge keeps the contract."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


class TestMergeWithDeletes(DeletesConformance):
    """merge keeps the contract of deletes."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


class TestDeleteInsert(DestinationConformance):
    """delete_insert keeps the contract."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.DELETE_INSERT)


class TestDeleteInsertWithDeletes(DeletesConformance):
    """delete_insert keeps the contract of deletes."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.DELETE_INSERT)


class TestPlainAppend(DestinationConformance):
    """append without a key keeps the contract."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.APPEND, keyless=True)


class TestReplaceWithAKey(MergeConformance):
    """replace with a key keeps the contract, and touches only what differs."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.REPLACE)


class TestReplaceWithoutAKey(DestinationConformance):
    """replace without a key keeps the contract."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.REPLACE, keyless=True)
