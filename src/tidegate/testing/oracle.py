"""What the target must hold, Postgres or Iceberg."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Endpoint, Relation, Table
from tidegate.core.watermark import NullPolicy
from tidegate.iceberg.jars import lake_conf
from tidegate.iceberg.metadata import file_io, lake_table, read_metadata
from tidegate.iceberg.rows import SnapshotRows
from tidegate.iceberg.staged_files import has_files
from tidegate.iceberg.table import MAIN, IcebergTable
from tidegate.ledger.iceberg import Intents, StagedFolders
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import qualified
from tidegate.verify.iceberg_rows import copy_to_postgres, field_kinds

Row = tuple[str | None, ...]
Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TableContent:
    """Rows as text, by key; without a key every row is its own."""

    columns: tuple[str, ...]
    rows: dict[Key, Counter[Row]]

    @property
    def total(self) -> int:
        return sum(sum(rows.values()) for rows in self.rows.values())


@dataclass(frozen=True, slots=True)
class Rule:
    """What a mode makes of the rows of a source without a transformation."""

    expect: Callable[[Sync, Table, Sequence[Row]], Iterable[Row]]
    keyed: bool = True
    replays_changes: bool = True


def _one_per_key(sync: Sync, table: Table, rows: Sequence[Row]) -> Iterable[Row]:
    """The last version of every row; where keys may repeat, the newest of each."""
    if sync.duplicates != "newest" or sync.cursor is None:
        return rows
    names = table.column_names
    key = [names.index(name) for name in sync.key or table.primary_key]
    newest: dict[Key, Row] = {}
    for row in rows:  # ordered by cursor: the last one of a key is its newest
        newest[tuple(row[place] for place in key)] = row
    return newest.values()


def _all(sync: Sync, table: Table, rows: Sequence[Row]) -> Iterable[Row]:
    return rows


# The only place that knows the modes. Appending keeps every version of a row that it saw, so
# changes are not replayed there; without a key rows are compared as a whole.
_RULES = {
    "merge": Rule(_one_per_key),
    "delete_insert": Rule(_one_per_key),
    "replace": Rule(_all, keyed=False),
    "append": Rule(_all, keyed=False, replays_changes=False),
}


def rule_of(sync: Sync) -> Rule:
    """The rule of a sync's mode; a mode without one is refused."""
    rule = _RULES.get(sync.mode)
    if rule is None:
        raise DeclarationError(
            f'sync {sync.name}: what mode = "{sync.mode}" must give is not known here',
            f"prove a sync with one of the modes {', '.join(_RULES)}",
        )
    return rule


def needs_clean_pass(sync: Sync) -> bool:
    """Whether only a clean pass can say what comes out: the user's own code has a part in it."""
    own = ("checks", "before_sql", "after_sql")
    return sync.transform is not None or any(getattr(sync, name, ()) for name in own)


def expected_content(
    source: Connection, sync: Sync, table: Table, key: Sequence[str]
) -> TableContent:
    """What one clean pass gives without a transformation: the source's rows, by plain SQL."""
    rule = rule_of(sync)
    conditions: list[sql.Composable] = []
    order: sql.Composable = sql.SQL("")
    if where := getattr(sync, "where", None):
        conditions.append(sql.SQL("({})").format(sql.SQL(where)))
    if sync.cursor is not None:
        order = sql.SQL(" ORDER BY {} NULLS LAST, ROW(t.*)::text").format(
            sql.Identifier(sync.cursor)
        )
        if sync.null_cursor is NullPolicy.EXCLUDE:
            conditions.append(sql.SQL("{} IS NOT NULL").format(sql.Identifier(sync.cursor)))
    rows = source.execute(
        sql.SQL("SELECT {} FROM {} t WHERE {}{}").format(
            _texts(table.column_names),
            qualified(table.relation),
            sql.SQL(" AND ").join(conditions or [sql.SQL("true")]),
            order,
        )
    ).fetchall()
    declared = declared_columns(sync, table)
    places = [table.column_names.index(name) for name in declared]
    chosen = [tuple(row[place] for place in places) for row in rule.expect(sync, table, rows)]
    return make_content(declared, chosen, key if rule.keyed else ())


def declared_columns(sync: Sync, table: Table) -> tuple[str, ...]:
    """The columns that the sync takes along."""
    chosen = getattr(sync, "columns", None) or table.column_names
    without = getattr(sync, "exclude_columns", None) or ()
    return tuple(name for name in table.column_names if name in chosen and name not in without)


def target_content(
    target: Connection, relation: Relation, key: Sequence[str], columns: Sequence[str] | None = None
) -> TableContent:
    """What is in the target; a table that is not there holds nothing."""
    table = describe_table(target, relation)
    if table is None:
        return TableContent(tuple(columns or ()), {})
    names = tuple(columns) if columns is not None else table.column_names
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DeclarationError(f"{relation} has no column {', '.join(missing)}", None)
    rows = target.execute(
        sql.SQL("SELECT {} FROM {}").format(_texts(names), qualified(relation))
    ).fetchall()
    return make_content(names, rows, key)


def _texts(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)


def make_content(names: Sequence[str], rows: Iterable[Row], key: Sequence[str]) -> TableContent:
    """Rows that were read as text, under their keys."""
    places = [names.index(name) for name in key] or range(len(names))
    found: dict[Key, Counter[Row]] = defaultdict(Counter)
    for row in rows:
        found[tuple(row[place] for place in places)][row] += 1
    return TableContent(tuple(names), dict(found))


@dataclass(slots=True)
class ContentDifference:
    """How a target differs from what was expected, counted in rows, with the keys concerned."""

    lost: list[Key] = field(default_factory=list)
    doubled: list[Key] = field(default_factory=list)
    different: list[Key] = field(default_factory=list)
    extra: list[Key] = field(default_factory=list)
    columns: tuple[str, ...] = ()  # in which the first different row differs

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.different or self.extra)

    @property
    def keys(self) -> list[Key]:
        return [*self.lost, *self.doubled, *self.different, *self.extra]

    @property
    def only_extra(self) -> bool:
        return bool(self.extra) and not (self.lost or self.doubled or self.different)

    def __str__(self) -> str:
        text = f"{len(self.lost)} lost, {len(self.doubled)} doubled"
        text += f", {len(self.different)} different" if self.different else ""
        return text + (f", {len(self.extra)} that should not be there" if self.extra else "")


def compare(expected: TableContent, found: TableContent) -> ContentDifference:
    """Row by row as multisets under each key."""
    result = ContentDifference()
    for key in expected.rows.keys() | found.rows.keys():
        wanted, there = expected.rows.get(key, Counter()), found.rows.get(key, Counter())
        missing, surplus = wanted - there, there - wanted
        pairs = min(missing.total(), surplus.total())
        if pairs and not result.columns:
            first, second = next(iter(missing)), next(iter(surplus))
            result.columns = tuple(
                name
                for name, one, other in zip(expected.columns, first, second, strict=True)
                if one != other
            )
        result.different += [key] * pairs
        result.lost += [key] * (missing.total() - pairs)
        more = result.doubled if wanted else result.extra
        more += [key] * (surplus.total() - pairs)
    for keys in (result.lost, result.doubled, result.different, result.extra):
        keys.sort(key=lambda key: [(value is None, _number(value), value or "") for value in key])
    return result


def _number(value: str | None) -> float:
    try:
        return float(value or "")
    except ValueError:
        return 0.0


def embedded_lake(folder: Path) -> dict[str, Any]:
    """A lake of one's own in place of a declared one, whatever catalog that has."""
    return {"type": "iceberg", "catalog": "embedded", "warehouse": folder.absolute().as_uri()}


def trial_conf(context: Context) -> dict[str, str]:
    """What Spark must start with for trials, whose lakes are embedded ones."""
    settings = context.settings
    has_lake = any(settings.is_lake(name) for name in settings.connections)
    return lake_conf(settings.spark.conf, postgres=True) if has_lake else {}


def read_lake(context: Context, target: Endpoint) -> list[dict[str, Any]]:
    """The rows of a lake's table as Python values; a table that is not there has none."""
    catalog = context.catalog(target.connection)
    metadata = read_metadata(catalog, target.relation)
    if metadata is None:
        return []
    rows = SnapshotRows(catalog, target.relation, metadata, metadata.current_snapshot_id)
    names = [one.name for one in metadata.schema().fields]
    return [row for _, batch in rows.batches(names) for row in batch.to_pylist()]


@dataclass(frozen=True, slots=True)
class LakeTrial:
    """Looks at the target of a sync, without Spark."""

    context: Context
    sync: Sync

    def content(self, key: Sequence[str], columns: Sequence[str] | None = None) -> TableContent:
        """What main holds; its values are printed by Postgres, as the source's are."""
        relation = self.sync.target.relation
        catalog = self.context.catalog(self.sync.target.connection)
        metadata = read_metadata(catalog, relation)
        if metadata is None:
            return TableContent(tuple(columns or ()), {})
        table = lake_table(relation, metadata)
        names = tuple(columns if columns is not None else (one.name for one in table.fields))
        missing = [name for name in names if table.field(name) is None]
        if missing:
            raise DeclarationError(f"{relation} has no column {', '.join(missing)}", None)
        rows = SnapshotRows(catalog, relation, metadata, table.main)
        with (
            self._session() as connection,
            copy_to_postgres(connection, "tidegate_trial", field_kinds(table, names)) as found,
        ):
            found.fill(batch for _, batch in rows.batches(names))
            texts = (sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
            printed = connection.execute(
                sql.SQL("SELECT {} FROM ({}) t").format(sql.SQL(", ").join(texts), found.rows)
            ).fetchall()
        return make_content(names, printed, key)

    def leftovers(self) -> list[str]:
        """What should not be there once a run has come to its end."""
        relation = self.sync.target.relation
        metadata = read_metadata(self.context.catalog(self.sync.target.connection), relation)
        if metadata is None:
            return []
        table = lake_table(relation, metadata)
        left = [f"branch {name}" for name in table.refs if name != MAIN]
        with self._session() as connection:
            return [*left, *self._unsettled(connection), *self._unrecorded(connection, table)]

    def _unsettled(self, connection: Connection) -> Iterator[str]:
        ledger = self.context.ledger(self.sync.target.connection)
        name = str(self.sync.target.relation)
        for intent in Intents(ledger).of_table(connection, name):
            if not intent.abandoned:
                yield f"the intent to publish {intent.update_id}"
        catalog = self.context.catalog(self.sync.target.connection)
        for one in StagedFolders(ledger).of_table(connection, name):
            # A folder of the dead stays noted for a while, in case that they still write.
            if not one.adopted and has_files(
                file_io(catalog, one.location), one.location, one.folder
            ):
                yield f"staged files of attempt {one.attempt_id}"

    def _unrecorded(self, connection: Connection, table: IcebergTable) -> Iterator[str]:
        ledger = self.context.ledger(self.sync.target.connection)
        loads = {one.update_id for one in table.ancestors() if one.update_id is not None}
        watermark = Watermarks(ledger).get(connection, self.sync.pipeline, str(table.relation))
        if watermark.update_id is not None:
            loads.add(watermark.update_id)
        for update_id in sorted(loads):
            if not Markers(ledger).exists(connection, update_id, table.relation):
                yield f"load {update_id} without a marker"

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        with self.context.databases.connect(self.sync.target.connection) as connection:
            yield connection
