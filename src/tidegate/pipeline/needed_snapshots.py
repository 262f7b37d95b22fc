"""Snapshots of a lake's table that must not be forgotten yet, and for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tidegate.control.job_records import JobRecords
from tidegate.destinations.lake import LakeDestination
from tidegate.errors import DestinationError
from tidegate.lake.metadata import lake_table, read_metadata
from tidegate.lake.predicting_expiry import expired_snapshots
from tidegate.ledger.intents import Intents
from tidegate.model.job import SYNC
from tidegate.model.maintenance import ExpireSnapshots
from tidegate.model.rules import Mode
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class Needed:
    """What may be forgotten, where it is less than was asked for, and who needs the rest."""

    options: ExpireSnapshots
    older_than: datetime
    notes: tuple[str, ...] = ()


def bound_expiry(
    context: Context, destination: LakeDestination, options: ExpireSnapshots, now: datetime
) -> Needed:
    """Forget none of what syncs and unsettled loads still need, nor what came after it.

    DestinationError where a branch of the table wants that forgotten whatever is said here.
    """
    wanted = now - timedelta(seconds=options.older_than_seconds)
    metadata = read_metadata(destination.catalog, destination.relation)
    if metadata is None:
        return Needed(options, wanted)
    at = {one.snapshot_id: one.timestamp_ms for one in metadata.snapshots}
    by = {one: who for one, who in _needs(context, destination) if one in at}
    kept = _with_later(destination, metadata, by)
    if not kept:
        return Needed(options, wanted)
    # Clocks differ: what came after a snapshot may say that it is older.
    oldest = datetime.fromtimestamp(min(at[one] for one in kept) / 1000, UTC)
    limit = min(wanted, oldest)
    bounded = replace(options, older_than_seconds=(now - limit).total_seconds())
    names = ", ".join(sorted(set(by.values())))
    if kept & expired_snapshots(metadata, bounded, now, ()):
        raise DestinationError(
            f"snapshots of {destination.relation} would be forgotten that {names} still needs: a "
            "branch of the table says itself how long they are kept",
            "run that first, or take the rule from the branch: ALTER TABLE … REPLACE BRANCH main",
        )
    if not kept & expired_snapshots(metadata, options, now, ()):
        return Needed(bounded, limit)
    since = f"{limit:%Y-%m-%d %H:%M:%S}"
    return Needed(bounded, limit, (f"snapshots from {since} on are kept: {names} needs them",))


def _with_later(
    destination: LakeDestination, metadata: TableMetadata, needed: Mapping[int, str]
) -> frozenset[int]:
    table = lake_table(destination.relation, metadata)
    later = {after.snapshot_id for one in needed for after in table.since(one) or ()}
    return frozenset({*needed, *later})


def _needs(context: Context, destination: LakeDestination) -> Iterator[tuple[int, str]]:
    with destination.open() as connection:
        for intent in Intents(destination.ledger).of_table(connection, str(destination.relation)):
            for snapshot in (intent.base, intent.snapshot):
                if snapshot is not None and not intent.abandoned:
                    yield snapshot, f"load {intent.update_id}"
    for sync in _readers(context, destination):
        stands = context.destination(sync.target).watermark(sync.pipeline).value
        # Where it stands, and what a load of it that is under way goes up to.
        for value in (stands, *_planned(context, sync)):
            if value is not None and value.isdigit():
                yield int(value), f"sync {sync.name}"


def _planned(context: Context, sync: Sync) -> Iterator[str | None]:
    with context.plane.connect() as control:
        records = JobRecords(context.plane)
        for plan in records.unfinished_plans(control, sync.project, SYNC, sync.name):
            yield plan.get("batch", {}).get("high")


def _readers(context: Context, destination: LakeDestination) -> Iterator[Sync]:
    """The project's syncs that go on in this table from where they stand."""
    resource = destination.identify()
    for one in context.declared().values():
        if (
            isinstance(one, Sync)
            and one.lake_source
            and one.mode is not Mode.REPLACE
            and one.source.relation == destination.relation
            and context.destination(one.source).identify() == resource
        ):
            yield one
