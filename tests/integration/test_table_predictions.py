"""What is predicted of each action, against what Iceberg's procedures then really do."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Database
from integration.lake_harness import Lake, make_lake
from integration.maintained_tables import MERGE_ON_READ, Tables, tables
from tidegate.errors import DestinationError
from tidegate.lake import procedures
from tidegate.lake.known_files import known_files, normal_path
from tidegate.lake.metadata import open_table
from tidegate.lake.orphans import find_orphans
from tidegate.lake.predicting import predict
from tidegate.lake.table_facts import read_facts
from tidegate.model.maintenance import (
    DAY,
    OPTIONS,
    Action,
    ActionOptions,
    Effect,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeleteFiles,
)
from tidegate.model.relation import Relation
from tidegate.model.table_facts import TableFacts
from tidegate.spark.session import SparkSessions


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


def foretold(made: Tables, name: str, options: ActionOptions, **given: Any) -> Effect:
    action = next(one for one, kind in OPTIONS.items() if isinstance(options, kind))
    now = given.pop("now", datetime.now(UTC))
    return predict(made.lake.catalog, made.relation(name), action, options, now=now, **given)


def facts(made: Tables, name: str) -> TableFacts:
    found = read_facts(made.lake.catalog, made.relation(name))
    assert found is not None
    return found


def test_a_data_file_of_the_right_size_is_rewritten_for_its_deletes_or_not_as_asked(
    lake: Lake,
) -> None:
    with tables(lake) as made:
        made.make("scratched", properties=f"'format-version'='2',{MERGE_ON_READ}")
        made.append("scratched", 0, 20)
        made.run(f"DELETE FROM {made.named('scratched')} WHERE id = 3")
        size = facts(made, "scratched").data.bytes
        for threshold, rewritten in ((0, 0), (2, 0), (1, 1), (1, 0)):
            options = RewriteDataFiles(size, delete_file_threshold=threshold)
            effect = foretold(made, "scratched", options)
            (done,) = made.run(
                procedures.rewrite_data_files(
                    lake.catalog, made.relation("scratched"), options, dangling=True
                )
            )
            assert done["rewritten_data_files_count"] == rewritten, threshold
            assert effect.rewritten == rewritten, threshold
        assert facts(made, "scratched").records == 19
        assert facts(made, "scratched").position_deletes.files == 0


def test_rewriting_data_files_leaves_as_many_as_predicted(lake: Lake) -> None:
    with tables(lake) as made:
        made.make(
            "packed",
            partitioned="part",
            properties=f"'format-version'='2',{MERGE_ON_READ}",
        )
        for number in range(6):
            made.append("packed", number, 10, "many")
        for number in range(3):
            made.append("packed", number, 10, "few")
        made.append("packed", 0, 10, "worn")
        made.append("packed", 100, 10, "alone")
        made.run(f"DELETE FROM {made.named('packed')} WHERE part = 'worn' AND id < 4")
        for options, expected in (
            # Six become one; "worn" is rewritten for what it has lost, three are too few.
            (RewriteDataFiles(), 6),
            (RewriteDataFiles(min_input_files=2), 4),
            (RewriteDataFiles(min_input_files=2), 4),
        ):
            effect = foretold(made, "packed", options)
            before = facts(made, "packed").data
            assert effect.before == before
            statement = procedures.rewrite_data_files(
                lake.catalog, made.relation("packed"), options
            )
            (done,) = made.run(statement)
            after = facts(made, "packed").data
            assert effect.after.files == after.files == expected
            assert done["rewritten_data_files_count"] - done["added_data_files_count"] == (
                effect.removed.files
            )


def test_a_target_size_splits_and_joins_as_predicted(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("sized", properties="'write.parquet.row-group-size-bytes'='4096'")
        for number in range(4):
            made.run(
                f"INSERT INTO {made.named('sized')} SELECT /*+ COALESCE(1) */ id, uuid(), id "
                f"FROM range({number}, {number + 4000})"
            )
        size = facts(made, "sized").data.bytes // 4
        for target in (size * 3, size * 40):
            options = RewriteDataFiles(target_file_bytes=target, min_input_files=2)
            effect = foretold(made, "sized", options)
            made.run(procedures.rewrite_data_files(lake.catalog, made.relation("sized"), options))
            assert effect.after.files == facts(made, "sized").data.files


def test_rewriting_files_of_a_former_partitioning_is_predicted(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("changed", partitioned="part")
        for part in "abc":
            made.append("changed", 0, 10, part)
        made.run(f"ALTER TABLE {made.named('changed')} DROP PARTITION FIELD part")
        options = RewriteDataFiles(min_input_files=3)
        effect = foretold(made, "changed", options)
        assert (effect.before.files, effect.after.files) == (3, 1)
        made.run(procedures.rewrite_data_files(lake.catalog, made.relation("changed"), options))
        assert facts(made, "changed").data.files == 1


def test_rewriting_position_deletes_leaves_as_many_as_predicted(lake: Lake) -> None:
    with tables(lake) as made:
        for name, granularity in (("by_file", "file"), ("by_partition", "partition")):
            made.make(
                name,
                partitioned="part",
                properties=f"'format-version'='2',{MERGE_ON_READ},"
                "'write.delete.granularity'='partition'",
            )
            for part in ("a", "b"):
                for number in range(2):
                    made.append(name, number * 100, 100, part)
            for digit in range(4):
                where = f"id % 10 = {digit}" + (" AND part = 'a'" if digit > 1 else "")
                made.run(f"DELETE FROM {made.named(name)} WHERE {where}")
            made.run(
                f"ALTER TABLE {made.named(name)} SET TBLPROPERTIES "
                f"('write.delete.granularity'='{granularity}')"
            )
            options = RewritePositionDeleteFiles(min_input_files=3)
            effect = foretold(made, name, options)
            assert effect.before == facts(made, name).position_deletes
            (done,) = made.run(
                procedures.rewrite_position_delete_files(lake.catalog, made.relation(name), options)
            )
            assert done["rewritten_delete_files_count"] > 0
            after = facts(made, name).position_deletes
            if granularity == "partition":
                assert effect.after.files == after.files
            # Files that are for several data files do not tell for how many.
            assert effect.after.files <= after.files


def test_deletion_vectors_are_left_alone(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("vectors", properties=f"'format-version'='3',{MERGE_ON_READ}")
        for number in range(6):
            made.append("vectors", number * 100, 100)
        made.run(f"DELETE FROM {made.named('vectors')} WHERE id % 10 = 3")
        options = RewritePositionDeleteFiles(min_input_files=2)
        effect = foretold(made, "vectors", options)
        assert effect.is_nothing
        assert effect.before.files == 6
        made.run(
            procedures.rewrite_position_delete_files(
                lake.catalog, made.relation("vectors"), options
            )
        )
        assert facts(made, "vectors").position_deletes.files == 6


def test_rewriting_manifests_leaves_as_many_as_predicted(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("listed", properties=f"'format-version'='2',{MERGE_ON_READ}")
        for number in range(5):
            made.append("listed", number * 10, 10)
        made.run(f"DELETE FROM {made.named('listed')} WHERE id % 10 = 3")
        made.run(f"DELETE FROM {made.named('listed')} WHERE id < 10")
        for _ in range(2):
            effect = foretold(made, "listed", RewriteManifests())
            assert effect.before == facts(made, "listed").manifests
            made.run(procedures.rewrite_manifests(lake.catalog, made.relation("listed")))
            assert effect.after.files == facts(made, "listed").manifests.files
        assert effect.is_nothing


def test_expiring_snapshots_forgets_what_was_predicted(lake: Lake) -> None:
    with tables(lake) as made:
        table = made.make("aged", properties=f"'format-version'='2',{MERGE_ON_READ}")
        for number in range(5):
            made.append("aged", number * 10, 10)
        first = _snapshots(made, "aged")
        made.run(f"ALTER TABLE {table} CREATE TAG kept AS OF VERSION {first[1][0]}")
        made.run(f"ALTER TABLE {table} CREATE BRANCH side AS OF VERSION {first[2][0]}")
        made.append("aged", 500, 10, to="side")
        made.run(f"DELETE FROM {table} WHERE id % 10 = 3")
        made.run(procedures.rewrite_data_files(
            lake.catalog, made.relation("aged"), RewriteDataFiles(min_input_files=2)
        ))  # fmt: skip
        made.append("aged", 900, 10)
        made.run(f"INSERT OVERWRITE {table} SELECT 1, 'a', 1")
        for at, retain_last in ((3, 4), (6, 1), (8, 1)):
            moment = _snapshots(made, "aged")[min(at, len(_snapshots(made, "aged")) - 1)][1]
            _expire(made, "aged", moment + timedelta(milliseconds=2), retain_last)
        # The tag and the branch still have theirs.
        assert facts(made, "aged").snapshots >= 3


def _expire(made: Tables, name: str, cut: datetime, retain_last: int) -> None:
    """Compare, in numbers and in what is gone from the disk."""
    now = datetime.now(UTC)
    options = ExpireSnapshots((now - cut).total_seconds(), retain_last)
    effect = foretold(made, name, options, now=now)
    kept = foretold(made, name, options, now=now, keep=[one for one, _ in _snapshots(made, name)])
    assert kept.is_nothing
    there, snapshots = made.on_disk(name), facts(made, name).snapshots
    (done,) = made.run(
        procedures.expire_snapshots(made.lake.catalog, made.relation(name), cut, retain_last)
    )
    assert effect.snapshots == snapshots - facts(made, name).snapshots
    assert effect.removed.files == sum(done.values())
    left = made.on_disk(name)
    gone = [size for path, size in there.items() if path not in left]
    assert (effect.removed.files, effect.removed.bytes) == (len(gone), sum(gone))
    # All that is there but versions of the metadata.
    listed = [size for path, size in left.items() if not path.name.endswith(".metadata.json")]
    assert (effect.after.files, effect.after.bytes) == (len(listed), sum(listed))


def _snapshots(made: Tables, name: str) -> list[tuple[int, datetime]]:
    rows = made.run(
        f"SELECT snapshot_id, committed_at FROM {made.named(name, 'snapshots')}"
        " ORDER BY committed_at"
    )
    return [(row["snapshot_id"], row["committed_at"].astimezone(UTC)) for row in rows]


def test_orphans_are_those_that_iceberg_finds(lake: Lake) -> None:
    with tables(lake) as made:
        table = made.make(
            "littered", partitioned="part", properties=f"'format-version'='2',{MERGE_ON_READ}"
        )
        for number in range(3):
            made.append("littered", number * 10, 10)
        made.run(f"DELETE FROM {table} WHERE id % 10 = 3")
        made.run(f"CALL {lake.catalog.name}.system.compute_table_stats(table => 'raw.littered')")
        folder = made.folder("littered")
        old = (datetime.now(UTC) - timedelta(days=9)).timestamp()
        for known in folder.rglob("*"):
            os.utime(known, (old, old))
        names = ["data/lost.parquet", "data/part=a/lost two.parquet", "data/tidegate-x/1.parquet"]
        names += ["metadata/lost-m0.avro", "data/_hidden/no.parquet", "data/.no.parquet"]
        for name in names:
            _write(folder / name, old)
        _write(folder / "data/young.parquet", None)
        relation, before = made.relation("littered"), datetime.now(UTC) - timedelta(days=3)
        found = find_orphans(lake.catalog, relation, before)
        assert found is not None
        told = {
            normal_path(row["orphan_file_location"])
            for row in made.run(procedures.find_orphan_files(lake.catalog, relation, before))
        }
        assert {normal_path(one.path) for one in found.files} == told
        assert told == {normal_path(str(folder / name)) for name in names[:4]}
        assert all(Path(normal_path(one.path)).stat().st_size == one.bytes for one in found.files)

        effect = foretold(made, "littered", RemoveOrphanFiles(3 * DAY))
        assert (effect.removed.files, effect.removed.bytes) == (4, 4 * 3)
        assert effect.before.files == len(
            [one for one in made.on_disk("littered") if "_hidden" not in one.parts]
        )
        # Nothing that was written after the bound that the caller gives.
        bound = datetime.fromtimestamp(old, UTC) - timedelta(seconds=1)
        assert foretold(
            made, "littered", RemoveOrphanFiles(3 * DAY), orphans_before=bound
        ).is_nothing

        opened = open_table(lake.catalog, relation)
        assert opened is not None
        known = {normal_path(path) for path in known_files(opened)}
        there = {str(one) for one in made.on_disk("littered")}
        assert there - known == told | {str(folder / "data/young.parquet")} | {
            str(folder / "data/_hidden/no.parquet")
        }


def _write(path: Path, modified: float | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("abc")
    if modified is not None:
        os.utime(path, (modified, modified))


def test_a_table_that_was_never_written_is_left_as_it_is(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("empty")
        for action, kind in OPTIONS.items():
            effect = foretold(made, "empty", kind())
            assert effect.is_nothing, action


def test_files_that_others_may_share_are_not_predicted_to_go(lake: Lake) -> None:
    with tables(lake) as made:
        made.make("shared", properties="'gc.enabled'='false'")
        made.append("shared", 0, 1)
        for options in (ExpireSnapshots(), RemoveOrphanFiles()):
            with pytest.raises(DestinationError, match=r"gc\.enabled"):
                foretold(made, "shared", options)
    with pytest.raises(DestinationError, match="no table"):
        predict(
            lake.catalog,
            Relation("raw", "nowhere"),
            Action.REWRITE_MANIFESTS,
            RewriteManifests(),
            now=datetime.now(UTC),
        )
