"""Maintenance of a lake's table: what it does, and that no reader notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from integration.conftest import MakePlace, Place
from integration.filled_lakes import open_table
from integration.lakes import change
from integration.maintained import (
    TARGET,
    add_file,
    data_files,
    ids,
    leave_file,
    maintain,
    order_of,
    small_files_place,
    snapshots,
)
from tidegate.errors import MaintenanceFailed, UsageError
from tidegate.kinds import check_maintenance
from tidegate.model.maintenance import Action, ExpireSnapshots
from tidegate.model.relation import Endpoint
from tidegate.runtime.maintaining_here import Maintained, maintain_here
from tidegate.spark.session import SparkSessions

MERGE_ON_READ = (
    "ALTER TABLE lake.raw.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read',"
    " 'write.delete.granularity' = 'partition')"
)
READER = {"name": "copy", "source": "lake:raw.orders", "target": "warehouse:raw.copy", "key": "id"}


def insert(first: int, last: int) -> str:
    return (
        "INSERT INTO lake.raw.orders SELECT /*+ REPARTITION(1) */ id, id, now()"
        f" FROM range({first}, {last})"
    )


def delete(*numbers: int) -> list[str]:
    return [f"DELETE FROM lake.raw.orders WHERE id = {one}" for one in numbers]


def details(done: Maintained) -> dict[str, dict[str, Any]]:
    return {one.action: one.detail for one in done.actions}


def files(detail: dict[str, Any]) -> tuple[int, int]:
    return detail["files_before"], detail["files_after"]


def retain(place: Place, **rules: int) -> None:
    """Main itself says how long its snapshots are kept."""
    table = open_table(place)
    main = table.metadata.refs["main"].snapshot_id
    update = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=main, **rules)
    table.catalog.commit_table(table, (), (update,))


def test_a_table_of_many_small_files_is_put_in_order_and_each_action_is_recorded(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = small_files_place(make_place, 6)
    project = place.open(warm_spark)
    change(project, MERGE_ON_READ, insert(100, 110), *delete(101, 103, 105))
    assert len(open_table(place).inspect.delete_files()) == 3
    old = leave_file(place, "data/old.parquet")
    stale = leave_file(place, "metadata/stale.avro")
    young = leave_file(place, "data/young.parquet", days=2.0)
    before, known = ids(place), len(snapshots(place))

    done = maintain(project, order_of())
    assert (done.status, done.error) == ("done", None)
    assert [one.action for one in done.actions] == [one.value for one in Action]
    assert ids(place) == before
    assert data_files(place) == 1
    assert len(open_table(place).inspect.delete_files()) == 0
    assert (old.exists(), stale.exists(), young.exists()) == (False, False, True)
    found = details(done)
    # What the data files had to forget was dropped with them.
    assert [one["status"] for one in found.values()] == ["done", "done", "done", "skipped", "done"]
    assert found["expire_snapshots"]["actual"]["snapshots"] == known - 1
    assert files(found["rewrite_data_files"]) == (7, 1)
    assert found["rewrite_manifests"]["files_after"] == 2
    assert all(one["error"] is None and one["seconds"] > 0 for one in found.values())
    for name in ("expire_snapshots", "remove_orphan_files", "rewrite_manifests"):
        foretold, actual = found[name]["predicted"], found[name]["actual"]
        assert foretold["before"] == actual["before"], name
        assert foretold["after"]["files"] == actual["after"]["files"], name
        assert foretold["snapshots"] == actual["snapshots"], name
    removed = found["remove_orphan_files"]
    assert files(removed)[0] - files(removed)[1] == 2
    assert removed["bytes_before"] - removed["bytes_after"] == 2 * len(b"left over")

    change(project, insert(200, 400), *delete(201, 203, 205))
    again = details(maintain(project, order_of(Action.REWRITE_POSITION_DELETE_FILES)))
    assert files(again["rewrite_position_delete_files"]) == (3, 1)
    assert ids(place) == sorted({*before, *range(200, 400)} - {201, 203, 205})


def test_snapshots_that_a_sync_still_needs_are_kept_until_it_has_gone_on(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = small_files_place(make_place, 3, READER)
    project = place.open(warm_spark)
    assert project.run("copy").rows == 3
    stands = snapshots(place)[-1]
    add_file(place, 10)
    add_file(place, 11)
    after = snapshots(place)[-3:]

    expiring = order_of(Action.EXPIRE_SNAPSHOTS)
    (kept,) = details(maintain(project, expiring)).values()
    assert snapshots(place) == after
    assert after[0] == stands
    assert kept["actual"]["snapshots"] == kept["predicted"]["snapshots"] == 2
    assert "on are kept: sync copy needs them" in kept["notes"][0]

    retain(place, max_snapshot_age_ms=1)
    (refused,) = details(maintain(project, expiring)).values()
    assert refused["status"] == "failed"
    assert "would be forgotten that sync copy still needs" in refused["error"]
    assert snapshots(place) == after

    assert project.run("copy").rows == 2
    copied = place.target.execute("SELECT id FROM raw.copy ORDER BY id")
    assert copied == [(0,), (1,), (2,), (10,), (11,)]
    (free,) = details(maintain(project, expiring)).values()
    assert (free["status"], free["notes"]) == ("done", [])
    assert snapshots(place) == after[-1:]


def test_what_fails_is_told_and_what_comes_after_it_is_done_all_the_same(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = small_files_place(make_place, 4)
    (path, *_) = open_table(place).inspect.data_files()["file_path"].to_pylist()
    lost = Path(urlsplit(path).path)
    content = lost.read_bytes()
    lost.unlink()
    project = place.open(warm_spark)
    order = order_of(Action.EXPIRE_SNAPSHOTS, Action.REWRITE_DATA_FILES, Action.REWRITE_MANIFESTS)
    done = maintain(project, order)
    assert done.status == "failed"
    assert isinstance(done.error, MaintenanceFailed)
    assert done.error.message.startswith("1 of 3 actions failed: rewrite_data_files: ")
    assert lost.name in done.error.message
    assert done.error.message.endswith("; done: expire_snapshots, rewrite_manifests")
    states = [(one.action, one.detail["status"]) for one in done.actions]
    assert states == [
        ("expire_snapshots", "done"),
        ("rewrite_data_files", "failed"),
        ("rewrite_manifests", "done"),
    ]
    failed = done.actions[1].detail
    assert (failed["actual"], failed["predicted"]["after"]["files"]) == (None, 1)
    ((status, error),) = place.control.execute("SELECT status, error FROM tidegate_control.jobs")
    assert (status, error) == ("failed", str(done.error))
    lost.write_bytes(content)
    assert maintain(project, order_of(Action.REWRITE_DATA_FILES)).status == "done"
    assert (ids(place), data_files(place)) == ([0, 1, 2, 3], 1)


def test_nothing_is_done_to_a_table_that_is_not_there_and_no_spark_is_started(
    make_place: MakePlace,
) -> None:
    place = small_files_place(make_place, 1)
    project = place.open()
    target = Endpoint.parse("lake:raw.nothing")
    done = maintain_here(project.context, target, order_of(), actor="test")
    assert done.status == "failed"
    assert "lake:raw.nothing does not exist" in str(done.error)
    assert not project.context.spark.started


@pytest.mark.parametrize(
    "order",
    [None, {}, [], {"drop_table": {}}, {"expire_snapshots": {"older": 1}}, {"expire_snapshots": 1}],
)
def test_an_order_that_nobody_could_have_given_is_refused(order: object) -> None:
    with pytest.raises(UsageError, match=r"the job lake:raw\.orders is malformed"):
        check_maintenance(str(TARGET), {"target": str(TARGET), "order": order})


def test_an_order_is_taken_as_it_was_given() -> None:
    order = order_of(expire_snapshots=ExpireSnapshots(60.0, 2))
    check_maintenance(str(TARGET), {"target": str(TARGET), "order": order.document()})
