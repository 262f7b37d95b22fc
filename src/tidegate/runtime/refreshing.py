"""Keeping the table cache up to date: what is listed, what has changed, what is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import psycopg

from tidegate.control.lake_tables import CachedCatalog, CachedTable, LakeTables
from tidegate.errors import TidegateError
from tidegate.lake.metadata import list_locations
from tidegate.ledger.fences import FencedTable
from tidegate.log import log
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.pipeline.orphan_estimate import estimate_orphans
from tidegate.pipeline.target_facts import read_target_facts
from tidegate.postgres.connect import Connection
from tidegate.runtime.loop import Loop, reason

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
        self._tables = LakeTables(context.plane, context.settings.project.name)

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
    tables = LakeTables(context.plane, context.settings.project.name)
    there = _read_table(context, control, target)
    cached = tables.get(control, target)
    _estimate(context, control, target.connection, [] if cached is None else [cached])
    return there


def _read_table(context: Context, control: Connection, target: Endpoint) -> bool:
    tables = LakeTables(context.plane, context.settings.project.name)
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
    cache = LakeTables(context.plane, context.settings.project.name)
    cache.put_orphans(control, lake, {one.relation: found[one] for one in found})


def note_written(context: Context, control: Connection, table: FencedTable, anew: bool) -> None:
    """After a job wrote into a table: into the cache with it, read `anew` or only if it is new.

    What goes wrong is told; the next refresh finds the table by itself.
    """
    if table.iceberg_catalog is None:
        return
    target = Endpoint(table.iceberg_catalog, table.relation)
    try:
        tables = LakeTables(context.plane, context.settings.project.name)
        if anew or tables.get(control, target) is None:
            refresh_table(context, control, target)
    except Exception as error:
        log.warning("table_not_cached", table=str(target), error=reason(error))


def _age(tried: CachedCatalog | None) -> float | None:
    """How many seconds ago a catalog was last tried."""
    if tried is None or tried.tried_at is None:
        return None
    return (tried.asked_at - tried.tried_at).total_seconds()
