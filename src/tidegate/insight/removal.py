"""Removing a sync: everything the ledger holds of it, in one destination transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psycopg import errors as pg

from tidegate.control.observations import Observations
from tidegate.destinations import drop
from tidegate.errors import BusyError, TidegateError, UsageError
from tidegate.insight.left_in_lake import LeftInLake
from tidegate.insight.ownership import read_ownership
from tidegate.lake.catalog import Catalog
from tidegate.lake.metadata import read_table
from tidegate.ledger.fences import Fence
from tidegate.ledger.intents import Intents
from tidegate.ledger.markers import Markers
from tidegate.ledger.staging import Staging
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.group import Group
from tidegate.model.identity import DatabaseIdentity, pipeline_name, sync_of
from tidegate.model.ownership import Ownership, StateTable
from tidegate.model.relation import Endpoint, Relation
from tidegate.model.sync import Sync
from tidegate.pipeline.cdc_source import Left, leave_slots
from tidegate.pipeline.context import Context
from tidegate.postgres.catalog import database_identity, describe_table
from tidegate.postgres.connect import Connection, first_line
from tidegate.postgres.identifiers import qualified, statement


@dataclass(frozen=True, slots=True)
class Holdings:
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
class Search:
    """What was found, and where nobody could look."""

    found: list[Holdings]
    unreachable: dict[str, str]


def find_holdings(
    context: Context, name: str, syncs: Mapping[str, Sync], groups: Mapping[str, Group]
) -> Search:
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
    found: list[Holdings] = []
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
    return Search(found, unreachable)


def tables_of_group(context: Context, group: Group, ownership: Ownership) -> Search:
    """What is recorded of every table of a declared group, whether or not it still exists."""
    found: list[Holdings] = []
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
    return Search(found, {})


def check_drop(holdings: Holdings) -> None:
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
    holdings: Holdings,
    fence: Fence,
    live: Callable[[], set[str]],
    *,
    drop_target: bool,
) -> list[Left]:
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
        left = LeftInLake(context.catalog(holdings.target.connection), ledger)
        left.discard(holdings.target.relation, live() - {fence.attempt_id}, holdings.branches)
    return leave_slot(context, holdings.pipeline)


def leave_slot(context: Context, pipeline: str) -> list[Left]:
    """Drop the publication of a sync and, with its last reader, the slot; those it read."""
    with context.plane.connect() as control:
        if context.plane.version(control) == 0:
            return []
        context.plane.migrate(control)
        return leave_slots(context, control, pipeline)


def _find_in(
    context: Context,
    connection: Connection,
    connection_name: str,
    name: str,
    ownership: Ownership,
) -> list[Holdings]:
    pipeline = pipeline_name(ownership.project, name)
    ledger = context.ledger(connection_name)
    schema = ledger.schema_identifier
    try:
        rows = connection.execute(
            statement("ledger/pipelines", "find_tables", schema=schema), {"pipeline": pipeline}
        ).fetchall()
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        return []
    markers = ledger.find_markers(connection)
    database = database_identity(connection)
    lake = context.catalog(connection_name) if context.is_lake(connection_name) else None
    catalog = None if lake is None else lake.identity
    found: list[Holdings] = []
    for (table,) in rows:
        relation = Relation.parse(table)
        others = ownership.recorded_owners(pipeline, StateTable(database, relation, catalog))
        if others and ownership.project not in others:
            continue
        parameters = {"pipeline": pipeline, "table": table}
        counts = connection.execute(
            statement("ledger/pipelines", "count_holdings", schema=schema), parameters
        ).fetchone()
        assert counts is not None
        marked = (0,)
        if markers is not None:
            count = statement(
                "ledger/pipelines", "count_markers", schema=schema, markers=qualified(markers)
            )
            marked = connection.execute(count, parameters).fetchone() or marked
        if lake is not None:
            exists, branches = _look_at_lake(lake, relation)
        else:
            exists, branches = describe_table(connection, relation) is not None, ()
        found.append(
            Holdings(
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
