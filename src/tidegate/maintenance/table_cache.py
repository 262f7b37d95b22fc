"""The table cache and its refresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tidegate.core.errors import TidegateError
from tidegate.core.log import log
from tidegate.core.relation import Endpoint, Relation
from tidegate.iceberg.metadata import list_locations
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.loop import Loop, reason
from tidegate.ledger.fences import FencedTable
from tidegate.load.context import Context
from tidegate.maintenance.facts import TableFacts, read_target_facts
from tidegate.maintenance.orphan_files import OrphanEstimate, estimate_orphans
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class CachedCatalog:
    """When the tables of a lake were last looked at; `asked_at` is now, by the same clock."""

    catalog: str
    refreshed_at: datetime | None
    tried_at: datetime | None
    error: str | None
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class CachedTable:
    """One table as the cache has it; without facts it was seen but not read yet."""

    target: Endpoint
    metadata_location: str | None
    facts: TableFacts | None
    read_at: datetime | None
    seen_at: datetime
    error: str | None
    orphans: OrphanEstimate | None
    catalog: CachedCatalog


@dataclass(frozen=True, slots=True)
class TableCache:
    """Reads and writes the cache of one project."""

    plane: ControlDatabase
    project: str

    def clock(self, connection: Connection) -> datetime:
        """Now, by the clock that dates everything here."""
        row = connection.execute(
            self.plane.statement("maintenance/lake_tables", "clock"), {}
        ).fetchone()
        assert row is not None
        found: datetime = row[0]
        return found

    def find(
        self, connection: Connection, catalogs: Sequence[str], relation: Relation
    ) -> list[CachedTable]:
        """The tables of this name, one a catalog at most."""
        rows = connection.execute(
            self.plane.statement("maintenance/lake_tables", "find_tables"),
            {
                "project": self.project,
                "catalogs": list(catalogs),
                "namespace": relation.schema,
                "name": relation.name,
            },
        )
        return [_table(row) for row in rows]

    def get(self, connection: Connection, target: Endpoint) -> CachedTable | None:
        """One table; None when it was never seen."""
        found = self.find(connection, [target.connection], target.relation)
        return found[0] if found else None

    def page(
        self,
        connection: Connection,
        catalogs: Sequence[str],
        *,
        after: Endpoint | None = None,
        limit: int | None = None,
    ) -> list[CachedTable]:
        """The tables in order of catalog, namespace and name, beyond one of them."""
        rows = connection.execute(
            self.plane.statement("maintenance/lake_tables", "list_tables"),
            {
                "project": self.project,
                "catalogs": list(catalogs),
                "after_catalog": None if after is None else after.connection,
                "after_namespace": None if after is None else after.relation.schema,
                "after_name": None if after is None else after.relation.name,
                "limit": limit,
            },
        )
        return [_table(row) for row in rows]

    def names(self, connection: Connection, catalogs: Sequence[str]) -> list[Endpoint]:
        """What the tables are called."""
        rows = connection.execute(
            self.plane.statement("maintenance/lake_tables", "list_names"),
            {"project": self.project, "catalogs": list(catalogs)},
        )
        return [Endpoint(row[0], Relation(*row[1:])) for row in rows]

    def see(
        self, connection: Connection, catalog: str, relations: Sequence[Relation]
    ) -> dict[Relation, str | None]:
        """Note that these are there; of each the metadata that was read well, None for none."""
        rows = connection.execute(
            self.plane.statement("maintenance/lake_tables", "see_tables"),
            {
                "project": self.project,
                "catalog": catalog,
                "namespaces": [one.schema for one in relations],
                "names": [one.name for one in relations],
            },
        )
        return {Relation(row[0], row[1]): row[2] for row in rows}

    def remove_unseen(self, connection: Connection, catalog: str, listed_at: datetime) -> int:
        """Forget what was not there when the catalog was listed."""
        return connection.execute(
            self.plane.statement("maintenance/lake_tables", "remove_unseen"),
            {"project": self.project, "catalog": catalog, "listed_at": listed_at},
        ).rowcount

    def put(
        self, connection: Connection, target: Endpoint, facts: TableFacts, read_at: datetime
    ) -> bool:
        """Keep what a table was made of when reading it began; False when newer is known."""
        written = connection.execute(
            self.plane.statement("maintenance/lake_tables", "put_table"),
            self._key(target)
            | {
                "metadata_location": facts.metadata_location,
                "facts": Jsonb(facts.document()),
                "read_at": read_at,
            },
        )
        return written.rowcount == 1

    def put_orphans(
        self, connection: Connection, catalog: str, found: Mapping[Relation, OrphanEstimate]
    ) -> None:
        """Keep how many files dead attempts have probably left in tables of one catalog."""
        connection.execute(
            self.plane.statement("maintenance/lake_tables", "put_orphans"),
            {
                "project": self.project,
                "catalog": catalog,
                "namespaces": [one.schema for one in found],
                "names": [one.name for one in found],
                "orphans": [Jsonb(one.document()) for one in found.values()],
            },
        )

    def mark(self, connection: Connection, target: Endpoint, error: str | None) -> None:
        """Note that a table is there, and why it could not be read."""
        connection.execute(
            self.plane.statement("maintenance/lake_tables", "mark_table"),
            self._key(target) | {"error": error},
        )

    def remove(self, connection: Connection, target: Endpoint) -> None:
        """Forget one table."""
        connection.execute(
            self.plane.statement("maintenance/lake_tables", "remove_table"), self._key(target)
        )

    def catalogs(self, connection: Connection, catalogs: Sequence[str]) -> list[CachedCatalog]:
        """How it stands with each catalog that was ever tried."""
        rows = connection.execute(
            self.plane.statement("maintenance/lake_catalogs", "list_catalogs"),
            {"project": self.project, "catalogs": list(catalogs)},
        )
        return [CachedCatalog(*row) for row in rows]

    def note_refreshed(self, connection: Connection, catalog: str, listed_at: datetime) -> None:
        """All tables of a catalog were looked at."""
        connection.execute(
            self.plane.statement("maintenance/lake_catalogs", "note_refreshed"),
            {"project": self.project, "catalog": catalog, "listed_at": listed_at},
        )

    def note_failed(self, connection: Connection, catalog: str, error: str) -> None:
        """A catalog could not be listed; what is known of its tables stays."""
        connection.execute(
            self.plane.statement("maintenance/lake_catalogs", "note_failed"),
            {"project": self.project, "catalog": catalog, "error": error},
        )

    @contextmanager
    def refreshing(self, connection: Connection, catalog: str) -> Iterator[bool]:
        """Whether this session is the one that refreshes a catalog, for as long as it does.

        Held by the session and not by a transaction, which would hold back vacuum meanwhile.
        """
        key = {"key": f"tidegate:refresh:{self.plane.schema}:{self.project}:{catalog}"}
        row = connection.execute(
            self.plane.statement("maintenance/lake_catalogs", "try_lock"), key
        ).fetchone()
        held = bool(row and row[0])
        try:
            yield held
        finally:
            if held and not connection.closed:
                connection.execute(self.plane.statement("maintenance/lake_catalogs", "unlock"), key)

    def _key(self, target: Endpoint) -> dict[str, Any]:
        return {
            "project": self.project,
            "catalog": target.connection,
            "namespace": target.relation.schema,
            "name": target.relation.name,
        }


def _table(row: Sequence[Any]) -> CachedTable:
    catalog, namespace, name, location, facts, read_at, seen_at, error, orphans, *state = row
    return CachedTable(
        target=Endpoint(catalog, Relation(namespace, name)),
        metadata_location=location,
        facts=_facts(facts),
        read_at=read_at,
        seen_at=seen_at,
        error=error,
        orphans=_orphans(orphans),
        catalog=CachedCatalog(catalog, *state),
    )


def _facts(document: dict[str, Any] | None) -> TableFacts | None:
    """What another version of us wrote may not be readable; the next refresh replaces it."""
    if document is None:
        return None
    try:
        return TableFacts.read(document)
    except (KeyError, TypeError, ValueError):
        return None


def _orphans(document: dict[str, Any] | None) -> OrphanEstimate | None:
    if document is None:
        return None
    since = document.get("since")
    return OrphanEstimate(**document | {"since": since and datetime.fromisoformat(since)})


_ABANDONED_SECONDS = 600.0
"""whoever refreshes for longer without having tried anew may be stopped; others go on"""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What one refresh did; `failed` are catalogs, `unreadable` single tables."""

    catalogs: int = 0
    read: int = 0
    unchanged: int = 0
    removed: int = 0
    unreadable: int = 0
    failed: int = 0
    skipped: int = 0
    """catalogs that another refreshes now, or has just refreshed"""

    def __add__(self, other: Refreshed) -> Refreshed:
        mine, others = asdict(self), asdict(other)
        return Refreshed(**{name: mine[name] + others[name] for name in mine})


class Refresher:
    """Looks at every lake of a project; any number may, since one at a time does it."""

    def __init__(self, context: Context, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self._context = context
        self._is_stopping = is_stopping
        self._tables = TableCache(context.plane, context.settings.project.name)

    @property
    def lakes(self) -> list[str]:
        """The connections that are lakes."""
        return [one for one in self._context.settings.connections if self._context.is_lake(one)]

    def loop(self, then: Callable[[], None] = lambda: None) -> Loop:
        """Refreshing, for as long as it runs; `then` is called after each refresh."""
        interval = self._context.settings.maintenance.refresh_seconds

        def refresh(control: Connection) -> dict[str, int]:
            # Several processes refresh one project about as often as one would.
            done = asdict(self.run_once(control, younger_seconds=interval / 2))
            then()
            return {name: done[name] for name in ("read", "removed", "unreadable", "failed")}

        loop = Loop("refresher", refresh, self._context.plane.connect, interval_seconds=interval)
        self._is_stopping = lambda: loop.is_stopping
        return loop

    def run_once(self, control: Connection, *, younger_seconds: float = 0.0) -> Refreshed:
        """Look at every lake that was last tried so many seconds ago or more.

        A catalog that is down is told and loses nothing; nor does it stop the others.
        """
        done = Refreshed()
        tried = {one.catalog: one for one in self._tables.catalogs(control, self.lakes)}
        for lake in self.lakes:
            age = _age(tried.get(lake))
            if age is not None and age < younger_seconds:
                done += Refreshed(skipped=1)
                continue
            abandoned = age is not None and age > _ABANDONED_SECONDS
            with self._tables.refreshing(control, lake) as alone:
                if alone or abandoned:
                    done += self._refresh(control, lake)
                else:
                    done += Refreshed(skipped=1)
        return done

    def _refresh(self, control: Connection, lake: str) -> Refreshed:
        listed_at = self._tables.clock(control)
        try:
            found = list_locations(self._context.catalog(lake))
        except Exception as error:
            words = reason(error)
            self._tables.note_failed(control, lake, words)
            log.warning("catalog_not_listed", catalog=lake, error=words)
            return Refreshed(failed=1)
        with control.transaction():
            known = self._tables.see(control, lake, list(found))
            removed = self._tables.remove_unseen(control, lake, listed_at)
        done = Refreshed(catalogs=1, removed=removed)
        for relation, location in found.items():
            if self._is_stopping():
                # The catalog does not count as looked at, so the next refresh reads the rest.
                return done
            if location is not None and known.get(relation) == location:
                done += Refreshed(unchanged=1)
            else:
                done += self._read(control, Endpoint(lake, relation))
        self._tables.note_refreshed(control, lake, listed_at)
        _estimate(self._context, control, lake, self._tables.page(control, [lake]))
        return done

    def _read(self, control: Connection, target: Endpoint) -> Refreshed:
        try:
            there = _read_table(self._context, control, target)
        except Exception as error:
            if control.closed:
                raise
            words = reason(error)
            self._tables.mark(control, target, words)
            log.warning("table_not_read", table=str(target), error=words)
            return Refreshed(unreadable=1)
        return Refreshed(read=1) if there else Refreshed(removed=1)


def refresh_table(context: Context, control: Connection, target: Endpoint) -> bool:
    """Read one table anew; False when it is gone, and forgotten."""
    tables = TableCache(context.plane, context.settings.project.name)
    there = _read_table(context, control, target)
    cached = tables.get(control, target)
    _estimate(context, control, target.connection, [] if cached is None else [cached])
    return there


def _read_table(context: Context, control: Connection, target: Endpoint) -> bool:
    tables = TableCache(context.plane, context.settings.project.name)
    read_at = tables.clock(control)
    facts = read_target_facts(context, target)
    if facts is None:
        tables.remove(control, target)
        return False
    tables.put(control, target, facts, read_at)
    return True


def _estimate(
    context: Context, control: Connection, lake: str, tables: Sequence[CachedTable]
) -> None:
    """What dead attempts have probably left in these tables; without it the cache is good, too."""
    facts = {one.target: one.facts for one in tables if one.facts is not None}
    if not facts:
        return
    try:
        found = estimate_orphans(context, control, facts)
    except (psycopg.Error, TidegateError) as error:
        if control.closed:
            raise
        log.warning("orphans_not_estimated", catalog=lake, error=reason(error))
        return
    cache = TableCache(context.plane, context.settings.project.name)
    cache.put_orphans(control, lake, {one.relation: found[one] for one in found})


def cache_written_table(
    context: Context, control: Connection, table: FencedTable, anew: bool
) -> None:
    """After a job wrote into a table: into the cache with it, read `anew` or only if it is new.

    What goes wrong is told; the next refresh finds the table by itself.
    """
    if table.iceberg_catalog is None:
        return
    target = Endpoint(table.iceberg_catalog, table.relation)
    try:
        tables = TableCache(context.plane, context.settings.project.name)
        if anew or tables.get(control, target) is None:
            refresh_table(context, control, target)
    except Exception as error:
        log.warning("table_not_cached", table=str(target), error=reason(error))


def _age(tried: CachedCatalog | None) -> float | None:
    """How many seconds ago a catalog was last tried."""
    if tried is None or tried.tried_at is None:
        return None
    return (tried.asked_at - tried.tried_at).total_seconds()
