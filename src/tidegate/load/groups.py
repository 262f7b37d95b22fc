"""From a group to its tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidegate.config import SyncSettings
from tidegate.config.sync import Group, Mode, Sync, TargetTemplate
from tidegate.core.errors import DeclarationError, TidegateError
from tidegate.core.identity import pipeline_name, sync_of
from tidegate.core.relation import Column, Endpoint, Glob, Pattern, Relation, Table
from tidegate.core.watermark import CursorType, NullPolicy, Watermark
from tidegate.load.modes import MODES
from tidegate.load.proposals import (
    Candidate,
    SkippedTable,
    list_candidates,
    propose_cursor,
    propose_key,
)
from tidegate.load.sources.resolve import nearest
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class RecordedDeclaration:
    """Key and cursor of the loads so far; `key` is None where the table has no such key now."""

    cursor: str | None
    key: tuple[str, ...] | None


def recorded_declaration(watermark: Watermark | None, table: Table) -> RecordedDeclaration | None:
    """What the ledger remembers, as far as the table can still be read with it."""
    if watermark is None or watermark.version == 0 or not watermark.declaration:
        return None
    cursor = watermark.declaration.get("cursor")
    key = tuple(watermark.declaration.get("key", ()))
    if cursor is not None and table.column(cursor) is None:
        return None
    possible = not key or table.proves_unique(key)
    return RecordedDeclaration(cursor, key if possible else None)


def recorded_syncs(group: Group, watermarks: Iterable[Watermark]) -> list[Sync]:
    """The tables of a group that the ledger knows, for when the source cannot be asked."""
    prefix = pipeline_name(group.project, group.name) + "."
    found: list[Sync] = []
    for watermark in watermarks:
        if not watermark.pipeline.startswith(prefix):
            continue
        declaration: Mapping[str, object] = watermark.declaration or {}
        try:
            source = Endpoint.parse(str(declaration.get("source")))
        except TidegateError:
            source = group.template.source
        cursor = declaration.get("cursor")
        found.append(
            replace(
                group.template,
                name=sync_of(group.project, watermark.pipeline),
                source=source,
                target=Endpoint(group.target.connection, Relation.parse(watermark.table)),
                mode=group.template.mode if cursor else Mode.REPLACE,
                cursor=str(cursor) if cursor else None,
                group=group.name,
            )
        )
    return found


SameDatabase = Callable[[str, str], bool]
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class OtherDeclarations:
    """What else the project declares, since it takes tables out of a group."""

    syncs: tuple[Sync, ...] = ()
    groups: tuple[Group, ...] = ()
    same_database: SameDatabase = str.__eq__

    def owner(self, connection: str, relation: Relation) -> str | None:
        """The sync that reads this relation on its own, if there is one."""
        return next(
            (
                sync.name
                for sync in self.syncs
                if sync.query is None
                and sync.source.relation == relation
                and self.same_database(sync.source.connection, connection)
            ),
            None,
        )

    def writer(self, connection: str, relation: Relation) -> str | None:
        """What loads this relation, so that nothing is copied from copies."""
        for sync in self.syncs:
            if sync.target.relation == relation and self.same_database(
                sync.target.connection, connection
            ):
                return sync.name
        for group in self.groups:
            if group.target.covers(relation) and self.same_database(
                group.target.connection, connection
            ):
                return group.name
        return None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """The relations of a group before anything else is known of them."""

    group: Group
    chosen: tuple[Candidate, ...]
    left_out: tuple[SkippedTable, ...]
    warnings: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, Candidate]:
        return {self.group.sync_name(one.relation): one for one in self.chosen}

    def base(self, candidate: Candidate) -> Sync:
        """The sync of one table, before anything is known of its columns."""
        group = self.group
        return replace(
            group.template,
            name=group.sync_name(candidate.relation),
            source=Endpoint(group.connection, candidate.relation),
            target=group.target.of(candidate.relation),
            group=group.name,
        )


@dataclass(frozen=True, slots=True)
class GroupTables:
    """A group with its tables; `left_out` says what its pattern also matches."""

    group: Group
    syncs: tuple[Sync, ...]
    left_out: tuple[SkippedTable, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())


def make_group(template: Sync, values: SyncSettings) -> Group:
    """A group as it was declared; `template` is the sync that its values alone would make."""
    target = TargetTemplate.parse(values.target)
    assert target is not None
    pattern = Pattern.parse(values.source.partition(":")[2].strip())
    if pattern.schema is None:
        pattern = Pattern(Glob("public", literal=True), pattern.table)
    return Group(
        template=template,
        pattern=pattern,
        target=target,
        include=tuple(Pattern.parse(one) for one in values.include),
        exclude=tuple(Pattern.parse(one) for one in values.exclude),
    )


def list_group(connection: Connection, group: Group, neighbours: OtherDeclarations) -> GroupListing:
    """The relations that belong to a group; refuses a pattern that matches none."""
    chosen: list[Candidate] = []
    left_out: list[SkippedTable] = []
    matching = list_candidates(connection, group.pattern)
    for candidate in matching:
        reason = _reason_against(group, candidate, neighbours)
        if reason is None:
            chosen.append(candidate)
        else:
            left_out.append(SkippedTable(candidate.relation, reason))
    if not chosen:
        raise DeclarationError(
            f"group {group.name}: nothing matches {group.source}"
            if not matching
            else f"group {group.name}: everything that matches {group.source} is left out",
            _what_is_there(connection, group, left_out),
        )
    return GroupListing(group, tuple(chosen), tuple(left_out), _unused(group, matching))


def expand_listing(
    connection: Connection,
    listing: GroupListing,
    known: Mapping[tuple[str, str], Watermark],
    names: Collection[str] | None = None,
) -> GroupTables:
    """The syncs of a group, or those named; `known` are the watermarks they left before."""
    syncs: list[Sync] = []
    left_out = list(listing.left_out)
    for name, candidate in listing.names.items():
        if names is not None and name not in names:
            continue
        table = describe_table(connection, candidate.relation)
        if table is None:
            left_out.append(SkippedTable(candidate.relation, "it was dropped a moment ago"))
            continue
        base = listing.base(candidate)
        before = recorded_declaration(known.get((base.pipeline, str(base.target.relation))), table)
        syncs.append(_choose(base, table, before))
    return GroupTables(listing.group, tuple(syncs), tuple(left_out), listing.warnings)


def mark_shared_targets(
    syncs: Iterable[Sync], everything: Iterable[Sync], same_database: SameDatabase
) -> list[Sync]:
    """The syncs, marked as refused where another one of the project loads the same table."""
    by_relation: dict[Relation, list[Sync]] = {}
    for sync in everything:
        by_relation.setdefault(sync.target.relation, []).append(sync)
    marked: list[Sync] = []
    for sync in syncs:
        others = (
            one
            for one in by_relation.get(sync.target.relation, [])
            if one.name != sync.name
            and same_database(one.target.connection, sync.target.connection)
        )
        other = None if sync.refused is not None else next(others, None)
        marked.append(sync if other is None else replace(sync, refused=_shared(sync, other)))
    return marked


def _shared(sync: Sync, other: Sync) -> DeclarationError:
    several = sync.group is not None and sync.group == other.group
    return DeclarationError(
        f"{sync.name} ({sync.source_name}) and {other.name} ({other.source_name}) have one target, "
        f"{sync.target}",
        "put {schema} into the group's target, or exclude one of the tables"
        if several
        else "give one of them another target",
    )


def unlisted(group: Group, error: TidegateError, name: str | None = None) -> Sync:
    """What stands for a group, or one of its tables, that cannot be listed: running it says why."""
    return replace(group.template, name=name or group.name, group=group.name, refused=error)


def _reason_against(
    group: Group, candidate: Candidate, neighbours: OtherDeclarations
) -> str | None:
    relation = candidate.relation
    reason = candidate.reason_against or group.excluded(relation)
    if reason is not None:
        return reason
    if candidate.kind_words is not None and not group.names(relation):
        return f"{candidate.kind_words}; to load it, name it in include without a wildcard"
    owner = neighbours.owner(group.connection, relation)
    if owner is not None:
        return f"declared on its own, as sync {owner}"
    writer = neighbours.writer(group.connection, relation)
    return None if writer is None else f"it is a target, of {writer}"


def _unused(group: Group, matching: list[Candidate]) -> tuple[str, ...]:
    """Patterns that do nothing are mostly misspelt."""
    return tuple(
        f'{key} = "{one}" matches nothing of {group.source}'
        for key, patterns in (("include", group.include), ("exclude", group.exclude))
        for one in patterns
        if not any(one.matches(candidate.relation) for candidate in matching)
    )


def _what_is_there(connection: Connection, group: Group, left_out: list[SkippedTable]) -> str:
    if left_out:
        shown = [f"{one.relation}: {one.reason}" for one in left_out[:_SHOWN]]
        return "; ".join(shown) + (" …" if len(left_out) > _SHOWN else "")
    there = [
        candidate.relation
        for candidate in list_candidates(connection)
        if candidate.reason_against is None
    ]
    return nearest(str(group.pattern), (str(relation) for relation in there))


def _choose(base: Sync, table: Table, before: RecordedDeclaration | None) -> Sync:
    """Mode, key and cursor of one table: as declared, else as loaded before, else as proposed."""
    declared, names = MODES[base.mode], set(table.column_names)
    notes: list[str] = []
    proposed: set[str] = set()
    key, _ = propose_key(table)
    if base.key is not None and set(base.key) <= names:
        key = base.key
    else:
        proposed.add("key")
        if declared.only_adds:
            # Keeping every version of a row is for a person to ask for.
            key = ()
        if before is not None and before.key is not None and set(before.key) != set(key):
            notes.append(_kept(base, "key", before.key, key))
            key = before.key
    cursor: Column | None = None
    if base.changes == "cdc":
        # Ordered by the log; a table that cannot be read so is refused by its name.
        return replace(
            base,
            key=key or None,
            columns=_there(base.columns, names),
            exclude_columns=tuple(c for c in base.exclude_columns if c in names),
            proposed=frozenset(proposed),
            notes=tuple(notes),
        )
    if base.changes == "snapshot" and not declared.loads_whole:
        return _choose_snapshot(base, table, key, notes, proposed)
    if not declared.loads_whole:
        if base.cursor is not None and base.cursor in names:
            cursor = table.column(base.cursor)
        else:
            proposed.add("cursor")
            cursor = propose_cursor(table)
            if before is not None and (cursor and cursor.name) != before.cursor:
                notes.append(_kept(base, "cursor", before.cursor, cursor and cursor.name))
                cursor = table.column(before.cursor) if before.cursor else None
    null_cursor = base.null_cursor
    if cursor is not None and not cursor.not_null and null_cursor is None:
        if key:
            null_cursor = NullPolicy.INCLUDE
            proposed.add("null_cursor")
            notes.append(f"{cursor.name} may be NULL: rows without it are loaded too (include)")
        else:
            notes.append(
                f"{cursor.name} may be NULL and nothing identifies a row, so it is no cursor"
            )
            cursor = None
    mode = base.mode
    lacks_key = declared.needs_key and not key
    if not declared.loads_whole and (cursor is None or lacks_key):
        notes.append(_why_replace(cursor, key))
        mode, cursor = Mode.REPLACE, None
    return replace(
        base,
        mode=mode,
        key=key or (() if MODES[mode].loads_whole else None),
        cursor=cursor.name if cursor is not None else None,
        null_cursor=null_cursor,
        lookback=_lookback(base, cursor, notes),
        columns=_there(base.columns, names),
        exclude_columns=tuple(c for c in base.exclude_columns if c in names),
        proposed=frozenset(proposed),
        notes=tuple(notes),
    )


def _there(columns: tuple[str, ...] | None, names: set[str]) -> tuple[str, ...] | None:
    """The declared columns that this table has; all of them where it has none, to be refused."""
    return columns and (tuple(name for name in columns if name in names) or columns)


def _choose_snapshot(
    base: Sync, table: Table, key: tuple[str, ...], notes: list[str], proposed: set[str]
) -> Sync:
    """A table whose rows are found by their transactions needs a key, and no cursor."""
    cursor = None if base.cursor is None else table.column(base.cursor)
    mode, changes = base.mode, base.changes
    if not key:
        notes.append(_why_replace(cursor or table.columns[0], key))
        mode, changes, cursor = Mode.REPLACE, "cursor", None
    elif base.cursor is not None and cursor is None:
        notes.append(f"it has no {base.cursor}, so every run looks through all of it")
    names = set(table.column_names)
    columns = None if base.columns is None else tuple(c for c in base.columns if c in names)
    return replace(
        base,
        mode=mode,
        changes=changes,
        key=key or (),
        cursor=None if cursor is None else cursor.name,
        lookback=None if cursor is None else _lookback(base, cursor, notes),
        columns=columns or base.columns,
        exclude_columns=tuple(c for c in base.exclude_columns if c in names),
        proposed=frozenset(proposed),
        notes=tuple(notes),
    )


def _why_replace(cursor: Column | None, key: tuple[str, ...]) -> str:
    if cursor is not None and not key:
        return "no key, so the whole table is loaded whenever anything changed"
    return "no column rises with every change, so the whole table is loaded whenever one did"


def _lookback(base: Sync, cursor: Column | None, notes: list[str]) -> str | int | None:
    """A duration means nothing for a number, and the other way round."""
    kind = None if cursor is None else CursorType.of(cursor.wire)
    if kind is None or base.lookback in (None, 0):
        return base.lookback
    if kind.is_number != isinstance(base.lookback, int):
        assert cursor is not None
        notes.append(f"lookback = {base.lookback!r} does not fit {cursor.name}, a {kind}")
        return None
    return base.lookback


def _kept(sync: Sync, what: str, before: object, now: object) -> str:
    return (
        f"its {what} stays {_words(before)}, with which it was loaded; {_words(now)} is taken by: "
        f"tidegate run {sync.name} --full-refresh"
    )


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(value)})" if value else "none"
    return "none" if value is None else str(value)
