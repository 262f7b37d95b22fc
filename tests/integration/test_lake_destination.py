"""The lake as destination: the common contract.

merge is held to all of it, the other modes to what they do with rows: they share the statements
and all that is around them. The rest of it in the other modes is run by make chaos.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from integration.conftest import Database
from integration.deletes_conformance import DeletesConformance
from integration.destination_conformance import (
    MakeHarness,
    MergeConformance,
    ProtocolConformance,
    RowsConformance,
    load,
)
from integration.lake_harness import Lake, LakeHarness, lake_shape, make_lake, maker
from tidegate.destinations import lake_publishing
from tidegate.errors import RemovalRefused
from tidegate.lake.files import arrow_schema, write_file
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.rules import Mode, RemovalLimit, Rules
from tidegate.spark.session import SparkSessions


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


class TestMerge(MergeConformance):
    """merge keeps the contract."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


@pytest.mark.parametrize("ended", [False, True])
def test_what_a_task_writes_after_its_job_has_failed_is_swept_unless_none_can(
    lake: Lake, ended: bool
) -> None:
    """Spark does not wait for the other tasks of a job that fails; they have no session to end."""
    harness = LakeHarness(lake)
    fence = harness.attempt()
    place = harness.destination.place(harness.shape, fence.attempt_id)
    schema = arrow_schema(place)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "name": "a", "c": 1}], schema=schema)
    write_file(place, [batch])
    assert harness.destination.discard(fence.attempt_id, ended=ended) == 1
    write_file(place, [batch])

    assert harness.sweep(fence) == 0
    assert harness.sweep() == (0 if ended else 1)
    assert harness.staged_tables() == (1 if ended else 0)


@pytest.mark.parametrize("races", [3, 0], ids=["branch", "main"])
@pytest.mark.parametrize(("mode", "key"), [(Mode.MERGE, "id"), (Mode.REPLACE, "")])
def test_a_load_of_everything_that_removes_more_than_a_half_changes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode, key: str, races: int
) -> None:
    rules = Rules(mode=mode, removal=RemovalLimit(0.5, "allow it"))
    harness = LakeHarness(lake, lake_shape(key=key, unique=bool(key)), rules)
    load(harness, *((n, "a", 1) for n in range(200)))
    monkeypatch.setattr(lake_publishing, "_RACES", races)
    before, markers, files = harness.rows(), harness.markers(), harness.staged_tables()
    with pytest.raises(RemovalRefused, match="200 of the 200 rows"):
        harness.publish(harness.attempt(), (), Batch(BatchKind.FULL, None, "10"))
    fence = harness.attempt()
    writes = harness.stage(fence, [(n, "b", 1) for n in range(99)])
    with pytest.raises(RemovalRefused, match="101 of the 200 rows"):
        harness.publish(fence, writes, Batch(BatchKind.FULL, None, "10"))
    harness.discard(fence)
    assert (harness.rows(), harness.markers()) == (before, markers)
    assert harness.read().branches == ()
    assert harness.staged_tables() == files
    load(harness, *((n, "b", 1) for n in range(100)), kind=BatchKind.FULL)
    assert len(harness.rows()) == 100


class TestMergeWithDeletes(DeletesConformance):
    """merge keeps the contract of deletes."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


class TestDeleteInsert(RowsConformance):
    """delete_insert does with rows what it must."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.DELETE_INSERT)


class TestDeleteInsertWithDeletes:
    """delete_insert deletes by the statement of merge, but never asks which row is newer."""

    test_one_batch = DeletesConformance.test_one_batch_brings_new_rows_changes_and_deletes
    test_any_cursor = (
        DeletesConformance.test_a_delete_counts_whatever_the_cursor_of_the_row_that_is_there
    )

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.DELETE_INSERT)


class TestPlainAppend(RowsConformance):
    """append without a key does with rows what it must."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.APPEND, keyless=True)


class TestReplaceWithAKey(RowsConformance):
    """replace with a key does with rows what it must, and touches only what differs."""

    test_changed = MergeConformance.test_a_row_that_changed_replaces_the_old_one
    test_unchanged = MergeConformance.test_rows_that_did_not_change_are_not_counted_as_changed
    test_full = (
        MergeConformance.test_a_full_batch_removes_what_it_does_not_hold_and_takes_older_rows
    )

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.REPLACE)


class TestReplaceWithoutAKey(RowsConformance):
    """replace without a key does with rows what it must."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.REPLACE, keyless=True)


@pytest.mark.chaos
class TestProtocolInEveryMode(ProtocolConformance):
    """What merge keeps whatever its mode, the others keep too."""

    @pytest.fixture(
        params=[
            (Mode.DELETE_INSERT, False),
            (Mode.APPEND, True),
            (Mode.REPLACE, False),
            (Mode.REPLACE, True),
        ]
    )
    def make_harness(self, lake: Lake, request: pytest.FixtureRequest) -> MakeHarness:
        mode, keyless = request.param
        return maker(lake, mode, keyless=keyless)


@pytest.mark.chaos
class TestDeleteInsertWithAllDeletes(DeletesConformance):
    """delete_insert keeps the contract of deletes."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.DELETE_INSERT)


@pytest.mark.chaos
class TestReplaceWithAKeyAsMerge(MergeConformance):
    """replace with a key keeps the contract of merge."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.REPLACE)
