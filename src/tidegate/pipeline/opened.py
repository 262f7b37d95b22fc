"""A comparison while it is open: both sides in their snapshots, and the way to put right what
differs between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.destinations.drift import find_evolution
from tidegate.destinations.postgres import PostgresDestination
from tidegate.failpoints import reach
from tidegate.model.column import Table
from tidegate.model.drift import Loaded
from tidegate.model.key_ranges import KeyRanges
from tidegate.model.load import StagedWrite
from tidegate.model.shape import Shape
from tidegate.model.staging import new_write_id
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.comparable import columns_changed
from tidegate.pipeline.compare import FOUND, Comparison, Hashing, Side, compare, key_text
from tidegate.pipeline.context import Context
from tidegate.pipeline.first_copy import MARK_TYPE, mark_column
from tidegate.pipeline.lake_sync import DELETED
from tidegate.pipeline.load import Prepare
from tidegate.pipeline.sides import target_columns
from tidegate.pipeline.stage import Staged, staging_place
from tidegate.postgres.identifiers import qualified
from tidegate.sources.postgres import PostgresSource
from tidegate.spark.copying import copy_rows

StageRanges = Callable[[KeyRanges, str, Prepare], Staged]
"""Puts aside for an attempt what should be in these ranges, and the keys that should not.

What differs in them must have been told apart just before.
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """Both sides of a comparison by key, for as long as their snapshots are held."""

    source: PostgresSource
    watermark: Watermark
    hashing: Hashing
    expected: Side
    found: Side
    stage: StageRanges


Examine = Callable[[Opened], Comparison]


def only_compare(opened: Opened) -> Comparison:
    """What `verify` does with a comparison."""
    return compare(opened.expected, opened.found, opened.hashing)


@dataclass(frozen=True, slots=True)
class PostgresDifference:
    """What a table of a database lacks and has too much, copied into staging without Spark."""

    context: Context
    sync: Sync
    table: Table
    shape: Shape
    """its staged types are those of the expected rows"""
    hashing: Hashing
    expected: Side
    """of rows as they are staged, not of their hashes"""
    found: Side
    loaded: Loaded | None
    """what the last load knew of the source's columns"""

    def stage(self, ranges: KeyRanges, attempt_id: str, prepare: Prepare) -> Staged:
        self._refuse_drift()
        shape = mark_column(self.shape, MARK_TYPE) if self.sync.is_soft else self.shape
        prepare(shape)
        shape = replace(shape, deleted=None if self.sync.is_soft else DELETED)
        place = staging_place(self.context, self.sync.target, shape, attempt_id)
        destination: PostgresDestination = self.context.postgres_destination(self.sync.target)
        write_id = new_write_id()
        names = [name for name, _ in shape.staged]
        sides = (
            (self.expected.connection, self._rows(ranges)),
            (self.found.connection, self._marked() if self.sync.is_soft else self._gone()),
        )
        with destination.open() as session, session.transaction():
            session.execute(place.create_statement(write_id))
            reach("stage.write")
            rows = sum(
                copy_rows(connection, query, session, place.table(write_id), names)
                for connection, query in sides
            )
        reach("stage.written")
        return Staged(shape, (StagedWrite(write_id, rows),))

    def _refuse_drift(self) -> None:
        """To change the target would wait for the snapshot in which it is being compared."""
        relation = self.table.relation
        evolution = find_evolution(
            self.found.connection, relation, self.shape, self.sync.rules, self.loaded
        )
        if evolution is not None and evolution.is_needed:
            raise columns_changed(self.sync, evolution.notes, "repair it")

    def _rows(self, ranges: KeyRanges) -> sql.Composed:
        key = key_text([sql.Identifier("e", name) for name in self.shape.key])
        return sql.SQL("SELECT {}, {} FROM ({}) e WHERE {}").format(
            sql.SQL(", ").join(sql.Identifier("e", name) for name in self.shape.names),
            sql.SQL(f"NULL::{MARK_TYPE}" if self.sync.is_soft else "false"),
            self.expected.rows,
            self.hashing.within(ranges, key),
        )

    def _marked(self) -> sql.Composed:
        """Rows that are too many stay as they are, but for the mark."""
        columns = [
            sql.SQL("{}::{}").format(value, sql.SQL(column.staged_type))
            for value, column in zip(
                target_columns(self.table, self.shape.names, self.shape),
                self.shape.columns,
                strict=True,
            )
        ]
        key = target_columns(self.table, self.shape.key, self.shape)
        return sql.SQL(
            "SELECT {}, clock_timestamp() FROM {} t"
            " WHERE {} IN (SELECT k FROM {} WHERE what = 'extra')"
        ).format(sql.SQL(", ").join(columns), qualified(self.table.relation), key_text(key), FOUND)

    def _gone(self) -> sql.Composed:
        """Of the rows that are too many nothing but the key is needed."""
        key = dict(
            zip(self.shape.key, target_columns(self.table, self.shape.key, self.shape), strict=True)
        )
        columns = [
            sql.SQL("{}::{}").format(
                key.get(column.name, sql.SQL("NULL")), sql.SQL(column.staged_type)
            )
            for column in self.shape.columns
        ]
        return sql.SQL(
            "SELECT {}, true FROM {} t WHERE {} IN (SELECT k FROM {} WHERE what = 'extra')"
        ).format(
            sql.SQL(", ").join(columns),
            qualified(self.table.relation),
            key_text(list(key.values())),
            FOUND,
        )
