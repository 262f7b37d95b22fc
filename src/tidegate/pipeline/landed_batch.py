"""A batch of landed changes: its table, its columns as they were, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.destinations.destination import Destination
from tidegate.errors import DeclarationError
from tidegate.model.column import Column
from tidegate.model.shape import Shape, StagedColumn
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.landed_fold import LandedFold
from tidegate.pipeline.landing import Landed, landing_table
from tidegate.pipeline.landing_table import DELETED, DELETED_AT
from tidegate.postgres.catalog import describe_columns
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """A batch of landed changes, and where it goes."""

    landed: Landed
    destination: Destination
    context: Context
    sync: Sync
    source: PostgresSource
    """with the columns that the changes had"""
    full: bool
    soft: bool
    attempt_id: str

    @property
    def table(self) -> sql.Identifier:
        return landing_table(self.landed, self.destination, self.attempt_id)

    def fold(self, connection: Connection, kinds: Mapping[str, str]) -> LandedFold:
        """What folds the landing table in place; `kinds` are the types of the target's columns."""
        key = self.source.key
        return LandedFold(
            connection=connection,
            table=self.table,
            landed=self.landed,
            key=key,
            kinds=tuple(kinds[name] for name in key),
            soft=self.soft,
        )

    @property
    def marks_all(self) -> bool:
        """Whether what the target holds is to be marked as deleted."""
        return self.soft and self.landed.emptied_at is not None

    def complete(self, shape: Shape, moment_type: str) -> Shape:
        """The shape with what deletes add to it."""
        if not self.soft:
            gone = self.landed.deletes and not self.full
            return replace(shape, deleted=DELETED if gone else None)
        if DELETED_AT in shape.names:
            raise DeclarationError(
                f"sync {self.sync.name}: its rows have a column {DELETED_AT} of their own, which "
                'deletes = "soft" fills',
                'rename it, leave it out with exclude_columns, or use deletes = "hard"',
            )
        added = StagedColumn(DELETED_AT, moment_type, moment_type)
        return replace(shape, columns=(*shape.columns, added))


def landed_columns(
    connection: Connection, source: PostgresSource, landed: Landed
) -> tuple[Column, ...]:
    """The columns that the changes had, which need not be those that the source has now."""
    if not landed.columns:
        return source.columns
    found = {
        column.name: column
        for column in describe_columns(
            connection,
            [column.name for column in landed.columns],
            [column.type_oid for column in landed.columns],
            [column.type_modifier for column in landed.columns],
        )
    }
    columns: list[Column] = []
    for one in landed.columns:
        column = found.get(one.name)
        now = source.table.column(one.name)
        if column is None:
            column = Column(one.name, "text", "text", via_text=True, not_null=False)
        columns.append(replace(column, not_null=now is not None and now.not_null))
    return tuple(columns)
