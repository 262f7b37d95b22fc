"""A lake's table and the watermark that belongs to it, seen at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidegate.destinations.lake_healing import find_unrecorded
from tidegate.errors import BusyError
from tidegate.lake.metadata import lake_table, read_metadata
from tidegate.lake.reading import LakeRowsAt
from tidegate.ledger.intents import Intents
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import BatchKind
from tidegate.model.lake import LakeTable, Seen, Snapshot
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection

_TRIES = 10
# What maintenance commits: other files, the same rows.
_SAME_ROWS = "replace"


@dataclass(frozen=True, slots=True)
class LakeView:
    """What main holds, and up to where; `table` is None when there is none."""

    watermark: Watermark
    table: LakeTable | None
    rows: LakeRowsAt | None
    unrecorded: str | None = None
    """a load that is in main and not in the ledger yet"""
    put_in: int = 0
    """how many rows the loads say that they put in"""

    @property
    def snapshot_id(self) -> int | None:
        return None if self.table is None else self.table.main

    def strangers(self) -> Iterator[Snapshot]:
        """Commits of others since the last load that changed rows, newest first."""
        for snapshot in () if self.table is None else self.table.ancestors():
            if snapshot.update_id is not None:
                return
            if not _is_same(snapshot):
                yield snapshot


def look(context: Context, sync: Sync, connection: Connection) -> LakeView:
    """The table at one snapshot of main and the watermark of just what is in it.

    Main moves first and the ledger follows. While main stays, the ledger says at most what is in
    it, and what it does not say yet is among its intents.
    """
    catalog = context.catalog(sync.target.connection)
    relation = sync.target.relation
    for _ in range(_TRIES):
        metadata = read_metadata(catalog, relation)
        watermark, moves, put_in = _read_ledger(context, sync, connection)
        again = read_metadata(catalog, relation)
        if metadata is None or again is None:
            if metadata is again:
                return LakeView(watermark, None, None)
            continue
        if again.current_snapshot_id != metadata.current_snapshot_id:
            continue
        table = lake_table(relation, again)
        rows = LakeRowsAt(catalog, relation, again, table.main)
        for update_id, base, move in moves:
            if table.see(update_id, base) is Seen.PUBLISHED and _continues(move, watermark):
                moved = _moved(watermark, update_id, move)
                return LakeView(moved, table, rows, update_id, put_in + int(move["rows"]))
        return _catch_up(context, sync, connection, LakeView(watermark, table, rows, None, put_in))
    raise BusyError(f"{sync.target} is being written all the while", "try again when it is quiet")


def _is_same(snapshot: Snapshot) -> bool:
    """Whether it has the rows of its parent: maintenance, or the root of a table's first branch."""
    is_maintenance = snapshot.summary.get("operation") == _SAME_ROWS
    return is_maintenance or snapshot.summary.get("changed-partition-count") == "0"


def _read_ledger(
    context: Context, sync: Sync, connection: Connection
) -> tuple[Watermark, list[tuple[str, int | None, Mapping[str, Any]]], int]:
    """Watermark and intents; intents first, so that one that is settled meanwhile is seen twice."""
    ledger = context.ledger(sync.target.connection)
    name = str(sync.target.relation)
    intents = Intents(ledger).of_table(connection, name)
    watermarks = Watermarks(ledger)
    watermark = watermarks.get(connection, sync.pipeline, name)
    moves = [(one.update_id, one.base, one.move) for one in intents if one.move is not None]
    return watermark, moves, watermarks.rows_put_in(connection, name) if watermark.version else 0


def _catch_up(context: Context, sync: Sync, connection: Connection, view: LakeView) -> LakeView:
    """The same with what a ledger that is older than the table does not know of."""
    assert view.table is not None
    if context.catalog(sync.target.connection).is_embedded:
        return view
    markers = Markers(context.ledger(sync.target.connection))
    for load in find_unrecorded(
        view.table,
        view.watermark,
        lambda update_id: markers.exists(connection, update_id, sync.target.relation),
        str(sync.target),
        sync.name,
    ):
        put_in = load.rows + (0 if load.kind == BatchKind.FULL else view.put_in)
        watermark = view.watermark.after_mark(load)
        view = replace(view, watermark=watermark, unrecorded=load.update_id, put_in=put_in)
    return view


def _continues(move: Mapping[str, Any], watermark: Watermark) -> bool:
    start = (watermark.pipeline, watermark.generation, watermark.version)
    return (move["pipeline"], move["generation"], move["version"]) == start


def _moved(watermark: Watermark, update_id: str, move: Mapping[str, Any]) -> Watermark:
    """The watermark as whoever heals the intent will leave it."""
    return replace(
        watermark,
        value=move["value"],
        position=None if move["position"] is None else tuple(move["position"]),
        version=watermark.version + 1,
        rows_synced=watermark.rows_synced + move["rows"],
        update_id=update_id,
        declaration=move["declaration"] or watermark.declaration,
    )
