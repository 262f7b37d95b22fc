"""A filled table, Postgres or Iceberg, examined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql

from tidegate.config.sync import DriftPolicy, Sync
from tidegate.core.errors import DestinationError, DriftRefused, UsageError
from tidegate.core.relation import RelationKind, Table
from tidegate.core.watermark import CursorType
from tidegate.iceberg import statements
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.rows import main_rows
from tidegate.iceberg.table import IcebergTable
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.resolve import lake_shape, passthrough_shape
from tidegate.load.targets.iceberg.table import find_changes
from tidegate.load.targets.postgres.table import check_target
from tidegate.postgres.catalog import describe_table, is_empty
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, qualified

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the rows of a table reach: the highest cursor, and the next one below it."""

    highest: str | None
    below: str | None


def find_problems(connection: Connection, sync: Sync, source: PostgresSource) -> list[str]:
    """Everything that keeps the sync from going on with this table, each with a way out."""
    relation = sync.target.relation
    table = describe_table(connection, relation)
    if table is None:
        return [f"it does not exist; tidegate run {sync.name} makes and fills it"]
    if table.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        return ["it is not a table; choose another target"]
    if is_empty(connection, qualified(relation)):
        return [f"it is empty; tidegate run {sync.name} fills it"]
    missing = [name for name in source.key if table.column(name) is None]
    problems = _column_problems(connection, sync, source, table, missing)
    if missing or not source.key:
        return problems
    return [*problems, *_key_problems(connection, source, table)]


def read_extent(connection: Connection, table: Table, cursor: str, kind: CursorType) -> Extent:
    """The highest cursor value of a table and the next lower one that is not infinite."""
    column = sql.Identifier(cursor)
    finite = sql.SQL("true" if kind.is_number else "isfinite({})").format(column)
    row = connection.execute(
        sql.SQL(
            "WITH top AS (SELECT max({column}) AS value FROM {table})"
            " SELECT (SELECT value FROM top)::text,"
            " (SELECT max({column}) FROM {table}"
            " WHERE {column} < (SELECT value FROM top) AND {finite})::text"
        ).format(column=column, table=qualified(table.relation), finite=finite)
    ).fetchone()
    assert row is not None
    return Extent(row[0], row[1])


def count_target(connection: Connection, table: Table) -> int:
    row = connection.execute(
        sql.SQL("SELECT count(*) FROM {}").format(qualified(table.relation))
    ).fetchone()
    assert row is not None
    return int(row[0])


def _column_problems(
    connection: Connection, sync: Sync, source: PostgresSource, table: Table, missing: list[str]
) -> list[str]:
    if sync.transform is None:
        try:
            check_target(
                connection, table.relation, table, passthrough_shape(connection, source), sync.rules
            )
        except DestinationError as error:
            return [error.message]
        return []
    # What a transformation makes is known when it runs; the key it must keep is known now.
    problems = [f"it has no column {name}, which is part of the key" for name in missing]
    wanted = set(source.key)
    if not missing and not any(set(unique) == wanted for unique in table.unique_keys):
        problems.append(
            f"it has no unique index on ({', '.join(source.key)}): "
            + sql.SQL("ALTER TABLE {} ADD UNIQUE ({})")
            .format(qualified(table.relation), column_list(source.key))
            .as_string(connection)
        )
    return problems


def _key_problems(connection: Connection, source: PostgresSource, table: Table) -> list[str]:
    problems: list[str] = []
    key = ", ".join(source.key)
    nulls = _count_null_keys(connection, source.key, table)
    if nulls:
        problems.append(
            f"{nulls:,} of its rows have no value in the key ({key}); fill it in or delete them"
        )
    if not table.proves_unique(source.key):
        duplicate = _find_duplicates(connection, source.key, table)
        if duplicate is not None:
            example, times, keys, surplus = duplicate
            problems.append(
                f"{keys:,} keys ({key}) occur more than once, such as {example}, {times} times; "
                f"delete the {surplus:,} rows too many before the index is made, for example all "
                "but the newest of each: " + _delete_surplus(connection, source, table)
            )
    return problems


def _count_null_keys(connection: Connection, key: tuple[str, ...], table: Table) -> int:
    columns = [table.column(name) for name in key]
    nullable = [column.name for column in columns if column and not column.not_null]
    if not nullable:
        return 0
    missing = sql.SQL(" OR ").join(
        sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in nullable
    )
    row = connection.execute(
        sql.SQL("SELECT count(*) FROM {} WHERE {}").format(qualified(table.relation), missing)
    ).fetchone()
    assert row is not None
    return int(row[0])


def _find_duplicates(
    connection: Connection, key: tuple[str, ...], table: Table
) -> tuple[str, int, int, int] | None:
    """(an example, how often it occurs, how many keys, how many rows too many)."""
    names = column_list(key)
    present = sql.SQL(" AND ").join(
        sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in key
    )
    return connection.execute(
        sql.SQL(
            "SELECT ROW({names})::text, count(*), count(*) OVER (),"
            " (sum(count(*)) OVER () - count(*) OVER ())::bigint"
            " FROM {table} WHERE {present} GROUP BY {names} HAVING count(*) > 1"
            " ORDER BY 1 LIMIT 1"
        ).format(names=names, table=qualified(table.relation), present=present)
    ).fetchone()


def _delete_surplus(connection: Connection, source: PostgresSource, table: Table) -> str:
    same = sql.SQL(" AND ").join(
        sql.SQL("old.{name} = new.{name}").format(name=sql.Identifier(name)) for name in source.key
    )
    place = ["tableoid", "ctid"] if table.kind is RelationKind.PARTITIONED else ["ctid"]
    cursor = [source.ordered_by.name] if table.column(source.ordered_by.name) is not None else []
    order = [*cursor, *place]
    return (
        sql.SQL("DELETE FROM {table} old USING {table} new WHERE {same} AND ({old}) < ({new})")
        .format(
            table=qualified(table.relation),
            same=same,
            old=column_list(order, "old"),
            new=column_list(order, "new"),
        )
        .as_string(connection)
    )


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
    table: IcebergTable | None

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

    def _column_problems(self, table: IcebergTable, missing: list[str]) -> list[str]:
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
        if widened and self.sync.rules.drift is DriftPolicy.FREEZE:
            problems += [
                f'its column {name} is narrower than {kind}, and drift = "freeze" keeps it so'
                for name, kind in widened
            ]
        return problems

    def _key_problems(self, table: IcebergTable) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where a person wants an adopted sync to go on from."""

    at: str | None = None
    from_target_max: bool = False
    back: str | None = None

    @property
    def is_given(self) -> bool:
        return self.at is not None or self.from_target_max


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was, or would be, taken over; `rows_above` are those the next run loads."""

    sync: str
    target: str
    rows: int
    target_max: str | None
    watermark: str
    cursor_type: CursorType
    rows_above: int
    rows_above_are_exact: bool
    warnings: tuple[str, ...]
    reason: str
    adopted: bool = False


def check_point(name: str, point: StartingPoint) -> None:
    """Refuse options that contradict each other."""
    if point.at is not None and point.from_target_max:
        raise UsageError("--at and --from-target-max were both given", "give one of them")
    if point.back is not None and not point.from_target_max:
        raise UsageError(
            "--back goes with --from-target-max",
            f"tidegate adopt {name} --from-target-max --back …",
        )


def check_mode(name: str, mode: str, key: tuple[str, ...] | None, point: StartingPoint) -> None:
    """Refuse to adopt where the rows of an overlap would be lost or doubled.

    Where the former loader stopped, the last cursor value may be half there. A mode that replaces
    rows by key reads it again and absorbs what it knows. A plain append has no key to know rows
    by, so only a person can say up to where the table is complete.
    """
    if mode == "replace":
        raise UsageError(
            f'sync {name}: mode = "replace" loads the whole table each time, so there is nothing '
            "to go on from",
            f"just run it: tidegate run {name}",
        )
    if mode != "append":
        return
    if key:
        raise UsageError(
            f'sync {name}: mode = "append" with a key keeps its rows in a table of its own, behind '
            "a view, and cannot take over another's",
            'use mode = "merge" for this table, or choose another target',
        )
    if point.from_target_max:
        raise UsageError(
            f'sync {name}: mode = "append" cannot go on from the highest value of the target: rows '
            "that share it would be skipped or doubled",
            "delete the rows of that value from the target, then give the one below it with --at",
        )
