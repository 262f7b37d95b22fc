"""What a table is made of, read without Spark, against what Iceberg's own metadata tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.conftest import Database
from integration.lake_harness import Lake, make_lake
from integration.maintained_tables import (
    MERGE_ON_READ,
    Tables,
    dangling_positions,
    tables,
    told_by_iceberg,
    told_by_us,
)
from tidegate.lake.table_facts import read_facts
from tidegate.model.maintenance import Amount
from tidegate.model.relation import Relation
from tidegate.model.table_facts import TableFacts
from tidegate.spark.session import SparkSessions

MB = 1024 * 1024


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


def facts_of(made: Tables, name: str) -> TableFacts:
    """Read them, after each figure that Iceberg tells itself was found equal."""
    facts = read_facts(made.lake.catalog, made.relation(name))
    assert facts is not None
    told = told_by_iceberg(made, name)
    assert told_by_us(facts, told) == told
    assert TableFacts.read(facts.document()) == facts
    return facts


def test_a_table_that_is_not_there_has_no_facts(lake: Lake) -> None:
    lake.ledger().ensure()
    assert read_facts(lake.catalog, Relation("raw", "nowhere")) is None


def test_a_table_that_was_never_written_has_facts_too(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("empty")
        facts = facts_of(made, "empty")
    assert facts.snapshot_id is None
    assert facts.snapshot_at is None
    assert facts.data == Amount(0, 0)
    assert facts.target_file_bytes == 512 * MB


def test_small_files_count_where_another_lies_beside_them(lake: Lake) -> None:
    with tables(lake) as made:
        made.make(
            "parts", partitioned="part", properties="'write.target-file-size-bytes'='1048576'"
        )
        for number in range(4):
            made.append("parts", number, 10, "many")
        made.append("parts", 9, 10, "alone")
        facts = facts_of(made, "parts")
        assert (facts.partitions, facts.data.files) == (2, 5)
        assert (facts.small.files, facts.small_after) == (4, 1)
        assert facts.most_small_together == 4
        assert facts.target_file_bytes == MB
        assert facts.added_files_per_commit == 1.0

        # Files of a former partitioning are put together, whatever they hold.
        made.run(f"ALTER TABLE {made.named('parts')} ADD PARTITION FIELD bucket(2, id)")
        made.append("parts", 100, 1, "many")
        facts = facts_of(made, "parts")
        assert (facts.small.files, facts.small_after) == (5, 1)
        assert facts.partitions == 3
        assert facts.small_manifests == 0, "the manifest of the new partitioning is alone"
        made.append("parts", 100, 1, "many")
        assert facts_of(made, "parts").small_manifests == 2


def test_branches_and_tags_hold_snapshots(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("refs")
        for number in range(3):
            made.append("refs", number, 1)
        made.run(f"ALTER TABLE {made.named('refs')} CREATE TAG kept AS OF VERSION "
                 f"{_first_snapshot(made, 'refs')}")  # fmt: skip
        made.run(f"ALTER TABLE {made.named('refs')} CREATE BRANCH other")
        made.append("refs", 9, 1, to="other")
        facts = facts_of(made, "refs")
        assert (facts.branches, facts.tags, facts.snapshots) == (2, 1, 4)
        assert facts.loose_snapshots == 1
        assert facts.data.files == 3, "main alone counts"
        assert facts.oldest_loose_at is not None
        assert facts.oldest_snapshot_at is not None
        assert facts.oldest_loose_at > facts.oldest_snapshot_at, "the oldest is tagged"


def test_position_deletes_dangle_when_their_data_files_are_gone(lake: Lake) -> None:
    with tables(lake) as made:
        made.make(
            "positions", partitioned="part", properties=f"'format-version'='2',{MERGE_ON_READ}"
        )
        for part in ("a", "b"):
            for number in range(3):
                made.append("positions", number * 100, 100, part)
        made.run(f"DELETE FROM {made.named('positions')} WHERE id % 10 = 3")
        made.run(f"DELETE FROM {made.named('positions')} WHERE id % 10 = 4")
        facts = facts_of(made, "positions")
        assert facts.position_deletes.files == 6, "Spark replaces what is for one data file alone"
        assert facts.dangling_delete_files == dangling_positions(made, "positions") == 0
        assert facts.position_deletes_after == 6, "one for each data file"

        # Iceberg drops such a delete file along with its data file; other writers may not.
        data_file = "file:/gone.parquet"
        made.delete_by_position("positions", data_file, "a")
        facts = facts_of(made, "positions")
        assert facts.dangling_delete_files == 1
        assert (facts.position_deletes.files, facts.position_deletes_after) == (7, 6)


def test_position_deletes_for_several_files_dangle_by_their_sequence(lake: Lake) -> None:
    with tables(lake) as made:
        made.make(
            "shared",
            properties=f"'format-version'='2',{MERGE_ON_READ},'write.delete.granularity'='partition'",
        )
        for number in range(3):
            made.append("shared", number * 100, 100)
        made.run(f"DELETE FROM {made.named('shared')} WHERE id % 10 = 3")
        facts = facts_of(made, "shared")
        assert facts.position_deletes.files < 3, "one is for several data files"
        assert facts.dangling_delete_files == dangling_positions(made, "shared") == 0
        made.run(
            f"CALL {lake.catalog.name}.system.rewrite_data_files(table => 'raw.shared', "
            "options => map('rewrite-all', 'true', 'use-starting-sequence-number', 'false'))"
        )
        facts = facts_of(made, "shared")
        assert facts.dangling_delete_files == dangling_positions(made, "shared")
        assert facts.dangling_delete_files == facts.position_deletes.files


def test_deletion_vectors_count_as_position_deletes(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("vectors", properties=f"'format-version'='3',{MERGE_ON_READ}")
        for number in range(3):
            made.append("vectors", number * 100, 100)
        made.run(f"DELETE FROM {made.named('vectors')} WHERE id % 10 = 3")
        facts = facts_of(made, "vectors")
        assert facts.format_version == 3
        assert (facts.position_deletes.files, facts.position_deleted_rows) == (3, 30)
        assert facts.dangling_delete_files == 0
        assert facts.position_deletes_after == 3
        made.run(f"DELETE FROM {made.named('vectors')} WHERE id < 100")
        facts = facts_of(made, "vectors")
        assert facts.data.files == 2
        assert facts.position_deletes.files - facts.dangling_delete_files == 2


def test_equality_deletes_dangle_when_all_data_is_newer(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("values", partitioned="part", properties="'format-version'='2'")
        made.append("values", 0, 10, "a")
        made.delete_by_value("values", 2, "a")
        made.delete_by_value("values", 1, "b")
        facts = facts_of(made, "values")
        assert facts.equality_deletes.files == 3
        assert facts.equality_deleted_rows == 30
        assert facts.dangling_delete_files == 1, "partition b has no data"
        made.append("values", 20, 10, "b")
        assert facts_of(made, "values").dangling_delete_files == 1, "what is in b is newer"

        # Without partitions they are for all files, whatever these are partitioned by.
        made.run(f"ALTER TABLE {made.named('values')} DROP PARTITION FIELD part")
        made.delete_by_value("values", 1)
        facts = facts_of(made, "values")
        assert (facts.equality_deletes.files, facts.dangling_delete_files) == (4, 1)


def test_the_oldest_format_and_a_table_without_rows_are_read_as_well(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("first", properties="'format-version'='1','gc.enabled'='false'")
        made.append("first", 0, 10)
        made.append("first", 10, 10)
        facts = facts_of(made, "first")
        assert (facts.format_version, facts.small.files) == (1, 2)
        assert facts.may_delete_files is False
        made.run(f"DELETE FROM {made.named('first')}")
        facts = facts_of(made, "first")
        assert (facts.data, facts.records, facts.partitions) == (Amount(0, 0), 0, 0)
        assert facts.snapshot_id is not None


def _first_snapshot(made: Tables, name: str) -> int:
    rows = made.run(
        f"SELECT snapshot_id FROM {made.named(name, 'snapshots')} ORDER BY committed_at LIMIT 1"
    )
    return int(rows[0]["snapshot_id"])
