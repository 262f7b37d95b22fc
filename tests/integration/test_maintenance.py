"""Maintenance of a lake's table: what it does, and that no reader notices."""

from __future__ import annotations

from integration.conftest import MakePlace
from integration.filled_lakes import open_table
from integration.lakes import change
from integration.maintained import (
    TARGET,
    data_files,
    ids,
    leave_file,
    maintain,
    order_of,
    orphans_of,
    small_files_place,
    snapshots,
)
from tidegate.model.maintenance import Action
from tidegate.spark.session import SparkSessions

MERGE_ON_READ = (
    "ALTER TABLE lake.raw.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read',"
    " 'write.delete.granularity' = 'partition')"
)


def test_a_table_of_many_small_files_is_put_in_order_and_each_action_is_recorded(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = small_files_place(make_place, 6)
    project = place.open(warm_spark)
    change(
        project,
        MERGE_ON_READ,
        "INSERT INTO lake.raw.orders SELECT id, id, now() FROM range(100, 110)",
        *(f"DELETE FROM lake.raw.orders WHERE id = {one}" for one in (101, 103, 105)),
    )
    assert len(open_table(place).inspect.delete_files()) == 3
    old = leave_file(place, "data/old.parquet")
    stale = leave_file(place, "metadata/stale.avro")
    young = leave_file(place, "data/young.parquet", days=2.0)
    before = ids(place)

    done = maintain(project, order_of())
    assert (done.status, done.error) == ("done", None)
    assert [one.action for one in done.actions] == [one.value for one in Action]
    assert {one.detail["status"] for one in done.actions} == {"done"}
    for one in done.actions: print(one.action, one.detail)
    assert ids(place) == before
    assert data_files(place) == 1
    print(open_table(place).inspect.delete_files().to_pylist()); print(open_table(place).inspect.entries().to_pylist())
    assert len(open_table(place).inspect.delete_files()) == 0
    assert (old.exists(), stale.exists(), young.exists()) == (False, False, True)
    print(orphans_of(place, done))
