"""What a table is made of and what each action would do to it, told without Spark.

The facts are compared with Iceberg's own metadata tables, the predictions with what Iceberg's
procedures then really do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from databases import Databases
from integration.conftest import Database, WarmSpark
from integration.lake_harness import make_lake
from integration.maintained_tables import (
    MERGE_ON_READ,
    Tables,
    dangling_positions,
    tables,
    told_by_iceberg,
    told_by_us,
)
from tidegate.core.errors import DestinationError
from tidegate.core.table_actions import (
    DAY,
    OPTIONS,
    ActionOptions,
    Amount,
    Effect,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeleteFiles,
)
from tidegate.iceberg.manifests import known_files, normal_path
from tidegate.iceberg.metadata import open_table
from tidegate.maintenance import procedures
from tidegate.maintenance.facts import TableFacts, read_facts
from tidegate.maintenance.orphan_files import find_orphans
from tidegate.maintenance.prediction import predict
from tidegate.postgres.embedded import EmbeddedServer

MB = 1024 * 1024
V2 = f"'format-version'='2',{MERGE_ON_READ}"
BY_PARTITION = "'write.delete.granularity'='partition'"


@pytest.fixture(scope="module")
def made(
    server: EmbeddedServer,
    kept_databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
    warm_spark: WarmSpark,
) -> Iterator[Tables]:
    """One lake for all tables."""
    name = kept_databases.make("lake")
    database = Database(server.conninfo(name))
    with tables(make_lake(database, tmp_path_factory.mktemp("lake"), warm_spark)) as found:
        yield found
    kept_databases.give_back(name)


def facts(made: Tables, name: str) -> TableFacts:
    found = read_facts(made.lake.catalog, made.relation(name))
    assert found is not None
    return found


def checked_facts(made: Tables, name: str) -> TableFacts:
    """The facts, after each figure that Iceberg tells itself was found equal."""
    found = facts(made, name)
    told = told_by_iceberg(made, name)
    assert told_by_us(found, told) == told
    assert TableFacts.read(found.document()) == found
    return found


def predicted(made: Tables, name: str, options: ActionOptions, **given: Any) -> Effect:
    action = next(one for one, kind in OPTIONS.items() if isinstance(options, kind))
    now = given.pop("now", datetime.now(UTC))
    return predict(made.lake.catalog, made.relation(name), action, options, now=now, **given)


def rewrite(made: Tables, name: str, options: RewriteDataFiles, **more: Any) -> dict[str, Any]:
    relation = made.relation(name)
    (done,) = made.run(procedures.rewrite_data_files(made.lake.catalog, relation, options, **more))
    return done


def test_a_table_that_is_not_there_or_was_never_written(made: Tables) -> None:
    assert read_facts(made.lake.catalog, made.relation("nowhere")) is None
    with pytest.raises(DestinationError, match="no table"):
        predicted(made, "nowhere", RewriteManifests())
    made.make("empty")
    found = checked_facts(made, "empty")
    assert (found.snapshot_id, found.snapshot_at, found.data) == (None, None, Amount(0, 0))
    assert found.target_file_bytes == 512 * MB
    for action, kind in OPTIONS.items():
        assert predicted(made, "empty", kind()).is_nothing, action


def test_small_files_count_where_another_lies_beside_them(made: Tables) -> None:
    made.make("parts", partitioned="part", properties="'write.target-file-size-bytes'='1048576'")
    made.append("parts", 0, 10, "many", commits=4)
    made.append("parts", 9, 10, "alone")
    found = checked_facts(made, "parts")
    assert (found.partitions, found.data.files) == (2, 5)
    assert (found.small.files, found.small_after) == (4, 1)
    assert found.most_small_together == 4
    assert found.target_file_bytes == MB
    assert found.added_files_per_commit == 1.0

    # Files of a former partitioning are put together, whatever they hold.
    made.run(f"ALTER TABLE {made.named('parts')} ADD PARTITION FIELD bucket(2, id)")
    made.append("parts", 100, 1, "many")
    found = checked_facts(made, "parts")
    assert (found.small.files, found.small_after, found.partitions) == (5, 1, 3)
    assert found.small_manifests == 0, "the manifest of the new partitioning is alone"
    made.append("parts", 100, 1, "many")
    assert facts(made, "parts").small_manifests == 2


def test_branches_and_tags_hold_snapshots(made: Tables) -> None:
    table = made.make("refs")
    made.append("refs", 0, 1, commits=3)
    first = snapshots_of(made, "refs")[0][0]
    made.run(f"ALTER TABLE {table} CREATE TAG kept AS OF VERSION {first}")
    made.run(f"ALTER TABLE {table} CREATE BRANCH other")
    made.append("refs", 9, 1, to="other")
    found = checked_facts(made, "refs")
    assert (found.branches, found.tags, found.snapshots) == (2, 1, 4)
    assert found.loose_snapshots == 1
    assert found.data.files == 3, "main alone counts"
    assert found.oldest_loose_at is not None
    assert found.oldest_snapshot_at is not None
    assert found.oldest_loose_at > found.oldest_snapshot_at, "the oldest is tagged"


def test_position_deletes_dangle_when_their_data_files_are_gone(made: Tables) -> None:
    table = made.make("positions", partitioned="part", properties=V2)
    for part in ("a", "b"):
        made.append("positions", 0, 100, part, commits=3)
    for digit in (3, 4):
        made.run(f"DELETE FROM {table} WHERE id % 10 = {digit}")
    found = checked_facts(made, "positions")
    assert found.position_deletes.files == 6, "Spark replaces what is for one data file alone"
    assert found.dangling_delete_files == dangling_positions(made, "positions") == 0
    assert found.position_deletes_after == 6, "one for each data file"

    # Iceberg drops such a delete file along with its data file; other writers may not.
    made.delete_by_position("positions", "file:/gone.parquet", "a")
    found = facts(made, "positions")
    assert found.dangling_delete_files == 1
    assert (found.position_deletes.files, found.position_deletes_after) == (7, 6)


@pytest.mark.chaos
def test_position_deletes_for_several_files_dangle_by_their_sequence(made: Tables) -> None:
    table = made.make("several", properties=f"{V2},{BY_PARTITION}")
    made.append("several", 0, 100, commits=3)
    made.run(f"DELETE FROM {table} WHERE id % 10 = 3")
    found = facts(made, "several")
    assert found.position_deletes.files < 3, "one is for several data files"
    assert found.dangling_delete_files == dangling_positions(made, "several") == 0
    made.run(
        f"CALL {made.lake.catalog.name}.system.rewrite_data_files(table => 'raw.several', "
        "options => map('rewrite-all', 'true', 'use-starting-sequence-number', 'false'))"
    )
    found = checked_facts(made, "several")
    assert found.dangling_delete_files == dangling_positions(made, "several")
    assert found.dangling_delete_files == found.position_deletes.files


def test_deletion_vectors_count_as_position_deletes_and_are_left_alone(made: Tables) -> None:
    properties = f"'format-version'='3',{MERGE_ON_READ}"
    table = made.make("vectors", partitioned="part", properties=properties)
    for part in ("a", "b", "c"):
        made.append("vectors", 0, 100, part)
    made.run(f"DELETE FROM {table} WHERE id % 10 = 3")
    found = checked_facts(made, "vectors")
    assert found.format_version == 3
    assert (found.position_deletes.files, found.position_deleted_rows) == (3, 30)
    assert (found.dangling_delete_files, found.position_deletes_after) == (0, 3)

    options = RewritePositionDeleteFiles(min_input_files=2)
    effect = predicted(made, "vectors", options)
    assert effect.is_nothing
    assert effect.before.files == 3
    relation = made.relation("vectors")
    made.run(procedures.rewrite_position_delete_files(made.lake.catalog, relation, options))
    assert facts(made, "vectors").position_deletes.files == 3

    made.run(f"DELETE FROM {table} WHERE part = 'a'")
    found = facts(made, "vectors")
    assert found.data.files == 2
    assert found.position_deletes.files - found.dangling_delete_files == 2


def test_equality_deletes_dangle_when_all_data_is_newer(made: Tables) -> None:
    table = made.make("values", partitioned="part", properties="'format-version'='2'")
    made.append("values", 0, 10, "a")
    made.delete_by_value("values", 2, "a")
    made.delete_by_value("values", 1, "b")
    found = checked_facts(made, "values")
    assert (found.equality_deletes.files, found.equality_deleted_rows) == (3, 30)
    assert found.dangling_delete_files == 1, "partition b has no data"
    made.append("values", 20, 10, "b")
    assert facts(made, "values").dangling_delete_files == 1, "what is in b is newer"

    # Without partitions they are for all files, whatever these are partitioned by.
    made.run(f"ALTER TABLE {table} DROP PARTITION FIELD part")
    made.delete_by_value("values", 1)
    found = checked_facts(made, "values")
    assert (found.equality_deletes.files, found.dangling_delete_files) == (4, 1)


def test_the_oldest_format_a_table_without_rows_and_files_that_others_may_share(
    made: Tables,
) -> None:
    table = made.make("first", properties="'format-version'='1','gc.enabled'='false'")
    made.append("first", 0, 10, commits=2)
    found = checked_facts(made, "first")
    assert (found.format_version, found.small.files) == (1, 2)
    assert found.may_delete_files is False
    for options in (ExpireSnapshots(), RemoveOrphanFiles()):
        with pytest.raises(DestinationError, match=r"gc\.enabled"):
            predicted(made, "first", options)
    made.run(f"DELETE FROM {table}")
    found = checked_facts(made, "first")
    assert (found.data, found.records, found.partitions) == (Amount(0, 0), 0, 0)
    assert found.snapshot_id is not None


def test_rewriting_data_files_leaves_as_many_as_predicted(made: Tables) -> None:
    table = made.make("packed", partitioned="part", properties=V2)
    made.append("packed", 0, 10, "many", commits=6)
    made.append("packed", 0, 10, "few", commits=3)
    made.append("packed", 0, 10, "worn")
    made.append("packed", 100, 10, "alone")
    made.run(f"DELETE FROM {table} WHERE part = 'worn' AND id < 4")
    for options, expected in (
        # Six become one; "worn" is rewritten for what it has lost, three are too few.
        (RewriteDataFiles(), 6),
        (RewriteDataFiles(min_input_files=2), 4),
        (RewriteDataFiles(min_input_files=2), 4),
    ):
        effect = predicted(made, "packed", options)
        assert effect.before == facts(made, "packed").data
        done = rewrite(made, "packed", options)
        assert effect.after.files == facts(made, "packed").data.files == expected
        removed = done["rewritten_data_files_count"] - done["added_data_files_count"]
        assert removed == effect.removed.files

    # Files of a former partitioning.
    made.run(f"ALTER TABLE {table} DROP PARTITION FIELD part")
    effect = predicted(made, "packed", RewriteDataFiles(min_input_files=3))
    assert (effect.before.files, effect.after.files) == (4, 1)
    rewrite(made, "packed", RewriteDataFiles(min_input_files=3))
    assert facts(made, "packed").data.files == 1


@pytest.mark.chaos
def test_a_data_file_of_the_right_size_is_rewritten_for_its_deletes_or_not_as_asked(
    made: Tables,
) -> None:
    table = made.make("scratched", properties=V2)
    made.append("scratched", 0, 20)
    made.run(f"DELETE FROM {table} WHERE id = 3")
    size = facts(made, "scratched").data.bytes
    for threshold, rewritten in ((0, 0), (2, 0), (1, 1), (1, 0)):
        options = RewriteDataFiles(size, delete_file_threshold=threshold)
        effect = predicted(made, "scratched", options)
        done = rewrite(made, "scratched", options, dangling=True)
        assert done["rewritten_data_files_count"] == rewritten, threshold
        assert effect.rewritten == rewritten, threshold
    found = facts(made, "scratched")
    assert (found.records, found.position_deletes.files) == (19, 0)


@pytest.mark.chaos
def test_a_target_size_splits_and_joins_as_predicted(made: Tables) -> None:
    table = made.make("sized", properties="'write.parquet.row-group-size-bytes'='4096'")
    for number in range(4):
        made.run(
            f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, uuid(), id "
            f"FROM range({number}, {number + 4000})"
        )
    size = facts(made, "sized").data.bytes // 4
    for target in (size * 3, size * 40):
        options = RewriteDataFiles(target_file_bytes=target, min_input_files=2)
        effect = predicted(made, "sized", options)
        rewrite(made, "sized", options)
        assert effect.after.files == facts(made, "sized").data.files


@pytest.mark.parametrize(
    "granularity", ["partition", pytest.param("file", marks=pytest.mark.chaos)]
)
def test_rewriting_position_deletes_leaves_as_many_as_predicted(
    made: Tables, granularity: str
) -> None:
    name = f"by_{granularity}"
    table = made.make(name, partitioned="part", properties=f"{V2},{BY_PARTITION}")
    for part in ("a", "b"):
        made.append(name, 0, 100, part, commits=2)
    for digit in range(4):
        where = f"id % 10 = {digit}" + (" AND part = 'a'" if digit > 1 else "")
        made.run(f"DELETE FROM {table} WHERE {where}")
    made.run(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.granularity'='{granularity}')")
    options = RewritePositionDeleteFiles(min_input_files=3)
    effect = predicted(made, name, options)
    assert effect.before == facts(made, name).position_deletes
    relation = made.relation(name)
    (done,) = made.run(
        procedures.rewrite_position_delete_files(made.lake.catalog, relation, options)
    )
    assert done["rewritten_delete_files_count"] > 0
    after = facts(made, name).position_deletes
    if granularity == "partition":
        assert effect.after.files == after.files
    # Files that are for several data files do not tell for how many.
    assert effect.after.files <= after.files


def test_rewriting_manifests_leaves_as_many_as_predicted(made: Tables) -> None:
    table = made.make("listed", properties=V2)
    made.append("listed", 0, 10, commits=5)
    made.run(f"DELETE FROM {table} WHERE id % 10 = 3")
    made.run(f"DELETE FROM {table} WHERE id < 10")
    for _ in range(2):
        effect = predicted(made, "listed", RewriteManifests())
        assert effect.before == facts(made, "listed").manifests
        made.run(procedures.rewrite_manifests(made.lake.catalog, made.relation("listed")))
        assert effect.after.files == facts(made, "listed").manifests.files
    assert effect.is_nothing


def snapshots_of(made: Tables, name: str) -> list[tuple[int, datetime]]:
    rows = made.run(
        f"SELECT snapshot_id, committed_at FROM {made.named(name, 'snapshots')}"
        " ORDER BY committed_at"
    )
    return [(row["snapshot_id"], row["committed_at"].astimezone(UTC)) for row in rows]


def test_expiring_snapshots_forgets_what_was_predicted(made: Tables) -> None:
    table = made.make("aged", properties=V2)
    made.append("aged", 0, 10, commits=5)
    first = snapshots_of(made, "aged")
    made.run(f"ALTER TABLE {table} CREATE TAG kept AS OF VERSION {first[1][0]}")
    made.run(f"ALTER TABLE {table} CREATE BRANCH side AS OF VERSION {first[2][0]}")
    made.append("aged", 500, 10, to="side")
    made.run(f"DELETE FROM {table} WHERE id % 10 = 3")
    rewrite(made, "aged", RewriteDataFiles(min_input_files=2))
    made.append("aged", 900, 10)
    made.run(f"INSERT OVERWRITE {table} SELECT 1, 'a', 1")
    for at, retain_last in ((3, 4), (6, 1), (8, 1)):
        known = snapshots_of(made, "aged")
        moment = known[min(at, len(known) - 1)][1] + timedelta(milliseconds=2)
        expire(made, "aged", moment, retain_last, [one for one, _ in known])
    # The tag and the branch still have theirs.
    assert facts(made, "aged").snapshots >= 3


def expire(made: Tables, name: str, cut: datetime, retain_last: int, known: list[int]) -> None:
    """Compare, in numbers and in what is gone from the disk."""
    now = datetime.now(UTC)
    options = ExpireSnapshots((now - cut).total_seconds(), retain_last)
    effect = predicted(made, name, options, now=now)
    assert predicted(made, name, options, now=now, keep=known).is_nothing
    there = made.on_disk(name)
    (done,) = made.run(
        procedures.expire_snapshots(made.lake.catalog, made.relation(name), cut, retain_last)
    )
    assert effect.snapshots == len(known) - facts(made, name).snapshots
    assert effect.removed.files == sum(done.values())
    left = made.on_disk(name)
    gone = [size for path, size in there.items() if path not in left]
    assert (effect.removed.files, effect.removed.bytes) == (len(gone), sum(gone))
    # All that is there but versions of the metadata.
    listed = [size for path, size in left.items() if not path.name.endswith(".metadata.json")]
    assert (effect.after.files, effect.after.bytes) == (len(listed), sum(listed))


def test_orphans_are_those_that_iceberg_finds(made: Tables) -> None:
    catalog = made.lake.catalog
    table = made.make("littered", partitioned="part", properties=V2)
    made.append("littered", 0, 10, commits=3)
    made.run(f"DELETE FROM {table} WHERE id % 10 = 3")
    made.run(f"CALL {catalog.name}.system.compute_table_stats(table => 'raw.littered')")
    folder = made.folder("littered")
    old = (datetime.now(UTC) - timedelta(days=9)).timestamp()
    for own in folder.rglob("*"):
        os.utime(own, (old, old))
    names = ["data/lost.parquet", "data/part=a/lost two.parquet", "data/tidegate-x/1.parquet"]
    names += ["metadata/lost-m0.avro", "data/_hidden/no.parquet", "data/.no.parquet"]
    young = folder / "data/young.parquet"
    for file in (*(folder / name for name in names), young):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("abc")
        if file != young:
            os.utime(file, (old, old))
    relation, before = made.relation("littered"), datetime.now(UTC) - timedelta(days=3)
    found = find_orphans(catalog, relation, before)
    assert found is not None
    told = {
        normal_path(row["orphan_file_location"])
        for row in made.run(procedures.find_orphan_files(catalog, relation, before))
    }
    assert {normal_path(one.path) for one in found.files} == told
    assert told == {normal_path(str(folder / name)) for name in names[:4]}
    assert all(Path(normal_path(one.path)).stat().st_size == one.bytes for one in found.files)

    effect = predicted(made, "littered", RemoveOrphanFiles(3 * DAY))
    assert (effect.removed.files, effect.removed.bytes) == (4, 4 * 3)
    there = made.on_disk("littered")
    assert effect.before.files == len([one for one in there if "_hidden" not in one.parts])
    # Nothing that was written after the bound that the caller gives.
    bound = datetime.fromtimestamp(old, UTC) - timedelta(seconds=1)
    options = RemoveOrphanFiles(3 * DAY)
    assert predicted(made, "littered", options, orphans_before=bound).is_nothing

    opened = open_table(catalog, relation)
    assert opened is not None
    known = {normal_path(path) for path in known_files(opened)}
    hidden = str(folder / "data/_hidden/no.parquet")
    assert {str(one) for one in there} - known == {*told, str(young), hidden}
