"""A target that was loaded once, and rows of another shape on their way to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from integration.conftest import Database
from integration.destination_harness import load
from integration.postgres_harness import PostgresHarness, make_shape
from tidegate.config.sync import DriftPolicy, Rules
from tidegate.core.errors import DestinationError
from tidegate.core.shape import Shape, record_columns

BEFORE = "id integer, name text, n integer, c bigint"
EVOLVE, FREEZE = Rules(), Rules(drift=DriftPolicy.FREEZE)


def columns(text: str, *, not_null: str = "", key: str = "id") -> Shape:
    """A shape; `not_null` names the columns that are so."""
    shape = make_shape(text, key, "c", unique=True)
    marked = not_null.split()
    return replace(
        shape,
        columns=tuple(replace(one, not_null=one.name in marked) for one in shape.columns),
    )


@dataclass
class Target:
    """A target that was loaded once, and rows of another shape on their way to it."""

    harness: PostgresHarness

    def prepare(self, shape: Shape, rules: Rules | None = None, **options: Any) -> tuple[str, ...]:
        harness = self.harness
        rules = replace(rules or EVOLVE, mode=harness.rules.mode)
        notes = harness.destination.prepare(shape, harness.watermark(), rules, **options)
        harness.shape = shape
        return notes

    def load(self, shape: Shape, *rows: tuple[Any, ...], high: int = 20) -> tuple[str, ...]:
        """Prepare and load, and remember the columns as a real load does."""
        notes = self.prepare(shape)
        load(self.harness, *rows, high=high)
        self.record(shape)
        return notes

    def record(self, shape: Shape) -> None:
        with self.harness.database.connect() as connection:
            connection.execute(
                "UPDATE tidegate.etl_state SET declaration = %s WHERE table_name = %s",
                (psycopg.types.json.Jsonb({"columns": record_columns(shape)}), self.harness.table),
            )

    def refused(self, shape: Shape, rules: Rules, **options: Any) -> str:
        """The refusal; the target is as it was."""
        before = self.columns()
        with pytest.raises(DestinationError) as raised:
            self.prepare(shape, rules, **options)
        assert self.columns() == before
        return str(raised.value)

    def columns(self) -> dict[str, tuple[str, bool]]:
        """Type and NOT NULL of every column that the physical table has."""
        rows = self.harness.database.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE"
            f" attrelid = '{self.harness.physical}'::regclass AND attnum > 0 AND NOT attisdropped"
        )
        return {name: (kind, not_null) for name, kind, not_null in rows}

    def rows(self, names: str) -> list[tuple[Any, ...]]:
        return self.harness.database.execute(
            f"SELECT {names} FROM {self.harness.table} ORDER BY id"
        )

    def filenode(self) -> int:
        return int(
            self.harness.database.value(f"SELECT pg_relation_filenode('{self.harness.physical}')")
        )


def loaded(database: Database, shape: Shape, *rows: tuple[Any, ...], **options: Any) -> Target:
    """A target made for a shape and loaded with rows."""
    target = Target(PostgresHarness(database, shape, **options))
    load(target.harness, *rows, high=10)
    target.record(shape)
    return target
