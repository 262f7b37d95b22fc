"""From the names given to the syncs meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg

from tidegate.config import Settings
from tidegate.config.sync import Group, Sync
from tidegate.core.errors import ConnectionFailed, TidegateError, UsageError
from tidegate.core.watermark import Watermark
from tidegate.iceberg.catalog import catalog_digest
from tidegate.iceberg.table import EMBEDDED
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.groups import (
    GroupListing,
    GroupTables,
    OtherDeclarations,
    expand_listing,
    list_group,
    mark_shared_targets,
    recorded_syncs,
    unlisted,
)
from tidegate.load.inspection import ReadSessions
from tidegate.load.sources.resolve import nearest
from tidegate.postgres.connection import check, translate

_DEFAULT_PORT = "5432"


def same_database(settings: Settings, one: str, other: str) -> bool:
    """Two names for one place: the same embedded database, or the same host, port and dbname."""
    if one == other:
        return True
    place = _place(settings, one)
    return place is not None and place == _place(settings, other)


def _lake(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The embedded catalog belongs to its connection; another may have several names."""
    kind = str(options.get("catalog", EMBEDDED))
    return ("iceberg", kind, name if kind == EMBEDDED else catalog_digest(kind, options))


def _place(settings: Settings, name: str) -> tuple[str, ...] | None:
    try:
        connection = settings.connection(name)
        if connection.embedded_database is not None:
            return ("embedded", connection.embedded_database)
        if connection.type == "iceberg":
            return _lake(name, connection.options)
        if connection.url is None:
            return None
        url = connection.url.get_secret_value()
        given = check(url)
    except TidegateError:
        return None  # its variables are not set; connecting will say so
    if "service" in given:
        return ("url", url)
    host = given.get("host") or given.get("hostaddr") or ""
    dbname = given.get("dbname") or given.get("user") or ""
    return ("server", host.lower(), given.get("port") or _DEFAULT_PORT, dbname)


Known = dict[tuple[str, str], Watermark]


@dataclass(frozen=True, slots=True)
class SelectedSyncs:
    """The syncs, and of every group that was meant as a whole how it came to its tables."""

    syncs: tuple[Sync, ...]
    groups: tuple[GroupTables, ...] = ()


def expand(
    context: Context,
    declared: Sequence[str],
    syncs: Mapping[str, Sync],
    groups: Mapping[str, Group],
    names: Sequence[str] | None,
    *,
    fresh: bool = False,
    from_ledger: bool = False,
) -> SelectedSyncs:
    """Resolve names, all of them without any; no database is asked unless a group is concerned.

    `fresh` forgets what tables were loaded with before; `from_ledger` gives the tables that the
    ledger knows where the source does not answer.
    """
    given = list(dict.fromkeys(declared if names is None else names))
    wanted: dict[str, Group | None] = {}
    for name in given:
        wanted[name] = None if name in syncs else _group_of(name, syncs, groups)
    if not any(wanted.values()):
        return SelectedSyncs(tuple(syncs[name] for name in given))
    with ReadSessions(context) as sessions:
        expander = _Expander(sessions, syncs, groups, fresh, from_ledger)
        return expander.expand(wanted)


def _group_of(name: str, syncs: Mapping[str, Sync], groups: Mapping[str, Group]) -> Group:
    head, dot, _ = name.partition(".")
    if name in groups:
        return groups[name]
    if dot and head in groups:
        return groups[head]
    raise UsageError(f"there is no sync {name}", nearest(name, [*syncs, *groups]))


@dataclass(slots=True)
class _Expander:
    sessions: ReadSessions
    syncs: Mapping[str, Sync]
    groups: Mapping[str, Group]
    fresh: bool
    from_ledger: bool
    _listings: dict[str, GroupListing | TidegateError] = field(default_factory=dict)
    _ledgers: dict[str, list[Watermark]] = field(default_factory=dict)

    def expand(self, wanted: Mapping[str, Group | None]) -> SelectedSyncs:
        found: dict[str, Sync] = {}
        expansions: list[GroupTables] = []
        for name, group in wanted.items():
            if group is None:
                found.setdefault(name, self.syncs[name])
            elif name == group.name:
                expansion = self._whole(group)
                expansions.append(expansion)
                for sync in expansion.syncs:
                    found.setdefault(sync.name, sync)
            else:
                sync = self._table(group, name)
                found.setdefault(sync.name, sync)
        marked = mark_shared_targets(found.values(), self._beside(found.values()), self._same)
        return SelectedSyncs(tuple(marked), tuple(expansions))

    def _whole(self, group: Group) -> GroupTables:
        listing = self._list(group)
        if isinstance(listing, GroupListing):
            try:
                return self._described(listing, None)
            except (TidegateError, psycopg.Error) as error:
                listing = _words(error, group)
        if self.from_ledger and isinstance(listing, ConnectionFailed):
            known = tuple(recorded_syncs(group, self._ledger(group)))
            if known:
                return GroupTables(group, known, warnings=(listing.message,))
        return GroupTables(group, (unlisted(group, listing),))

    def _table(self, group: Group, name: str) -> Sync:
        listing = self._list(group)
        if isinstance(listing, TidegateError):
            if self.from_ledger:
                for sync in recorded_syncs(group, self._ledger(group)):
                    if sync.name == name:
                        return sync
            return unlisted(group, listing, name)
        name = _as_listed(listing, name)
        if name not in listing.names:
            out = next((o for o in listing.left_out if group.sync_name(o.relation) == name), None)
            raise UsageError(
                f"group {group.name} has no table {name.removeprefix(group.name + '.')}"
                + (f": it is left out ({out.reason})" if out else ""),
                nearest(name, listing.names),
            )
        try:
            return self._described(listing, name).syncs[0]
        except (TidegateError, psycopg.Error) as error:
            return unlisted(group, _words(error, group), name)

    def _described(self, listing: GroupListing, name: str | None) -> GroupTables:
        group = listing.group
        known: Known = {}
        if not self.fresh:
            known = {(one.pipeline, one.table): one for one in self._ledger(group)}
        names = None if name is None else {name}
        found = expand_listing(self.sessions.source(group.connection), listing, known, names)
        if name is not None and not found.syncs:
            raise UsageError(f"table {name} was dropped a moment ago", "see: tidegate plan")
        return found

    def _list(self, group: Group) -> GroupListing | TidegateError:
        if group.name not in self._listings:
            neighbours = OtherDeclarations(
                tuple(self.syncs.values()), tuple(self.groups.values()), self._same
            )
            try:
                connection = self.sessions.source(group.connection)
                self._listings[group.name] = list_group(connection, group, neighbours)
            except (TidegateError, psycopg.Error) as error:
                self._listings[group.name] = _words(error, group)
        return self._listings[group.name]

    def _ledger(self, group: Group) -> list[Watermark]:
        """What the destination remembers; one that does not answer is for the run to report."""
        name = group.target.connection
        if name not in self._ledgers:
            try:
                watermarks = Watermarks(self.sessions.context.ledger(name))
                target = self.sessions.target(name)
                self._ledgers[name] = watermarks.of_project(target, group.project)
            except (TidegateError, psycopg.Error):
                self._ledgers[name] = []
        return self._ledgers[name]

    def _beside(self, found: Iterable[Sync]) -> list[Sync]:
        """Every sync that loads into these databases, as far as the sources answer."""
        targets = {sync.target.connection for sync in found}
        listings = [
            self._list(group)
            for group in self.groups.values()
            if any(self._same(group.target.connection, name) for name in targets)
        ]
        return [
            *self.syncs.values(),
            *(
                listing.base(candidate)
                for listing in listings
                if isinstance(listing, GroupListing)
                for candidate in listing.chosen
            ),
        ]

    @property
    def _same(self) -> partial[bool]:
        return partial(same_database, self.sessions.context.settings)


def _as_listed(listing: GroupListing, name: str) -> str:
    """The name of a table whose quotes a shell has eaten, if it can only mean one."""
    wanted = name.removeprefix(f"{listing.group.name}.")
    meant = [
        listed
        for listed, candidate in listing.names.items()
        if wanted
        in (candidate.relation.name, f"{candidate.relation.schema}.{candidate.relation.name}")
    ]
    return meant[0] if name not in listing.names and len(meant) == 1 else name


def _words(error: Exception, group: Group) -> TidegateError:
    if isinstance(error, psycopg.Error):
        return translate(error, f"listing the tables of {group.name}")
    assert isinstance(error, TidegateError)
    return error
