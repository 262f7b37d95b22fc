"""Tables of a lake that want maintenance, made without Spark, and what was done to them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from psycopg import sql

from integration.conftest import MakePlace, Place
from integration.filled_lakes import lake_place, make_table, open_table, orders
from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import (
    Action,
    ActionList,
    ActionOptions,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeleteFiles,
)
from tidegate.maintenance.runner import Maintained, maintain_here
from tidegate.project import Project

TARGET = Endpoint.parse("lake:raw.orders")
ALL: dict[Action, ActionOptions] = {
    Action.EXPIRE_SNAPSHOTS: ExpireSnapshots(older_than_seconds=0),
    Action.REMOVE_ORPHAN_FILES: RemoveOrphanFiles(),
    Action.REWRITE_DATA_FILES: RewriteDataFiles(min_input_files=2),
    Action.REWRITE_POSITION_DELETE_FILES: RewritePositionDeleteFiles(min_input_files=2),
    Action.REWRITE_MANIFESTS: RewriteManifests(),
}


def order_of(*actions: Action, **changed: ActionOptions) -> ActionList:
    """An order for these actions, with what makes small tables worth the work."""
    return ActionList.of({one: changed.get(one.value, ALL[one]) for one in actions or Action})


def small_files_place(
    make_place: MakePlace, files: int, *syncs: dict[str, Any], **options: Any
) -> Place:
    """A project whose table has so many files of a row each, each from a commit of its own."""
    place = lake_place(make_place, *syncs, **options)
    table = make_table(place)
    for number in range(files):
        table.append(orders([number]))
    return place


def add_file(place: Place, *numbers: int) -> None:
    """A commit of somebody else's."""
    open_table(place).append(orders(numbers))


def grow(place: Place, files: int) -> None:
    """So many commits of a new row each, in a file of its own."""
    table, first = open_table(place), max(ids(place), default=-1) + 1
    for number in range(first, first + files):
        table.append(orders([number]))


def ids(place: Place) -> list[int]:
    """The rows of the table, told by another implementation than the one that maintains it."""
    return sorted(open_table(place).scan().to_arrow()["id"].to_pylist())


def data_files(place: Place) -> int:
    return len(open_table(place).inspect.data_files())


def snapshots(place: Place) -> list[int]:
    return [one.snapshot_id for one in open_table(place).metadata.snapshots]


def maintain(project: Project, order: ActionList) -> Maintained:
    return maintain_here(project.context, TARGET, order, actor="test")


def location(place: Place) -> Path:
    """The folder of the table."""
    return Path(urlsplit(open_table(place).location()).path)


def leave_file(place: Place, name: str, *, days: float = 10.0) -> Path:
    """A file below the table that no snapshot knows, last written so long ago."""
    file = location(place) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"left over")
    age(file, days=days)
    return file


def age(*files: Path, days: float = 10.0) -> None:
    """Make files look older than they are."""
    then = time.time() - days * 86_400
    for file in files:
        os.utime(file, (then, then))


def orphans_of(place: Place, done: Maintained) -> dict[str, tuple[str | None, bool]]:
    """By the name of the file: why it was kept, and whether it is deleted."""
    rows = place.control.execute(
        sql.SQL(
            "SELECT path, kept, deleted_at IS NOT NULL FROM tidegate_control.orphan_files"
            " WHERE job_id = {}"
        ).format(str(done.job_id))
    )
    return {Path(path).name: (kept, deleted) for path, kept, deleted in rows}
