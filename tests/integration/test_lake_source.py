"""A table of a lake as the source of a sync: what main holds is what the target holds."""

from __future__ import annotations

import pytest

from integration.conftest import MakePlace
from integration.lake_sources import KEYED, Lake, open_lake
from tidegate.errors import DeclarationError, SnapshotGone
from tidegate.spark.session import SparkSessions


def assert_caught_up(lake: Lake) -> None:
    """The target is as the source, and there is nothing left for Spark to do."""
    assert lake.target() == lake.source()
    report = lake.run_without_spark()
    assert report.found_nothing
    assert report.watermark == str(lake.table.main)


def test_what_is_appended_arrives_in_bounded_batches(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark, {**KEYED, "batch_rows": 3}) as lake:
        lake.create()
        assert lake.run_without_spark().found_nothing
        lake.insert(1, 2, 3, 4)
        assert [load.rows for load in lake.run().loads] == [4]
        assert_caught_up(lake)
        for ids in ((5, 6), (7,), (8, 9, 10, 11), (12,)):
            lake.insert(*ids)
        report = lake.run()
        assert [load.rows for load in report.loads] == [3, 4, 1]
        assert report.watermark == str(lake.table.main)
        assert_caught_up(lake)
        assert lake.target("count(DISTINCT id)") == [(12,)]


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_updates_and_deletes_arrive_as_one_row_for_each_key(
    make_place: MakePlace, warm_spark: SparkSessions, mode: str
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create(mode=mode)
        lake.insert(1, 2, 3, 4, 5, 6)
        lake.run()
        lake.sql(
            "UPDATE T SET status = 'paid' WHERE id = 1",
            "UPDATE T SET status = 'sent' WHERE id = 1",
            "DELETE FROM T WHERE id IN (2, 3)",
            "INSERT INTO T VALUES (3, 'back', NULL), (7, 'new', 7), (8, 'new', 8)",
            "DELETE FROM T WHERE id = 8",
        )
        lake.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        report = lake.run()
        # 1 and 3 and 7 as they are now, 2 gone; 8 came and went.
        assert [(load.rows, load.changed) for load in report.loads] == [(4, 4)]
        assert_caught_up(lake)
        lake.sql("DELETE FROM T")
        lake.run()
        assert lake.target() == []
        assert_caught_up(lake)
        lake.insert(9)
        lake.run()
        assert_caught_up(lake)


def test_a_compaction_moves_the_watermark_and_no_row(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        lake.insert(3)
        before = lake.run().watermark
        lake.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        report = lake.run_without_spark()
        assert report.found_nothing
        assert report.watermark == str(lake.table.main) != before
        lake.call("expire_snapshots", "older_than => now(), retain_last => 1")
        assert before not in map(str, lake.table.snapshots)
        lake.insert(4)
        assert [load.rows for load in lake.run().loads] == [1]
        assert_caught_up(lake)


def test_an_expired_snapshot_is_refused_with_the_way_back(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        loaded = lake.run().watermark
        lake.sql("DELETE FROM T WHERE id = 1")
        lake.insert(3)
        lake.call("expire_snapshots", "older_than => now(), retain_last => 1")
        with pytest.raises(SnapshotGone) as caught:
            lake.run_without_spark()
        assert f"sync orders: lake:raw.orders no longer knows the snapshot {loaded}" in str(
            caught.value
        )
        assert "tidegate run orders --full-refresh" in str(caught.value)
        assert lake.target("id") == [(1,), (2,)]
        assert [load.batch.kind for load in lake.run(full_refresh=True).loads] == ["full"]
        assert_caught_up(lake)


def test_a_rollback_is_refused_with_the_way_back(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1)
        first = lake.table.main
        lake.insert(2)
        loaded = lake.run().watermark
        lake.call("rollback_to_snapshot", f"snapshot_id => {first}")
        for added in (3, 4):
            with pytest.raises(SnapshotGone, match=f"rolled back: the snapshot {loaded}"):
                lake.run_without_spark()
            lake.insert(added)
        lake.run(full_refresh=True)
        assert_caught_up(lake)


def test_a_table_made_anew_under_its_name_is_refused_with_the_way_out(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        lake.run()
        lake.sql("DROP TABLE T")
        lake.create()
        lake.insert(2, 3, status="other")
        with pytest.raises(DeclarationError, match="made anew under its name") as caught:
            lake.run_without_spark()
        assert "--full-refresh" in str(caught.value)
        lake.run(full_refresh=True)
        assert_caught_up(lake)


def test_replace_loads_the_whole_whenever_main_has_moved(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    declared = {"source": KEYED["source"], "target": KEYED["target"], "mode": "replace"}
    with open_lake(make_place, warm_spark, declared) as lake:
        lake.create()
        lake.insert(1, 2, 2)
        lake.run()
        assert_caught_up(lake)
        lake.sql("DELETE FROM T WHERE id = 1")
        assert [load.rows for load in lake.run().loads] == [2]
        assert_caught_up(lake)
        lake.place.target.execute("DELETE FROM raw.orders")
        lake.run()
        assert_caught_up(lake)


def test_append_adds_what_is_new_and_refuses_what_is_gone(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    declared = {"source": KEYED["source"], "target": KEYED["target"], "mode": "append"}
    with open_lake(make_place, warm_spark, declared) as lake:
        lake.create()
        lake.insert(1, 1)
        lake.run()
        lake.insert(1, 2)
        lake.run()
        assert_caught_up(lake)
        lake.sql("UPDATE T SET status = 'paid' WHERE id = 2")
        with pytest.raises(DeclarationError, match=f"snapshot {lake.table.main}"):
            lake.run_without_spark()
        lake.run(full_refresh=True)
        assert_caught_up(lake)
