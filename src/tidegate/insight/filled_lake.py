"""A lake's table that somebody else has filled, looked at without Spark and a file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from tidegate.destinations.lake_target import find_changes
from tidegate.errors import DestinationError, DriftRefused
from tidegate.insight.filled_target import Extent
from tidegate.lake import statements
from tidegate.lake.catalog import Catalog
from tidegate.lake.reading import main_rows
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.cursor import CursorType
from tidegate.model.lake import LakeTable
from tidegate.model.rules import Drift
from tidegate.model.sync import Sync
from tidegate.pipeline.declaration import lake_shape
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

if TYPE_CHECKING:
    import pyarrow as pa

# As many keys as are held in memory at once to see whether one occurs twice.
MOST_KEYS = 5_000_000
_CURSORS = {
    "timestamp": CursorType.TIMESTAMPTZ,
    "timestamp_ntz": CursorType.TIMESTAMP,
    "date": CursorType.DATE,
    "int": CursorType.INTEGER,
    "bigint": CursorType.BIGINT,
}


@dataclass(frozen=True, slots=True)
class FilledLake:
    """The table, and what a sync would want of it."""

    catalog: Catalog
    sync: Sync
    source: PostgresSource
    table: LakeTable | None

    def problems(self) -> list[str]:
        """Everything that keeps the sync from going on with this table, each with a way out."""
        name, table = self.sync.name, self.table
        if table is None:
            return [f"it does not exist; tidegate run {name} makes and fills it"]
        if table.rows() == 0:
            return [f"it is empty; tidegate run {name} fills it"]
        missing = [one for one in self.source.key if table.field(one) is None]
        problems = self._column_problems(table, missing)
        if missing or not self.source.key:
            return problems
        return [*problems, *self._key_problems(table)]

    def count(self) -> int:
        assert self.table is not None
        found = main_rows(self.catalog, self.table.relation)
        return 0 if found is None else found.count()

    def warnings(self) -> list[str]:
        """What was not looked at."""
        if self.table is None or not self.source.key or self.table.rows() <= MOST_KEYS:
            return []
        return [
            f"whether ({', '.join(self.source.key)}) is unique among the {self.table.rows():,} "
            f"rows was not looked at: more than {MOST_KEYS:,} do not fit into memory; a key that "
            "is there twice stops the next merge"
        ]

    def extent(self, connection: Connection, watermarks: Watermarks) -> Extent | None:
        """The highest cursor value of the table and the next lower one."""
        assert self.table is not None
        column, wanted = self.source.ordered_by.name, self.source.ordered_by.type
        known = self.table.field(column)
        kind = None if known is None else _CURSORS.get(known.type)
        if kind is None or (kind is not wanted and not (kind.is_integer and wanted.is_integer)):
            return None
        values: list[Any] = []
        for batch in self._batches([column]):
            values = _highest_two([*values, *_batch_highest(batch.column(0))])
        texts = [watermarks.compare(connection, _text(v), _text(v), wanted)[1] for v in values]
        highest, below = (*texts, None, None)[:2]
        return Extent(highest, below)

    def _batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        assert self.table is not None
        found = main_rows(self.catalog, self.table.relation)
        for _, batch in () if found is None else found.batches(names):
            yield batch

    def _column_problems(self, table: LakeTable, missing: list[str]) -> list[str]:
        if self.sync.transform is not None:
            # What a transformation makes is known when it runs.
            return [f"it has no column {name}, which is part of the key" for name in missing]
        try:
            added, widened = find_changes(table, lake_shape(self.source))
        except DriftRefused as error:
            return [error.message]
        problems: list[str] = []
        if added:
            names = ", ".join(name for name, _ in added)
            problems.append(
                f"it has no column {names}: "
                + statements.add_columns(self.catalog, table.relation, added)
            )
        if widened and self.sync.rules.drift is Drift.FREEZE:
            problems += [
                f'its column {name} is narrower than {kind}, and drift = "freeze" keeps it so'
                for name, kind in widened
            ]
        return problems

    def _key_problems(self, table: LakeTable) -> list[str]:
        """Rows without a key, and keys that occur twice, as far as they fit into memory."""
        import pyarrow as pa
        import pyarrow.compute as pc

        key = self.source.key
        nulls, kept = 0, []
        looks = table.rows() <= MOST_KEYS
        for batch in self._batches(key):
            rows = pa.Table.from_batches([batch]).select(list(key))
            present = rows.drop_null()
            nulls += rows.num_rows - present.num_rows
            if looks:
                kept.append(present)
        words = ", ".join(key)
        problems = []
        if nulls:
            problems.append(
                f"{nulls:,} of its rows have no value in the key ({words}); fill it in or delete "
                "them"
            )
        if kept:
            counts = pa.concat_tables(kept).group_by(list(key)).aggregate([([], "count_all")])
            twice = counts.filter(pc.greater(counts["count_all"], 1))
            if twice.num_rows:
                surplus = pc.sum(twice["count_all"]).as_py() - twice.num_rows
                example = twice.sort_by([(name, "ascending") for name in key]).to_pylist()[0]
                value = ",".join(str(example[name]) for name in key)
                problems.append(
                    f"{twice.num_rows:,} keys ({words}) occur more than once, such as ({value}), "
                    f"{example['count_all']} times; delete the {surplus:,} rows too many"
                )
        return problems


def _batch_highest(column: pa.Array) -> list[Any]:
    import pyarrow.compute as pc

    highest = pc.max(column)
    if not highest.is_valid:
        return []
    below = pc.max(column.filter(pc.less(column, highest)))
    return [_value(one) for one in (highest, below) if one.is_valid]


def _highest_two(values: list[Any]) -> list[Any]:
    return sorted(set(values), reverse=True)[:2]


def _value(found: Any) -> Any:
    try:
        return found.as_py()
    except (ValueError, OverflowError):
        raise DestinationError(
            "the table's highest cursor value lies beyond the year 9999",
            "say where to go on with --at VALUE",
        ) from None


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime | date) else str(value)
