"""Maintenance of a lake's table: what it does, and that no reader notices."""

from __future__ import annotations

from integration.conftest import MakePlace
from integration.maintained import (
    data_files,
    ids,
    maintain,
    order_of,
    small_files_place,
    snapshots,
)
from tidegate.model.maintenance import Action
from tidegate.spark.session import SparkSessions


def test_a_table_of_many_small_files_is_put_in_order_and_each_action_is_recorded(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = small_files_place(make_place, 6)
    project = place.open(warm_spark)
    before = ids(place)
    done = maintain(project, order_of(Action.EXPIRE_SNAPSHOTS, Action.REWRITE_DATA_FILES))
    assert (done.status, done.error) == ("done", None)
    assert [one.action for one in done.actions] == ["expire_snapshots", "rewrite_data_files"]
    assert ids(place) == before
    assert data_files(place) == 1
    assert len(snapshots(place)) == 2
