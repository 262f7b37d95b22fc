"""Removing superseded versions from the table behind a view, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psycopg import errors as pg

from tidegate.config.sync import Mode, Sync
from tidegate.core.errors import BusyError, DestinationError
from tidegate.core.failpoints import reach
from tidegate.core.relation import Relation, Table
from tidegate.core.shape import Shape
from tidegate.ledger.fences import Fence
from tidegate.load.context import Context
from tidegate.load.modes import append as statements
from tidegate.load.sources.resolve import resolve_source
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, first_line

CHUNK_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What went, or would go; `note` says why there was nothing to do."""

    sync: str
    target: str
    rows: int = 0
    bytes: int = 0
    dry_run: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SupersededVersions:
    """The table of versions of one sync, and what orders them."""

    sync: Sync
    raw: Relation
    shape: Shape


def find_versions(context: Context, sync: Sync) -> SupersededVersions | str:
    """The table to be vacuumed, or why there is none."""
    if context.is_lake(sync.target.connection):
        return "a lake's tables are looked after by maintenance: old snapshots, small files"
    if sync.mode is not Mode.APPEND or not sync.key:
        kind = "append without a key" if sync.mode is Mode.APPEND else f'mode = "{sync.mode}"'
        return f"{kind} keeps no superseded versions"
    raw = statements.raw_table(sync.target.relation)
    with context.databases.connect(sync.target.connection) as target:
        table = describe_table(target, raw)
        if table is None:
            return f"{raw} does not exist yet"
        _check_index(table, sync.key)
    with context.databases.connect_source(sync.source.connection) as source:
        resolved = resolve_source(source, sync)
    unique = sync.transform is None and resolved.table.proves_unique(sync.key)
    # A transformation may have left the cursor out; then only the order of loading counts.
    cursor = sync.cursor if sync.cursor and table.column(sync.cursor) else None
    return SupersededVersions(sync, raw, Shape((), sync.key, cursor, unique))


def count_superseded(context: Context, versions: SupersededVersions) -> VacuumReport:
    """What would go now; nothing is locked for it."""
    rows = size = 0
    with context.databases.connect(versions.sync.target.connection) as connection:
        after = 0
        while (until := _chunk_end(connection, versions, after)) is not None:
            found = _work(connection, versions, after, until, delete=False)
            rows, size, after = rows + found[0], size + found[1], until
    return VacuumReport(versions.sync.name, str(versions.sync.target), rows, size, dry_run=True)


def remove_superseded(
    context: Context, versions: SupersededVersions, fence: Fence, check_alive: Callable[[], None]
) -> VacuumReport:
    """Remove them chunk by chunk, each in a short transaction of its own under the fence.

    The newest version of a key stays in every one of them, so it may be killed anywhere.
    """
    target = versions.sync.target
    destination = context.destination(target)
    rows = size = after = 0
    while True:
        check_alive()
        with destination.open() as connection:
            until = _chunk_end(connection, versions, after)
        if until is None:
            return VacuumReport(versions.sync.name, str(target), rows, size)
        try:
            with destination.fenced_transaction(fence, f"vacuuming {target}") as connection:
                found = _work(connection, versions, after, until, delete=True)
        except (pg.LockNotAvailable, pg.QueryCanceled) as error:
            raise BusyError(
                f"{versions.raw} is in use by another session ({first_line(error)})",
                f"see pg_stat_activity for who; {rows:,} versions are gone already, try again",
            ) from None
        rows, size, after = rows + found[0], size + found[1], until
        reach("vacuum.chunk")


def _chunk_end(connection: Connection, versions: SupersededVersions, after: int) -> int | None:
    row = connection.execute(
        statements.chunk_end_statement(versions.raw, after, CHUNK_ROWS)
    ).fetchone()
    return None if row is None else row[0]


def _work(
    connection: Connection, versions: SupersededVersions, after: int, until: int, *, delete: bool
) -> tuple[int, int]:
    row = connection.execute(
        statements.superseded_statement(versions.raw, versions.shape, after, until, delete=delete)
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _check_index(table: Table, key: tuple[str, ...]) -> None:
    if key[0] not in table.leading_index_columns:
        raise DestinationError(
            f"{table.relation} has no index that leads with {key[0]}, so every version would be "
            "compared with every other",
            f"CREATE INDEX ON {table.relation} ({', '.join(key)})",
        )
