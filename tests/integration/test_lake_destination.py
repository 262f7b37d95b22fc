"""The lake as destination: the common contract.

merge is held to all of it; the other modes share the statements and all that is around them, and
are held to the contract by make chaos.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from integration.destination_conformance import (
    DeletesConformance,
    DestinationConformance,
    MergeConformance,
    ProtocolConformance,
    RowsConformance,
)
from integration.destination_harness import MakeHarness, Row, load, make_shape
from integration.lake_harness import Lake, LakeHarness, lake, maker, shared
from tidegate.config.sync import Mode, RemovalLimit, Rules
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import RemovalRefused
from tidegate.iceberg.staged_files import arrow_schema, write_file
from tidegate.iceberg.table import MAIN
from tidegate.load.targets.iceberg import publish
from tidegate.load.targets.iceberg.commit import all_newer

__all__ = ["lake", "shared"]


class TestMerge(DestinationConformance):
    """merge keeps the contract; its other keys are for make chaos."""

    test_newest = (
        MergeConformance.test_rows_replace_others_unless_they_are_older_and_a_full_batch_is_all
    )
    test_twice = MergeConformance.test_a_key_twice_is_refused_or_its_newest_row_is_kept

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


class TestMergeWithDeletes:
    """merge keeps the contract of deletes."""

    test_batch = DeletesConformance.test_one_batch_brings_new_rows_changes_and_deletes

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


class TestDeleteInsert:
    """delete_insert deletes by the statement of merge, but never asks which row is newer."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.DELETE_INSERT)

    def test_an_older_row_replaces_a_newer(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "newer", 8, False), (2, "b", 8, False), (3, "c", 8, False))
        older = load(harness, (1, "older", 3, False), (2, "b", 8, False), (3, "c", 1, True))
        assert (older.rows, older.changed) == (3, 2)
        assert harness.rows() == [(1, "older", 3), (2, "b", 8)]


@pytest.mark.chaos
class TestEveryMode(ProtocolConformance, RowsConformance):
    """What merge keeps, the other modes keep too."""

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
class TestAllDeletes(DeletesConformance):
    """merge and delete_insert keep the contract of deletes for every kind of key."""

    @pytest.fixture(params=[Mode.MERGE, Mode.DELETE_INSERT])
    def make_harness(self, lake: Lake, request: pytest.FixtureRequest) -> MakeHarness:
        return maker(lake, request.param)


@pytest.mark.chaos
class TestKeys(MergeConformance):
    """merge, and replace with a key, keep the contract of merge for every kind of key."""

    @pytest.fixture(params=[Mode.MERGE, Mode.REPLACE])
    def make_harness(self, lake: Lake, request: pytest.FixtureRequest) -> MakeHarness:
        return maker(lake, request.param)


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


@pytest.mark.parametrize(
    ("mode", "key", "races"),
    [
        (Mode.MERGE, "id", 3),
        (Mode.REPLACE, "", 0),
        pytest.param(Mode.MERGE, "id", 0, marks=pytest.mark.chaos),
        pytest.param(Mode.REPLACE, "", 3, marks=pytest.mark.chaos),
    ],
)
def test_a_load_of_everything_that_removes_more_than_a_half_changes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode, key: str, races: int
) -> None:
    """On a branch, and where it goes to main itself after so many races that it lost."""
    rules = Rules(mode=mode, removal=RemovalLimit(0.5, "allow it"))
    harness = LakeHarness(lake, make_shape(key=key, unique=bool(key)), rules)
    load(harness, *((n, "a", 1) for n in range(200)))
    monkeypatch.setattr(publish, "_RACES", races)
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


def is_newer(harness: LakeHarness, *rows: Row, column: str = "c") -> bool:
    """As the metadata of files tells, so that a merge need not read the cursor."""
    relation, location = harness.destination.relation, harness.read().location
    writes = harness.stage(harness.attempt(), rows)
    return all_newer(harness.lake.catalog, relation, MAIN, location, writes, column)


def test_rows_are_newer_only_if_each_is_above_all_that_is_there(lake: Lake) -> None:
    harness = LakeHarness(lake)
    load(harness, (1, "a", 5), (2, "b", 7), (3, "no cursor", None), high=7)
    load(harness, (4, "c", 9), high=9)
    assert is_newer(harness, (1, "later", 10), (9, "new", 12))
    assert not is_newer(harness, (1, "at the same time", 9))
    assert not is_newer(harness, (1, "later", 10), (2, "earlier", 6))
    assert not is_newer(harness, (1, "later", 10), (2, "without one", None))
    # A column whose bounds are cut off, or that is not there, tells nothing.
    assert not is_newer(harness, (1, "z", 10), column="name")
    assert not is_newer(harness, (1, "z", 10), column="missing")
