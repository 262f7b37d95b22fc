"""Remove a sync."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from psycopg import errors as pg

from tidegate.admin.inventory import LedgerEntry, Ownership, read_ownership
from tidegate.config.sync import Group, Sync
from tidegate.core.errors import BusyError, TidegateError, UsageError
from tidegate.core.identity import DatabaseIdentity, pipeline_name, sync_of
from tidegate.core.log import log
from tidegate.core.relation import Endpoint, Relation
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import file_io, read_table
from tidegate.iceberg.staged_files import delete_folder
from tidegate.iceberg.table import branch_name
from tidegate.ledger.fences import Fence
from tidegate.ledger.iceberg import Intents, StagedFolder, StagedFolders
from tidegate.ledger.ledger import Ledger, Staging
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.inspection import Observations
from tidegate.load.sources.cdc.slot_lifecycle import ReleasedSlot, release_slots
from tidegate.load.targets.postgres import table as drop
from tidegate.postgres.catalog import database_identity, describe_table
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import qualified, statement


@dataclass(frozen=True, slots=True)
class StagedFileCleanup:
    """What the ledger of one lake says was staged."""

    catalog: Catalog
    ledger: Ledger

    def discard(
        self, relation: Relation | None, live: Collection[str], branches: Collection[str] = ()
    ) -> None:
        """Remove what was staged for a table, or for any, except by attempts at work.

        Files that may be the table's own stay. What cannot be removed stays noted, and so does an
        attempt whose branch is there still: the next run into the table drops it.
        """
        folders = StagedFolders(self.ledger)
        table = None if relation is None else str(relation)
        with self.ledger.connect() as connection:
            found = folders.of_table(connection, table)
            dead = [one for one in found if one.attempt_id not in live]
            kept = {one.attempt_id for one in dead if not one.adopted and not self._delete(one)}
            kept |= {one.attempt_id for one in dead if branch_name(one.attempt_id) in branches}
            for attempt_id in {one.attempt_id for one in dead} - kept:
                folders.forget(connection, attempt_id, ended=True)

    def _delete(self, one: StagedFolder) -> bool:
        try:
            delete_folder(file_io(self.catalog, one.location), one.location, one.folder)
        except Exception as error:
            # Each storage has errors of its own.
            log.warning("staged_files_left", folder=one.folder, error=type(error).__name__)
            return False
        return True


@dataclass(frozen=True, slots=True)
class SyncRecords:
    """What one ledger holds of one sync; `shared_with` are other pipelines of the same table."""

    name: str
    pipeline: str
    target: Endpoint
    watermarks: int
    moves: int
    markers: int
    fences: int
    target_exists: bool
    shared_with: tuple[str, ...]
    in_lake: bool = False
    branches: tuple[str, ...] = ()
    """what dead attempts left in a lake's table; only Spark can drop them"""


@dataclass(frozen=True, slots=True)
class RecordSearch:
    """What was found, and where nobody could look."""

    found: list[SyncRecords]
    unreachable: dict[str, str]


def find_holdings(
    context: Context, name: str, syncs: Mapping[str, Sync], groups: Mapping[str, Group]
) -> RecordSearch:
    """What is recorded of a sync, declared or not, in every database that may hold it."""
    with context.plane.connect() as control:
        ownership = read_ownership(context, control)
    if name in groups:
        return tables_of_group(context, groups[name], ownership)
    declared = syncs.get(name)
    head, dot, _ = name.partition(".")
    if declared is not None:
        connections = [declared.target.connection]
    elif dot and head in groups:
        connections = [groups[head].target.connection]
    else:
        connections = list(context.settings.connections)
    found: list[SyncRecords] = []
    unreachable: dict[str, str] = {}
    seen: set[tuple[DatabaseIdentity, str]] = set()
    for connection_name in connections:
        try:
            with context.databases.connect(connection_name) as connection:
                # The control database may hold the ledgers of several lakes.
                place = database_identity(connection), context.ledger(connection_name).schema
                if place not in seen:
                    found += _find_in(context, connection, connection_name, name, ownership)
                seen.add(place)
        except TidegateError as error:
            if declared is not None:
                raise
            unreachable[connection_name] = error.message
    return RecordSearch(found, unreachable)


def tables_of_group(context: Context, group: Group, ownership: Ownership) -> RecordSearch:
    """What is recorded of every table of a declared group, whether or not it still exists."""
    found: list[SyncRecords] = []
    connection_name = group.target.connection
    prefix = pipeline_name(group.project, group.name) + "."
    with context.databases.connect(connection_name) as connection:
        ledger = context.ledger(connection_name)
        pipelines = dict.fromkeys(
            one.pipeline
            for one in Watermarks(ledger).of_project(connection, group.project)
            if one.pipeline.startswith(prefix)
        )
        for pipeline in pipelines:
            name = sync_of(group.project, pipeline)
            found += _find_in(context, connection, connection_name, name, ownership)
    return RecordSearch(found, {})


def check_drop(holdings: SyncRecords) -> None:
    """Refuse to drop a table that somebody else loads as well, or that this sync never did."""
    if holdings.in_lake:
        raise UsageError(
            f"{holdings.target} is a table of a lake, which Tidegate never drops",
            "leave out --drop-target, and drop it with Spark: DROP TABLE … PURGE",
        )
    if holdings.shared_with:
        raise UsageError(
            f"{holdings.target} is also loaded by {', '.join(holdings.shared_with)}",
            "leave out --drop-target, or remove those first",
        )
    if holdings.target_exists and not holdings.markers:
        raise UsageError(
            f"no load of {holdings.name} is in {holdings.target}, so the table may be another's",
            "leave out --drop-target, and drop the table yourself if it is yours",
        )


def remove_holdings(
    context: Context,
    holdings: SyncRecords,
    fence: Fence,
    live: Callable[[], set[str]],
    *,
    drop_target: bool,
) -> list[ReleasedSlot]:
    """Delete it all in one transaction, under a fence that keeps every other attempt out.

    The slot that it reads, if it does, is left afterwards: killed in between, the sync can be
    removed again.
    """
    if drop_target:
        check_drop(holdings)
    with context.plane.connect() as control:
        # Before the rest: without them the next run is only more careful.
        Observations(context.plane, control, holdings.pipeline).forget()
    ledger = context.ledger(holdings.target.connection)
    relation, table = holdings.target.relation, str(holdings.target.relation)
    destination = context.destination(holdings.target)
    try:
        with destination.fenced_transaction(fence, f"removing {holdings.name}") as connection:
            Markers(ledger).forget_pipeline(connection, holdings.pipeline, relation)
            Watermarks(ledger).forget(connection, holdings.pipeline, table)
            if holdings.in_lake:
                Intents(ledger).forget(connection, table, holdings.pipeline)
            else:
                Staging(ledger).sweep(connection, fence.control_id, live)
            if drop_target:
                drop.drop_target(connection, relation)
            if not holdings.shared_with:
                destination.fences.forget(connection, table)
    except (pg.LockNotAvailable, pg.QueryCanceled) as error:
        raise BusyError(
            f"{holdings.target} is in use by another session ({first_line(error)})",
            "see pg_stat_activity for who; nothing was removed, try again",
        ) from None
    if holdings.in_lake:
        left = StagedFileCleanup(context.catalog(holdings.target.connection), ledger)
        left.discard(holdings.target.relation, live() - {fence.attempt_id}, holdings.branches)
    return leave_slot(context, holdings.pipeline)


def leave_slot(context: Context, pipeline: str) -> list[ReleasedSlot]:
    """Drop the publication of a sync and, with its last reader, the slot; those it read."""
    with context.plane.connect() as control:
        if context.plane.version(control) == 0:
            return []
        context.plane.migrate(control)
        return release_slots(context, control, pipeline)


def _find_in(
    context: Context,
    connection: Connection,
    connection_name: str,
    name: str,
    ownership: Ownership,
) -> list[SyncRecords]:
    pipeline = pipeline_name(ownership.project, name)
    ledger = context.ledger(connection_name)
    schema = ledger.schema_identifier
    try:
        rows = connection.execute(
            statement("admin/pipelines", "find_tables", schema=schema), {"pipeline": pipeline}
        ).fetchall()
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        return []
    markers = ledger.find_markers(connection)
    database = database_identity(connection)
    lake = context.catalog(connection_name) if context.is_lake(connection_name) else None
    catalog = None if lake is None else lake.identity
    found: list[SyncRecords] = []
    for (table,) in rows:
        relation = Relation.parse(table)
        others = ownership.recorded_owners(pipeline, LedgerEntry(database, relation, catalog))
        if others and ownership.project not in others:
            continue
        parameters = {"pipeline": pipeline, "table": table}
        counts = connection.execute(
            statement("admin/pipelines", "count_holdings", schema=schema), parameters
        ).fetchone()
        assert counts is not None
        marked = (0,)
        if markers is not None:
            count = statement(
                "admin/pipelines", "count_markers", schema=schema, markers=qualified(markers)
            )
            marked = connection.execute(count, parameters).fetchone() or marked
        if lake is not None:
            exists, branches = _look_at_lake(lake, relation)
        else:
            exists, branches = describe_table(connection, relation) is not None, ()
        found.append(
            SyncRecords(
                name=name,
                pipeline=pipeline,
                target=Endpoint(connection_name, relation),
                watermarks=counts[0],
                moves=counts[1],
                fences=counts[2],
                markers=marked[0],
                target_exists=exists,
                shared_with=tuple(counts[3]),
                in_lake=lake is not None,
                branches=branches,
            )
        )
    return found


def _look_at_lake(lake: Catalog, relation: Relation) -> tuple[bool, tuple[str, ...]]:
    """Whether the table is there, and our branches in it; a lake that is gone is no obstacle."""
    try:
        table = read_table(lake, relation)
    except TidegateError:
        return True, ()
    return table is not None, () if table is None else table.branches
