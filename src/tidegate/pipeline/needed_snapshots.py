"""Snapshots of a lake's table that must not be forgotten yet, and for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.destinations.lake import LakeDestination
from tidegate.lake.metadata import read_metadata
from tidegate.ledger.intents import Intents
from tidegate.model.rules import Mode
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declarations import read_declarations


@dataclass(frozen=True, slots=True)
class Needed:
    """What is needed, by the snapshot; `older_than` is where forgetting may start."""

    by: Mapping[int, str]
    older_than: datetime
    lowered: bool = False
    """whether it was to be later, had nobody needed anything"""

    @property
    def notes(self) -> tuple[str, ...]:
        """Who holds up the forgetting, for whoever wonders."""
        if not self.lowered:
            return ()
        names = ", ".join(sorted(set(self.by.values())))
        return (
            f"snapshots from {self.older_than:%Y-%m-%d %H:%M:%S} on were kept for {names}, "
            "which still needs them",
        )


def find_needed(context: Context, destination: LakeDestination, older_than: datetime) -> Needed:
    """The snapshots that syncs and unsettled loads still need, and all that came after them."""
    wanted = dict(_needs(context, destination))
    metadata = read_metadata(destination.catalog, destination.relation)
    table = destination.read()
    if metadata is None or table is None:
        return Needed({}, older_than)
    at = {one.snapshot_id: one.timestamp_ms for one in metadata.snapshots}
    needed = {one: who for one, who in wanted.items() if one in at}
    # Clocks differ: what came after a snapshot may say that it is older.
    kept = {
        later
        for one in needed
        for later in (one, *(after.snapshot_id for after in table.since(one) or ()))
        if later in at
    }
    oldest = min((at[one] for one in kept), default=None)
    limit = older_than if oldest is None else datetime.fromtimestamp(oldest / 1000, UTC)
    return Needed(needed, min(limit, older_than), lowered=limit < older_than)


def _needs(context: Context, destination: LakeDestination) -> Iterator[tuple[int, str]]:
    with destination.open() as connection:
        for intent in Intents(destination.ledger).of_table(connection, str(destination.relation)):
            if intent.abandoned:
                continue
            for snapshot in (intent.base, intent.snapshot):
                if snapshot is not None:
                    yield snapshot, f"load {intent.update_id}"
    for sync in _readers(context, destination):
        value = context.destination(sync.target).watermark(sync.pipeline).value
        if value is not None and value.isdigit():
            yield int(value), f"sync {sync.name}"


def _readers(context: Context, destination: LakeDestination) -> Iterator[Sync]:
    """The project's syncs that go on in this table from where they stand."""
    resource = destination.identify()
    for one in read_declarations(context.settings).values():
        if (
            isinstance(one, Sync)
            and one.lake_source
            and one.mode is not Mode.REPLACE
            and one.source.relation == destination.relation
            and context.destination(one.source).identify() == resource
        ):
            yield one
