"""The source table checked, its rows and changes between snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.config.sync import Duplicates, Mode, Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import DeclarationError, SnapshotGone, SourceError
from tidegate.core.relation import Relation
from tidegate.core.watermark import Watermark
from tidegate.iceberg.catalog import Catalog, backticked, literal
from tidegate.iceberg.metadata import list_tables, read_table
from tidegate.iceberg.session import IcebergSession
from tidegate.iceberg.table import IcebergField, IcebergTable, Snapshot, is_flat
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_other_source
from tidegate.load.sources.resolve import check_layout, check_loaded, check_supported, nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES = "tidegate_changes"
# Types whose values cannot be compared as they are, and are compared as their text.
_NESTED = ("struct<", "list<", "map<")


def rows_at(
    session: IcebergSession,
    table: IcebergTable,
    columns: Sequence[IcebergField],
    snapshot: int | None,
) -> str:
    """The rows at a snapshot, in the names and types that the columns have now."""
    name = session.catalog.quoted(table.relation)
    if snapshot is None:
        names = ", ".join(backticked(one.name) for one in columns)
        return f"SELECT {names} FROM {name} LIMIT 0"
    before = table.names_at(snapshot)
    parts = ", ".join(_as_now(one, before.get(one.field_id)) for one in columns)
    return f"SELECT {parts} FROM {name} VERSION AS OF {snapshot}"


def added_rows(
    session: IcebergSession,
    table: IcebergTable,
    columns: Sequence[IcebergField],
    low: int,
    high: int,
) -> DataFrame:
    """The rows that appends have brought after one snapshot, up to another."""
    return (
        session.spark.read.option("start-snapshot-id", str(low))
        .option("end-snapshot-id", str(high))
        .table(session.catalog.quoted(table.relation))
        .select(*(backticked(one.name) for one in columns))
    )


def changed_rows(old: str, new: str, columns: Sequence[IcebergField], key: Sequence[str]) -> str:
    """The rows that are new or not as they were, from the whole table at both moments."""
    same = _same(key)
    others = [one for one in columns if one.name not in key]
    equal = "".join(f" AND {_comparable('n', one)} <=> {_comparable('o', one)}" for one in others)
    return f"SELECT n.* FROM ({new}) n LEFT ANTI JOIN ({old}) o ON {same}{equal}"


def gone_keys(old: str, new: str, key: Sequence[str]) -> str:
    """The keys that were there and are not any more."""
    names = ", ".join(f"o.{backticked(name)}" for name in key)
    return f"SELECT {names} FROM ({old}) o LEFT ANTI JOIN ({new}) n ON {_same(key)}"


def open_changelog(session: IcebergSession, relation: Relation, low: int, high: int) -> None:
    """Make Iceberg's own view of what changed; rows that came and went are not in it."""
    session.run(
        f"CALL {backticked(session.catalog.name)}.system.create_changelog_view("
        f"table => {literal(session.catalog.procedure_name(relation))}, "
        f"changelog_view => {literal(_CHANGES)}, "
        f"options => map('start-snapshot-id', '{low}', 'end-snapshot-id', '{high}'), "
        "net_changes => true)"
    )


def changelog_rows(columns: Sequence[str], change: str) -> str:
    """What the open changelog says was inserted or deleted."""
    names = ", ".join(map(backticked, columns))
    return f"SELECT {names} FROM {_CHANGES} WHERE _change_type = {literal(change)}"


def _as_now(column: IcebergField, name: str | None) -> str:
    value = "NULL" if name is None else backticked(name)
    if is_flat(column.type):
        value = f"CAST({value} AS {column.type})"
    return f"{value} AS {backticked(column.name)}"


def _comparable(alias: str, column: IcebergField) -> str:
    name = f"{alias}.{backticked(column.name)}"
    return f"to_json({name})" if column.type.startswith(_NESTED) else name


def _same(key: Sequence[str]) -> str:
    return " AND ".join(f"n.{backticked(name)} = o.{backticked(name)}" for name in key)


_ADDED = "added-records"
_DELETES = "total-delete-files"


@dataclass(frozen=True, slots=True)
class SnapshotChanges:
    """The rows of a batch, and the keys that are gone; None where nothing can have gone."""

    rows: DataFrame
    gone: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class IcebergTableReader:
    """One table of a lake as a sync reads it; `table` is what was known when it was resolved."""

    catalog: Catalog
    table: IcebergTable
    columns: tuple[IcebergField, ...]
    key: tuple[str, ...]
    mode: Mode
    batch_rows: int
    sync_name: str

    @property
    def identity(self) -> str:
        """What stays the same while it is the same table, whatever its name."""
        return f"{self.catalog.identity}/{self.table.relation}/{self.table.uuid}"

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.table.fields)

    def read(self) -> IcebergTable:
        """The table as it is now; refuses another one under the same name."""
        table = read_table(self.catalog, self.table.relation)
        if table is None or table.uuid != self.table.uuid:
            raise SourceError(
                f"sync {self.sync_name}: {self._name} was dropped while it was being read",
                "run again",
            )
        return table

    def waiting(self, table: IcebergTable, value: str) -> list[Snapshot]:
        """What the table has gone through since the snapshot that was loaded last."""
        found = table.since(int(value)) if value.isdigit() else None
        if found is not None:
            return found
        if value.isdigit() and int(value) in table.snapshots:
            what = (
                f"{self._name} was rolled back: the snapshot {value}, which was loaded last, is "
                "no longer part of main"
            )
        else:
            what = (
                f"{self._name} no longer knows the snapshot {value}, which was loaded last: it "
                "has expired"
            )
        raise SnapshotGone(
            f"sync {self.sync_name}: {what}, so what changed since cannot be told",
            "to load everything again, and remove what is gone: tidegate run "
            f"{self.sync_name} --full-refresh",
        )

    def next_batch(self, table: IcebergTable, value: str | None) -> Batch | None:
        """What to load next; a long chain of snapshots is cut where it has rows enough."""
        if table.main is None or value == str(table.main):
            return None
        if value is None:
            return self.whole_batch(table, BatchKind.SNAPSHOTS)
        waiting = self.waiting(table, value)
        taken = read_changes(waiting, self.batch_rows)
        if self.mode is Mode.APPEND:
            self._refuse_changes(taken)
        return Batch(
            BatchKind.SNAPSHOTS,
            value,
            str(taken[-1].snapshot_id),
            rows=added(taken),
            is_last=len(taken) == len(waiting),
        )

    def waiting_rows(self, table: IcebergTable, value: str | None) -> int:
        """About how many rows are not loaded yet."""
        if value == (None if table.main is None else str(table.main)):
            return 0
        if value is None or self.mode is Mode.REPLACE:
            return table.rows()
        return added(self.waiting(table, value))

    def whole_batch(self, table: IcebergTable, kind: BatchKind) -> Batch:
        """Everything that main holds now."""
        high = None if table.main is None else str(table.main)
        return Batch(kind, None, high, rows=table.rows(), is_last=True)

    def is_there(self, table: IcebergTable, batch: Batch) -> bool:
        """Whether a batch that was planned before can still be read."""
        kept = {snapshot.snapshot_id for snapshot in table.ancestors()}
        return all(int(one) in kept for one in (batch.low, batch.high) if one is not None)

    def changes(
        self, session: IcebergSession, table: IcebergTable, batch: Batch
    ) -> SnapshotChanges:
        """The rows of a batch, each key once as it is at the end of it."""
        high = None if batch.high is None else int(batch.high)
        if batch.low is None or high is None:
            return SnapshotChanges(session.read(rows_at(session, table, self.columns, high)))
        low = int(batch.low)
        passed = self.passed(table, batch)
        if all(snapshot.adds_only for snapshot in passed):
            return SnapshotChanges(added_rows(session, table, self.columns, low, high))
        ends = [table.snapshots[low], *passed]
        if any(snapshot.count(_DELETES) for snapshot in ends):
            # Iceberg's changelog does not know files of deletes, so both ends are compared.
            old = rows_at(session, table, self.columns, low)
            new = rows_at(session, table, self.columns, high)
            rows = changed_rows(old, new, self.columns, self.key)
        else:
            open_changelog(session, table.relation, low, high)
            names = [one.name for one in self.columns]
            old = changelog_rows(self.key, "DELETE")
            new = rows = changelog_rows(names, "INSERT")
        gone = gone_keys(old, new, self.key)
        return SnapshotChanges(session.read(rows), session.read(gone))

    def passed(self, table: IcebergTable, batch: Batch) -> list[Snapshot]:
        """The snapshots of a batch."""
        assert batch.low is not None
        assert batch.high is not None
        found = self.waiting(table, batch.low)
        ids = [snapshot.snapshot_id for snapshot in found]
        return found[: ids.index(int(batch.high)) + 1]

    @property
    def _name(self) -> str:
        return f"{self.catalog.name}:{self.table.relation}"

    def _refuse_changes(self, snapshots: Sequence[Snapshot]) -> None:
        other = next((one for one in snapshots if not one.adds_only), None)
        if other is not None:
            raise DeclarationError(
                f"sync {self.sync_name}: the snapshot {other.snapshot_id} of {self._name} "
                f"({other.operation}) removed or changed rows, and mode append only adds",
                'declare a key and use mode = "merge", or load everything again: tidegate run '
                f"{self.sync_name} --full-refresh",
            )


def added(snapshots: Sequence[Snapshot]) -> int:
    """About how many rows they brought; what a compaction wrote again is not new."""
    return sum(one.count(_ADDED) for one in snapshots if not one.changes_nothing)


def read_changes(waiting: Sequence[Snapshot], limit: int) -> list[Snapshot]:
    """The first snapshots that together bring no more rows than the limit, one at the least."""
    taken: list[Snapshot] = []
    rows = 0
    for snapshot in waiting:
        more = added([snapshot])
        if rows and rows + more > limit:
            break
        taken.append(snapshot)
        rows += more
    return taken


def resolve_lake_source(context: Context, sync: Sync) -> IcebergTableReader:
    """The source as it can be read; refuses what is wrong before anything is written."""
    check_supported(sync)
    _refuse_meaningless(sync)
    catalog = context.catalog(sync.source.connection)
    table = read_table(catalog, sync.source.relation)
    if table is None:
        raise SourceError(
            f"table {sync.source.relation} does not exist in lake {catalog.name}",
            nearest(str(sync.source.relation), (str(one) for one in list_tables(catalog))),
        )
    key = _resolve_key(table, sync)
    columns = _resolve_columns(table, sync)
    names = [one.name for one in columns]
    check_loaded(sync, names, key)
    check_layout(sync, names)
    return IcebergTableReader(
        catalog=catalog,
        table=table,
        columns=columns,
        key=key,
        mode=sync.mode,
        batch_rows=sync.batch_rows,
        sync_name=sync.name,
    )


def lake_declaration(sync: Sync, source: IcebergTableReader, columns: Any) -> dict[str, Any]:
    """What is remembered with the watermark."""
    return {
        "columns": columns,
        "source": sync.source_name,
        "cursor": None,
        "key": list(source.key),
        "table": source.table.uuid,
    }


def refuse_changed_lake(watermark: Watermark, source: IcebergTableReader, sync: Sync) -> None:
    """Refuse to go on from what another source, key or table left."""
    before: Mapping[str, Any] = watermark.declaration or {}
    refuse_other_source(watermark, lake_declaration(sync, source, None), sync)
    known = before.get("table", source.table.uuid)
    if watermark.version == 0 or sync.mode is Mode.REPLACE or known == source.table.uuid:
        return
    raise DeclarationError(
        f"sync {sync.name}: {sync.source} is not the table that was loaded up to the snapshot "
        f"{watermark.value}: that one was dropped, and this one made anew under its name",
        f"to load all of it, and remove what is gone: tidegate run {sync.name} --full-refresh",
    )


def _refuse_meaningless(sync: Sync) -> None:
    what = f"sync {sync.name}: its source is a table of a lake"
    if sync.query is not None:
        raise DeclarationError(
            f"{what}, which a query cannot be read from",
            'name the table, such as source = "lake:raw.orders", and use a transformation',
        )
    if sync.where is not None:
        raise DeclarationError(
            f"{what}, and where is not available there",
            "leave rows out in a transformation: df.where(…)",
        )
    if sync.cursor is not None:
        raise DeclarationError(
            f"{what}, so cursor = {sync.cursor!r} means nothing: snapshots order it",
            "remove the cursor",
        )
    if sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f'{what}, which does not tell which of two rows is newer, so duplicates = "newest" '
            "means nothing",
            "choose a unique key, or fold the rows in a transformation",
        )
    if sync.mode is Mode.APPEND and sync.key:
        raise DeclarationError(
            f"{what}, from which append adds what is new without looking at a key",
            'remove the key, or use mode = "merge"',
        )


def _resolve_columns(table: IcebergTable, sync: Sync) -> tuple[IcebergField, ...]:
    names = [one.name for one in table.fields]
    for name in (*(sync.columns or ()), *sync.exclude_columns):
        _require(table, name, f"sync {sync.name}: column")
    wanted = sync.columns if sync.columns is not None else names
    found = tuple(
        one for one in table.fields if one.name in wanted and one.name not in sync.exclude_columns
    )
    nested = next((one for one in found if not is_flat(one.type)), None)
    if nested is not None and sync.transform is None:
        raise DeclarationError(
            f"sync {sync.name}: column {nested.name} of {table.relation} is {nested.type}, which "
            "no column of the target can hold",
            "leave it out with exclude_columns, or turn it into text in a transformation: "
            "to_json(…)",
        )
    return found


def _resolve_key(table: IcebergTable, sync: Sync) -> tuple[str, ...]:
    if sync.mode is Mode.APPEND:
        return ()
    for name in sync.key or ():
        _require(table, name, f"sync {sync.name}: key column")
    key = sync.key or table.identifier
    if not key and sync.mode is not Mode.REPLACE:
        raise DeclarationError(
            f"sync {sync.name}: {table.relation} has no identifier fields, and {sync.mode} needs "
            "a key",
            "declare the columns that identify a row, such as key = "
            f'["{table.fields[0].name if table.fields else "id"}"], or load the whole of it each '
            'time with mode = "replace"',
        )
    return key


def _require(table: IcebergTable, name: str, what: str) -> None:
    if table.field(name) is None:
        raise DeclarationError(
            f"{what} {name} does not exist in {table.relation}",
            nearest(name, (one.name for one in table.fields)),
        )
