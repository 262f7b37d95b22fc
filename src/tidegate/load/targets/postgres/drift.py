"""What changed in the source and what the target needs for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from tidegate.config.sync import DriftPolicy, Rules
from tidegate.core.errors import DriftRefused
from tidegate.core.relation import Column, Relation, RelationKind, Table
from tidegate.core.shape import LoadedColumn, LoadedShape, Shape, StagedColumn
from tidegate.load.modes import MODES
from tidegate.load.targets.postgres.schema_changes import (
    Added,
    Change,
    DependentView,
    Evolution,
    Relaxed,
    Retyped,
    accepts,
    alter,
    rewrites,
    widens,
)
from tidegate.load.targets.postgres.table import physical_table, retype_by_hand, table_form
from tidegate.postgres.catalog import describe_table, partition_oids
from tidegate.postgres.connection import Connection


def views_on(connection: Connection, table: Table, column: str, ours: Relation) -> list[str]:
    """Views of other people that read a column, and so hold its type."""
    rows = connection.execute(
        "SELECT DISTINCT format('%%I.%%I', n.nspname, v.relname) FROM pg_depend d"
        " JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass"
        " JOIN pg_class v ON v.oid = r.ev_class JOIN pg_namespace n ON n.oid = v.relnamespace"
        " JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
        " WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND a.attname = %s"
        " AND (n.nspname, v.relname) <> (%s, %s) ORDER BY 1",
        (table.oid, column, ours.schema, ours.name),
    )
    return [name for (name,) in rows]


def is_examined(connection: Connection, table: Table, column: str) -> bool:
    """Whether a constraint or an index over an expression must look at every row again."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_constraint c JOIN pg_attribute a"
        " ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)"
        " WHERE c.conrelid = %(oid)s AND c.contype IN ('c', 'x') AND a.attname = %(column)s)"
        " OR EXISTS (SELECT FROM pg_index i JOIN pg_depend d ON d.objid = i.indexrelid"
        " AND d.classid = 'pg_class'::regclass AND d.refobjid = i.indrelid"
        " JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
        " WHERE i.indrelid = %(oid)s AND a.attname = %(column)s"
        " AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))",
        {"oid": table.oid, "column": column},
    ).fetchone()
    return bool(row and row[0])


def size_bytes(connection: Connection, table: Table) -> int:
    """How much a table holds, with its indexes and partitions."""
    row = connection.execute(
        "SELECT sum(pg_total_relation_size(one))::bigint FROM unnest(%s::oid[]) AS one",
        ([table.oid, *partition_oids(connection, table.oid)],),
    ).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def row_triggers(connection: Connection, relation: Relation) -> list[str]:
    """Triggers that see each row before it is put in, and may leave it out; of partitions too."""
    rows = connection.execute(
        "WITH own AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s)"
        " SELECT DISTINCT tgname::text FROM pg_trigger WHERE tgrelid IN"
        " (SELECT oid FROM own UNION SELECT relid FROM own, pg_partition_tree(own.oid))"
        # Of each row, before, and on INSERT or UPDATE, as the bits of pg_trigger.h have it.
        " AND NOT tgisinternal AND tgenabled IN ('O', 'A')"
        " AND (tgtype & 3) = 3 AND (tgtype & 20) <> 0 ORDER BY 1",
        (relation.schema, relation.name),
    )
    return [name for (name,) in rows]


def has_default(connection: Connection, table: Table, column: str) -> bool:
    """Whether the table fills a column by itself."""
    row = connection.execute(
        "SELECT atthasdef OR attidentity <> '' FROM pg_attribute"
        " WHERE attrelid = %s AND attname = %s",
        (table.oid, column),
    ).fetchone()
    return bool(row and row[0])


# As much is written anew within a second, so readers may wait for it.
SMALL_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ColumnDrift:
    """One thing that differs, and what the target would do about it."""

    drift: str | None = None
    """what changed in the source, in words; None where it was the declaration"""
    note: str | None = None
    change: Change | None = None
    by_hand: str | None = None
    problem: str | None = None
    """why the target cannot follow"""


def find_evolution(
    connection: Connection,
    relation: Relation,
    shape: Shape,
    rules: Rules,
    loaded: LoadedShape | None,
) -> Evolution | None:
    """What the target needs to take these rows; refuses drift that it does not follow.

    Only columns that were loaded before can drift. What else differs is the target's own affair,
    and checked as such.
    """
    table = describe_table(connection, physical_table(relation, shape, rules))
    if table is None:
        return None
    if table.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        return None
    found: list[ColumnDrift] = []
    if loaded is not None:
        found += ShapeComparison(connection, relation, table, shape, rules, loaded).differences()
    frozen = rules.drift is DriftPolicy.FREEZE
    if frozen:
        _refuse_any(relation, found)
        found = [difference for difference in found if difference.change is None]
    else:
        _refuse_problems(relation, found)
    changes = [difference.change for difference in found if difference.change is not None]
    after = table
    for change in changes:
        after = change.applied_to(after)
    return Evolution(
        relation=relation,
        table=after,
        actions=tuple(change.action for change in changes),
        view=_find_view(
            connection, relation, after, shape, rules, any(isinstance(c, Retyped) for c in changes)
        ),
        notes=tuple(difference.note for difference in found if difference.note is not None),
    )


@dataclass(frozen=True, slots=True)
class ShapeComparison:
    """The columns as they were loaded, as they are in the target, and as they come now."""

    connection: Connection
    relation: Relation
    table: Table
    shape: Shape
    rules: Rules
    loaded: LoadedShape

    def differences(self) -> Iterator[ColumnDrift]:
        for column in self.shape.columns:
            before, existing = self.loaded.column(column.name), self.table.column(column.name)
            if existing is None and before is None:
                yield self._new(column)
            elif existing is not None and before is None:
                yield ColumnDrift(note=self._now_loaded(column))
            elif existing is not None and before is not None:
                yield from self._nullable(before, existing, column)
                yield from self._type(before, existing, column)
            # One that was loaded and is not in the target was dropped there: refused as ever.
        for before in self.loaded.columns:
            existing = self.table.column(before.name)
            if existing is not None and self.shape.column(before.name) is None:
                yield self._left(existing)
        yield from self._renamed()

    def _new(self, column: StagedColumn) -> ColumnDrift:
        change = Added(column.name, column.target_type)
        filled = ""
        if not MODES[self.rules.mode].loads_whole:
            filled = "; rows loaded before have NULL there until they change" + _WAY_TO_FILL
        return ColumnDrift(
            drift=f"column {column.name} {column.target_type} is new",
            note=f"column {column.name} {column.target_type} is new and is added to "
            f"{self.table.relation}{filled}",
            change=change,
            by_hand=f"{self._alter(change.action)} (or exclude_columns)",
        )

    def _now_loaded(self, column: StagedColumn) -> str | None:
        if MODES[self.rules.mode].loads_whole:
            return None
        return (
            f"column {column.name} is loaded from now on; rows loaded before keep what they have "
            f"there until they change{_WAY_TO_FILL}"
        )

    def _nullable(
        self, before: LoadedColumn, existing: Column, column: StagedColumn
    ) -> Iterator[ColumnDrift]:
        may_be_null = before.not_null and not column.not_null and column.name not in self.shape.key
        if may_be_null and existing.not_null:
            change = Relaxed(column.name)
            yield ColumnDrift(
                drift=f"column {column.name} may be NULL now",
                note=f"column {column.name} may be NULL now, in {self.table.relation} too",
                change=change,
                by_hand=self._alter(change.action),
            )

    def _type(
        self, before: LoadedColumn, existing: Column, column: StagedColumn
    ) -> Iterator[ColumnDrift]:
        name, wanted = column.name, column.target_type
        if before.type == wanted or existing.generated:
            return
        if accepts(self.connection, existing.type, wanted):
            return
        change = Retyped(name, wanted)
        drift = f"column {name} was {before.type} and is {wanted} now"
        if not widens(self.connection, existing.type, wanted):
            yield ColumnDrift(
                drift=drift,
                by_hand=f"{self._retype(existing, wanted)} (or exclude_columns)",
                problem=f"{drift}, and {existing.type} in {self.table.relation} does not turn into "
                "that without loss",
            )
            return
        by_hand, problem = self._obstacle(existing, change)
        yield ColumnDrift(
            drift=drift,
            note=f"column {name} becomes {wanted} in {self.table.relation}",
            change=change,
            by_hand=by_hand,
            problem=None if problem is None else f"{drift}, and {problem}",
        )

    def _retype(self, existing: Column, wanted: str) -> str:
        return retype_by_hand(self.connection, self.relation, self.table, existing, wanted)

    def _obstacle(self, existing: Column, change: Retyped) -> tuple[str, str | None]:
        """How to widen by hand, and why it is not done at once: readers must not wait for it."""
        by_hand = self._alter(change.action)
        views = views_on(self.connection, self.table, change.name, self.relation)
        if views:
            named = ", ".join(views)
            return (
                f"drop {named}, run again, and make what was dropped anew",
                f"{named} reads it from {self.table.relation} and so holds its type",
            )
        slow = rewrites(existing.type, change.type) or is_examined(
            self.connection, self.table, change.name
        )
        size = size_bytes(self.connection, self.table)
        if slow and size > SMALL_BYTES:
            return (
                f"in a quiet hour: {by_hand}",
                f"widening it goes through all {size / 1024 / 1024:,.0f} MB of "
                f"{self.table.relation} while nobody can read it",
            )
        return by_hand, None

    def _left(self, existing: Column) -> ColumnDrift:
        """A column that comes no more keeps its values; it must not stop new rows."""
        name = existing.name
        filled = has_default(self.connection, self.table, name)
        change = Relaxed(name) if existing.not_null and not filled else None
        if all(column.name != name for column in self.loaded.gone(self.shape)):
            return ColumnDrift(change=change)
        return ColumnDrift(
            drift=f"column {name} is gone",
            note=f"column {name} is gone from the source; {self.table.relation} keeps it with its "
            "values, and new rows have none there",
            change=change,
            by_hand=self._alter(sql.SQL("DROP COLUMN {}").format(sql.Identifier(name))),
        )

    def _renamed(self) -> Iterator[ColumnDrift]:
        for old, new in self.loaded.renamed(self.shape).items():
            if self.table.column(old) is not None and self.table.column(new) is None:
                rename = self._alter(
                    sql.SQL("RENAME COLUMN {} TO {}").format(
                        sql.Identifier(old), sql.Identifier(new)
                    )
                )
                yield ColumnDrift(
                    note=f"{new} looks like {old} under a new name (same place, same type); "
                    f"renaming it in the target before a run keeps its values: {rename}",
                    by_hand=f"if {old} was renamed: {rename}",
                )

    def _alter(self, action: sql.Composable) -> str:
        return alter(self.table.relation, action).as_string(self.connection)


_WAY_TO_FILL = " (to fill it at once: run with --full-refresh, or rewind the watermark)"


def _refuse_any(relation: Relation, found: list[ColumnDrift]) -> None:
    drifts = [difference.drift for difference in found if difference.drift is not None]
    if drifts:
        by_hand = [difference.by_hand for difference in found if difference.by_hand is not None]
        raise DriftRefused(
            f'the source of {relation} changed, and drift = "freeze": ' + "; ".join(drifts),
            'let the target follow with drift = "evolve", or change it by hand: '
            + "; ".join(by_hand),
        )


def _refuse_problems(relation: Relation, found: list[ColumnDrift]) -> None:
    problems = [difference for difference in found if difference.problem is not None]
    if problems:
        raise DriftRefused(
            f"the source of {relation} changed: " + "; ".join(str(one.problem) for one in problems),
            "change the target by hand: " + "; ".join(str(one.by_hand) for one in problems),
        )


def _find_view(
    connection: Connection,
    relation: Relation,
    table: Table,
    shape: Shape,
    rules: Rules,
    retyped: bool,
) -> DependentView | None:
    """The view over a table of versions, where it lacks a column or stands in the way."""
    statement = table_form(shape, rules).view
    view = None if statement is None else describe_table(connection, relation)
    if statement is None or view is None or view.kind is not RelationKind.VIEW:
        return None
    there = set(table.column_names)
    kept = [name for name in view.column_names if name in there]
    missing = [name for name in shape.names if name not in kept]
    dropped_first = retyped or len(kept) < len(view.columns)
    if not missing and not dropped_first:
        return None
    return DependentView(statement(relation, shape, (*kept, *missing)), dropped_first)
