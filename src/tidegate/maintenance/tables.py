"""List, find and show tables, with their history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tidegate.config.setting_errors import nearest
from tidegate.core.errors import AmbiguousTable, DestinationError, UnknownTable, UsageError
from tidegate.core.relation import Endpoint, Relation, split_parts
from tidegate.core.table_actions import Action
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import JobStatus
from tidegate.load.context import Context
from tidegate.maintenance.facts import TableFacts, read_target_facts
from tidegate.maintenance.orphan_files import OrphanEstimate
from tidegate.maintenance.recommendation import LastRun
from tidegate.maintenance.table_cache import CachedCatalog, CachedTable, TableCache
from tidegate.postgres.connection import Connection

MOST_TABLES = 1_000
_LATE = 3
"""so many refreshes may be missed before what is cached counts as stale"""


@dataclass(frozen=True, slots=True)
class TableView:
    """One table: what it is made of, and as of when."""

    target: Endpoint
    facts: TableFacts | None
    """None where it was seen but could not be read yet"""
    as_of: datetime | None
    live: bool
    stale_since: datetime | None = None
    """the moment up to which this is known to be right, where that is long ago"""
    stale_reason: str | None = None
    orphans: OrphanEstimate | None = None
    """what dead attempts have probably left, as of the last refresh"""

    @property
    def is_stale(self) -> bool:
        return self.stale_reason is not None


@dataclass(frozen=True, slots=True)
class CatalogView:
    """One lake: when its tables were last looked at, and why not since."""

    catalog: str
    refreshed_at: datetime | None
    tried_at: datetime | None
    error: str | None
    stale_since: datetime | None
    stale_reason: str | None


@dataclass(frozen=True, slots=True)
class TableListing:
    """Some tables in order, and how it stands with each lake; `next` is where the next page starts
    after, None on the last one."""

    tables: tuple[TableView, ...]
    catalogs: tuple[CatalogView, ...]
    next: Endpoint | None = None


def lakes(context: Context) -> list[str]:
    """The connections that are lakes."""
    return [one for one in context.settings.connections if context.is_lake(one)]


def cache(context: Context) -> TableCache:
    """The table cache of the project."""
    return TableCache(context.plane, context.settings.project.name)


def find_table(context: Context, control: Connection, db: str, table: str) -> TableView:
    """The cached table of this namespace, which `lake:` may precede; one statement.

    UnknownTable when there is none, AmbiguousTable when several lakes have it.
    """
    known = lakes(context)
    catalog, separator, namespace = db.partition(":")
    if separator and catalog in known:
        known = [catalog]
    else:
        namespace = db
    found = cache(context).find(control, known, Relation(namespace, table))
    return _only(context, control, f"{db}.{table}", found)


def find_by_name(context: Context, control: Connection, text: str) -> TableView:
    """The cached table that a person means: lake:raw.orders, raw.orders or orders."""
    known = lakes(context)
    if not known:
        raise UnknownTable(
            f"project {context.settings.project.name} has no lake",
            'add a connection such as lake = { type = "iceberg" } to [connections]',
        )
    catalog, separator, rest = text.partition(":")
    if separator and catalog.strip() not in known:
        near = nearest(catalog.strip(), known)
        raise UnknownTable(
            f"there is no lake {catalog.strip()!r} in this project",
            f"did you mean {near}:{rest}?" if near else f"the lakes are {', '.join(known)}",
        )
    if separator:
        known = [catalog.strip()]
    else:
        rest = text
    relation = Relation.parse(rest.strip())
    if len(split_parts(rest.strip())) == 1:
        tables = cache(context).names(control, known)
        named = [one for one in tables if one.relation.name == relation.name]
        found = [one for one in (cache(context).get(control, each) for each in named) if one]
    else:
        found = cache(context).find(control, known, relation)
    return _only(context, control, text, found)


def list_tables(
    context: Context,
    control: Connection,
    *,
    after: Endpoint | None = None,
    limit: int = MOST_TABLES,
) -> TableListing:
    """A page of the cached tables; a lake that was never looked at has none."""
    if not 1 <= limit <= MOST_TABLES:
        raise UsageError(f"a list of {limit} tables", f"give a number from 1 to {MOST_TABLES:,}")
    known = lakes(context)
    found = cache(context).page(control, known, after=after, limit=limit + 1)
    tried = {one.catalog: one for one in cache(context).catalogs(control, known)}
    return TableListing(
        tables=tuple(cached_view(context, one) for one in found[:limit]),
        catalogs=tuple(_catalog(context, one, tried.get(one)) for one in known),
        next=found[limit - 1].target if len(found) > limit else None,
    )


def list_all(context: Context, control: Connection) -> TableListing:
    """All cached tables, page by page."""
    page = list_tables(context, control)
    found = list(page.tables)
    while page.next is not None:
        page = list_tables(context, control, after=page.next)
        found += page.tables
    return TableListing(tuple(found), page.catalogs)


def table_status(
    context: Context, control: Connection, table: TableView, *, live: bool
) -> TableView:
    """What the table is made of: as cached, or read from its metadata now, which is cached too.

    Raises what the catalog's failure was when it cannot be read; the cached one is at hand.
    """
    if not live:
        return table
    tables, target = cache(context), table.target
    read_at = tables.clock(control)
    facts = read_target_facts(context, target)
    if facts is None:
        tables.remove(control, target)
        raise UnknownTable(
            f"there is no table {target} any more", "see those that are: tidegate table list"
        )
    tables.put(control, target, facts, read_at)
    return TableView(target, facts, read_at, live=True, orphans=table.orphans)


def cached_view(context: Context, table: CachedTable) -> TableView:
    """A table as the cache has it, and whether that may be wrong by now."""
    since, reason = _staleness(context, table.catalog)
    as_of = table.read_at
    if table.error is not None:
        since, reason = table.read_at, table.error
    elif table.facts is None:
        since, reason = None, reason or "it was not read yet"
    elif as_of is not None and table.catalog.refreshed_at is not None:
        # Its metadata was the same when the catalog was last looked at.
        as_of = max(as_of, table.catalog.refreshed_at)
        since = None if since is None else max(since, as_of)
    return TableView(table.target, table.facts, as_of, False, since, reason, table.orphans)


def require_facts(table: TableView) -> TableFacts:
    """What the table is made of; DestinationError when nobody could read it so far."""
    if table.facts is None:
        raise DestinationError(
            f"{table.target} could not be read yet: {table.stale_reason}",
            "see that its metadata can be reached from here, then: tidegate table list --refresh",
        )
    return table.facts


def _only(
    context: Context, control: Connection, text: str, found: Sequence[CachedTable]
) -> TableView:
    if len(found) > 1:
        several = tuple(str(one.target) for one in found)
        raise AmbiguousTable(
            f"{text} could be each of {', '.join(several)}", "name one of them in full", several
        )
    if found:
        return cached_view(context, found[0])
    near = _nearest(text, cache(context).names(control, lakes(context)))
    raise UnknownTable(
        f"there is no table {text} in the lakes of project {context.settings.project.name}",
        f"did you mean {near}?" if near else "see those that are: tidegate table list --refresh",
    )


def _nearest(text: str, tables: Sequence[Endpoint]) -> str | None:
    """The table that was probably meant, however much of its name was given."""
    written = {one.relation.name: str(one) for one in tables}
    written |= {str(one.relation): str(one) for one in tables}
    written |= {str(one): str(one) for one in tables}
    near = nearest(text, written)
    return None if near is None else written[near]


def _catalog(context: Context, name: str, cached: CachedCatalog | None) -> CatalogView:
    if cached is None:
        return CatalogView(name, None, None, None, None, "it was never looked at")
    since, reason = _staleness(context, cached)
    return CatalogView(name, cached.refreshed_at, cached.tried_at, cached.error, since, reason)


def _staleness(context: Context, cached: CachedCatalog) -> tuple[datetime | None, str | None]:
    """Since when, and why, what is cached of a lake may be wrong."""
    if cached.error is not None:
        return cached.refreshed_at, cached.error
    if cached.refreshed_at is None:
        return None, "its catalog was never looked at"
    patience = timedelta(seconds=_LATE * context.settings.maintenance.refresh_seconds)
    if cached.asked_at - cached.refreshed_at > patience:
        return cached.refreshed_at, "nobody has refreshed the table cache since"
    return None, None


_ACTIONS = frozenset(Action)


@dataclass(frozen=True, slots=True)
class PastMaintenance:
    """One job, and the actions it came to."""

    job_id: UUID
    status: JobStatus
    submitted_by: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    payload: dict[str, Any]
    result: dict[str, Any] | None
    actions: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MaintenanceJobs:
    """Reads the maintenance of one project."""

    plane: ControlDatabase
    project: str

    def last_runs(self, connection: Connection, target: Endpoint) -> dict[Action, LastRun]:
        """Of each action its newest run at a table, however it ended."""
        rows = connection.execute(
            self.plane.statement("maintenance/maintenance", "last_actions"), self._key(target)
        )
        return {Action(row[0]): LastRun(*row[1:]) for row in rows if row[0] in _ACTIONS}

    def history(
        self,
        connection: Connection,
        target: Endpoint,
        *,
        before: UUID | None = None,
        limit: int = 20,
        dry_runs: bool = True,
    ) -> list[PastMaintenance]:
        """The newest first, from before a job on."""
        rows = connection.execute(
            self.plane.statement("maintenance/maintenance", "list_history"),
            self._key(target) | {"before": before, "limit": limit, "dry_runs": dry_runs},
        )
        return [PastMaintenance(row[0], JobStatus(row[1]), *row[2:]) for row in rows]

    def try_turn(self, connection: Connection, target: Endpoint) -> bool:
        """Be the only one to decide about a table, until the transaction ends."""
        key = f"tidegate:policy:{self.plane.schema}:{self.project}:{target}"
        row = connection.execute(
            self.plane.statement("maintenance/maintenance", "try_turn"), {"key": key}
        ).fetchone()
        return bool(row and row[0])

    def _key(self, target: Endpoint) -> dict[str, Any]:
        return {"project": self.project, "name": str(target)}


MOST_JOBS = 1_000


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some jobs; the next page starts before `next`, which is None on the last one."""

    target: Endpoint
    jobs: tuple[PastMaintenance, ...]
    next: UUID | None


def table_history(
    context: Context,
    control: Connection,
    target: Endpoint,
    *,
    before: UUID | None = None,
    limit: int = 20,
) -> HistoryPage:
    """A page of the maintenance of a table, dry runs included."""
    if not 1 <= limit <= MOST_JOBS:
        raise UsageError(f"a list of {limit} jobs", f"give a number from 1 to {MOST_JOBS:,}")
    jobs = MaintenanceJobs(context.plane, context.settings.project.name)
    found = jobs.history(control, target, before=before, limit=limit + 1)
    shown = tuple(found[:limit])
    return HistoryPage(target, shown, shown[-1].job_id if len(found) > limit else None)
