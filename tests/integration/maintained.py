"""Tables of a lake that want maintenance, made without Spark, and what was done to them."""

from __future__ import annotations

from typing import Any

from integration.conftest import MakePlace, Place
from integration.filled_lakes import lake_place, make_table, open_table, orders
from tidegate.model.maintenance import (
    Action,
    ActionOptions,
    ExpireSnapshots,
    Order,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeleteFiles,
)
from tidegate.model.relation import Endpoint
from tidegate.project import Project
from tidegate.runtime.maintaining_here import Maintained, maintain_here

TARGET = Endpoint.parse("lake:raw.orders")
ALL: dict[Action, ActionOptions] = {
    Action.EXPIRE_SNAPSHOTS: ExpireSnapshots(older_than_seconds=0),
    Action.REMOVE_ORPHAN_FILES: RemoveOrphanFiles(),
    Action.REWRITE_DATA_FILES: RewriteDataFiles(min_input_files=2),
    Action.REWRITE_POSITION_DELETE_FILES: RewritePositionDeleteFiles(min_input_files=2),
    Action.REWRITE_MANIFESTS: RewriteManifests(),
}


def order_of(*actions: Action, **changed: ActionOptions) -> Order:
    """An order for these actions, with what makes small tables worth the work."""
    return Order.of({one: changed.get(one.value, ALL[one]) for one in actions or Action})


def small_files_place(make_place: MakePlace, files: int, *syncs: dict[str, Any]) -> Place:
    """A project whose table has so many files of a row each, each from a commit of its own."""
    place = lake_place(make_place, *syncs)
    make_table(place)
    for number in range(files):
        add_file(place, number)
    return place


def add_file(place: Place, *numbers: int) -> None:
    """A commit of somebody else's."""
    open_table(place).append(orders(numbers))


def ids(place: Place) -> list[int]:
    """The rows of the table, told by another implementation than the one that maintains it."""
    return sorted(open_table(place).scan().to_arrow()["id"].to_pylist())


def data_files(place: Place) -> int:
    return len(open_table(place).inspect.data_files())


def snapshots(place: Place) -> list[int]:
    return [one.snapshot_id for one in open_table(place).metadata.snapshots]


def maintain(project: Project, order: Order) -> Maintained:
    return maintain_here(project.context, TARGET, order, actor="test")
