"""Verifying a sync whose target is a lake: its rows at one snapshot are copied aside and compared.

They are copied into a temporary table of the control database, where the ledger of a lake lies,
in types that print alike on both sides. Without a transformation Spark has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, StagedWrite
from tidegate.core.errors import BusyError, StagingLost
from tidegate.core.identity import new_attempt_id
from tidegate.core.shape import Shape
from tidegate.core.watermark import Watermark
from tidegate.iceberg.rows import staged_batches
from tidegate.iceberg.table import IcebergTable
from tidegate.load.context import Context
from tidegate.load.inspection import ReadSessions
from tidegate.load.modes import MODES
from tidegate.load.sources.cdc.fold import DELETED_AT
from tidegate.load.sources.database import tolerates_duplicates
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.resolve import lake_shape
from tidegate.load.sources.watermark_conditions import (
    compared_batches,
    loaded_condition,
    pending_condition,
    reads_whole,
    waiting_batches,
)
from tidegate.load.stage import Reading, Staged, stage_batch
from tidegate.load.targets.iceberg.table import find_changes
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.verify.compare import LEFT_OUT, NONE, Hashing, Side, compare_multisets
from tidegate.verify.compared_rows import (
    UncomparedRows,
    columns_changed,
    not_left_out,
    send_left_out,
    send_waiting,
    target_snapshot,
)
from tidegate.verify.difference import Examine, LakeDifference, Opened
from tidegate.verify.iceberg_rows import (
    IcebergState,
    PostgresCopy,
    copy_to_postgres,
    field_kinds,
    lake_columns,
    newest_in_lake,
)
from tidegate.verify.verdict import ComparedSync, SourceChange

_TRIES = 3
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LakeVerification:
    """One sync's source against one snapshot of its lake."""

    sessions: ReadSessions
    sync: Sync
    source: PostgresSource
    view: IcebergState
    nulls_loaded: Callable[[], bool]
    since: Callable[[Watermark], SourceChange]
    examine: Examine

    def compare(self) -> ComparedSync:
        if self.sync.transform is None:
            found = self._compare_passed()
        else:
            found = self._compare_transformed()
        notes = found.drift
        if found.comparison.difference is not None:
            notes += self._strangers()
            if found.since is SourceChange.CHANGED:
                found = replace(found, since=self._alone())
        if self.view.unrecorded is not None:
            notes += (
                f"load {self.view.unrecorded} is in and not recorded yet; the next run does that",
            )
        return replace(found, drift=notes, snapshot=self.view.snapshot_id)

    @property
    def _connection(self) -> Connection:
        return self.sessions.source(self.sync.source.connection)

    @property
    def _target(self) -> Connection:
        return self.sessions.target(self.sync.target.connection)

    @property
    def _table(self) -> IcebergTable:
        assert self.view.table is not None
        return self.view.table

    @property
    def _is_keyed(self) -> bool:
        """Append keeps every version in a lake, so that rows are found by all that they hold."""
        return bool(self.source.key) and not MODES[self.sync.mode].only_adds

    def _compare_passed(self) -> ComparedSync:
        shape = lake_shape(self.source)
        notes = _check_comparable(self._table, shape, self.sync)
        connection, target, watermark = self._connection, self._target, self.view.watermark
        with (
            self._found(shape) as found,
            target_snapshot(target),
            # Taken last: what has changed since the lake was looked at lies above its watermark.
            self.sessions.context.reading(connection, self.source) as snapshot,
        ):
            hashing = Hashing.between(connection, target)
            nulls = self.nulls_loaded()
            columns = lake_columns(self.source, found.kinds)
            left_out = self._leave_out(watermark, found, nulls=nulls)
            expected = self._expected(columns, shape, nulls=nulls)
            compared = self._compare_sides(
                ComparedSync(watermark, NONE, left_out, drift=notes),
                Side(connection, _side(expected, self._key(shape), shape.names, hashing)),
                found,
                shape,
                hashing,
                loaded_condition(self.source, watermark, nulls=nulls),
                snapshot,
            )
            if compared.comparison.difference is not None and reads_whole(self.source, self.sync):
                compared = replace(compared, since=self.since(watermark))
        return compared

    def _leave_out(
        self, watermark: Watermark, found: PostgresCopy, *, nulls: bool
    ) -> UncomparedRows:
        if self.sync.changes == "cdc":
            kinds = {name: found.value_type(name) for name in self.source.key}
            return send_waiting(
                self.sessions.context, self.sync, self.source, self._target, watermark, kinds
            )
        columns = lake_columns(self.source, found.kinds)
        return send_left_out(
            self._connection, self._target, self.source, watermark, nulls=nulls, select=columns
        )

    def _expected(
        self, columns: dict[str, sql.Composable], shape: Shape, *, nulls: bool
    ) -> sql.Composable:
        """The rows that the declaration would have loaded, as the lake holds them."""
        watermark = self.view.watermark
        rows: sql.Composable = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(columns[name], sql.Identifier(name))
                for name in shape.names
            ),
            self.source.relation,
            loaded_condition(self.source, watermark, nulls=nulls),
        )
        if self._is_keyed and tolerates_duplicates(self.sync) and not shape.key_is_unique:
            # Where a key may occur twice, it may be both loaded and not.
            key = sql.SQL(", ").join(map(sql.Identifier, shape.key))
            waiting = pending_condition(self.source, watermark, nulls=nulls)
            rows = sql.SQL("{} AND ({}) NOT IN (SELECT {} FROM {} WHERE {})").format(
                rows, key, key, self.source.relation, waiting
            )
            rows = newest_in_lake(rows, shape)
        return rows

    def _compare_transformed(self) -> ComparedSync:
        destination = self.sessions.context.destination(self.sync.target)
        assert isinstance(destination, IcebergTarget)
        for _ in range(_TRIES):
            attempt_id = new_attempt_id()
            try:
                return self._compare_staged(destination, attempt_id)
            except StagingLost:
                # A run swept the files, whose attempt it could not know.
                continue
            finally:
                destination.discard(attempt_id)
        raise BusyError(
            f"{self.sync.target} is being loaded all the while", "verify again when it is quiet"
        )

    def _compare_staged(self, destination: IcebergTarget, attempt_id: str) -> ComparedSync:
        connection, target = self._connection, self._target
        # An unfinished tie counts as not loaded: its rows are left out on both sides.
        even = replace(self.view.watermark, position=None)
        with self.sessions.context.reading(connection, self.source) as snapshot:
            nulls = self.nulls_loaded()
            staging = _Staging(self, destination, attempt_id, connection, snapshot)
            loaded = staging.stage(compared_batches(self.source, even, nulls=nulls))
            waiting = staging.stage(waiting_batches(self.source, even, nulls=nulls))
            shape = (loaded + waiting)[0].shape
            notes = _check_comparable(self._table, shape, self.sync)
            with (
                self._found(shape) as found,
                self._staged(shape, loaded, "loaded") as ours,
                self._staged(shape, waiting, "waiting") as later,
                target_snapshot(target),
            ):
                hashing = Hashing.between(connection, target)
                left_out = self._leave_out(even, found, nulls=nulls)
                if self._is_keyed:
                    # Keys that the transformation makes of them, should it change them.
                    target.execute(
                        sql.SQL("INSERT INTO {} SELECT ROW({})::text FROM ({}) s").format(
                            LEFT_OUT,
                            sql.SQL(", ").join(map(sql.Identifier, shape.key)),
                            _cast(later, found),
                        )
                    )
                expected: sql.Composable = _cast(ours, found)
                if self._is_keyed and tolerates_duplicates(self.sync):
                    expected = newest_in_lake(expected, shape)
                key = self._key(shape)
                side = _side(expected, key, shape.names, hashing)
                if self._is_keyed and left_out.any:
                    side = sql.SQL("{} WHERE {}").format(side, not_left_out(_columns(key)))
                compared = self._compare_sides(
                    ComparedSync(self.view.watermark, NONE, left_out, drift=notes, used_spark=True),
                    Side(target, side),
                    found,
                    shape,
                    hashing,
                    loaded_condition(self.source, even, nulls=nulls),
                    snapshot,
                )
            if compared.comparison.difference is not None and reads_whole(self.source, self.sync):
                compared = replace(compared, since=self.since(self.view.watermark))
        return compared

    def _compare_sides(
        self,
        compared: ComparedSync,
        expected: Side,
        found: PostgresCopy,
        shape: Shape,
        hashing: Hashing,
        loaded: sql.Composable,
        snapshot: Snapshot,
    ) -> ComparedSync:
        key = self._key(shape)
        rows = _side(found.rows, key, shape.names, hashing)
        conditions: list[sql.Composable] = []
        if self.sync.is_soft:
            conditions.append(sql.SQL("e.{} IS NULL").format(sql.Identifier(DELETED_AT)))
        if self._is_keyed and compared.left_out.any:
            conditions.append(not_left_out(_columns(key)))
        if conditions:
            rows = sql.SQL("{} WHERE {}").format(rows, sql.SQL(" AND ").join(conditions))
        theirs = Side(found.connection, rows)
        if self._is_keyed:
            mending = LakeDifference(
                self.sessions.context,
                self.sync,
                self.source,
                self._connection,
                snapshot,
                lake_columns(self.source, found.kinds),
                loaded,
                found,
                hashing,
            )
            opened = Opened(
                self.source, compared.watermark, hashing, expected, theirs, mending.stage
            )
            return replace(compared, comparison=self.examine(opened))
        comparison, older, _ = compare_multisets(
            expected, theirs, hashing, self.sync.mode, self.view.put_in
        )
        return replace(compared, comparison=comparison, older=older, keyless=True)

    @contextmanager
    def _found(self, shape: Shape) -> Iterator[PostgresCopy]:
        """The lake's rows."""
        names = (*shape.names, DELETED_AT) if self.sync.is_soft else shape.names
        kinds = field_kinds(self._table, names)
        with copy_to_postgres(self._target, "tidegate_verify_lake", kinds) as found:
            assert self.view.rows is not None
            found.fill(batch for _, batch in self.view.rows.batches(names))
            yield found

    @contextmanager
    def _staged(self, shape: Shape, staged: Sequence[Staged], name: str) -> Iterator[PostgresCopy]:
        """What the transformation made."""
        kinds = [(column.name, column.staged_type) for column in shape.columns]
        with copy_to_postgres(self._target, f"tidegate_verify_{name}", kinds) as made:
            writes: list[StagedWrite] = [write for one in staged for write in one.writes]
            catalog = self.sessions.context.catalog(self.sync.target.connection)
            made.fill(staged_batches(catalog, self._table, writes))
            yield made

    def _key(self, shape: Shape) -> tuple[str, ...]:
        return shape.key if self._is_keyed else shape.names

    def _strangers(self) -> tuple[str, ...]:
        others = list(self.view.strangers())
        if not others:
            return ()
        names = ", ".join(
            f"{one.snapshot_id} ({one.summary.get('operation', 'unknown')})"
            for one in others[:_SHOWN]
        )
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        return (f"somebody else has committed to it since the last load: {names}{more}",)

    def _alone(self) -> SourceChange:
        """A lake remembers who wrote to it, so nothing has to be summed up to know."""
        if any(self.view.strangers()):
            return SourceChange.BOTH_CHANGED
        head = next(
            (one.update_id for one in self._table.ancestors() if one.update_id is not None), None
        )
        return (
            SourceChange.CHANGED_ALONE
            if head == self.view.watermark.update_id
            else SourceChange.CHANGED
        )


@dataclass(frozen=True, slots=True)
class _Staging:
    """Stages batches of the source again, under one snapshot of it."""

    work: LakeVerification
    destination: IcebergTarget
    attempt_id: str
    connection: Connection
    snapshot: Snapshot

    def stage(self, batches: Sequence[Batch]) -> list[Staged]:
        return [self._stage(batch) for batch in batches]

    def _stage(self, batch: Batch) -> Staged:
        source = self.work.source
        row = self.connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {}").format(
                source.relation, source.condition(batch)
            )
        ).fetchone()
        assert row is not None
        reading = Reading(
            self.work.sessions.context,
            self.work.sync,
            source,
            self.connection,
            self.snapshot,
            replace(batch, rows=int(row[0])),
        )
        return stage_batch(
            reading, self.destination, attempt_id=self.attempt_id, prepare=lambda _: None
        )


def nothing_loaded(
    context: Context, connection: Connection, source: PostgresSource, watermark: Watermark
) -> ComparedSync:
    """Of a lake without the table, into which nothing was loaded so far."""
    with context.reading(connection, source):
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {}").format(
                source.relation, pending_condition(source, watermark, nulls=False)
            )
        ).fetchone()
    assert row is not None
    return ComparedSync(watermark, NONE, UncomparedRows(int(row[0]), 0))


def _check_comparable(table: IcebergTable, shape: Shape, sync: Sync) -> tuple[str, ...]:
    """What is not compared; refuses where the lake lacks what the source brings."""
    added, widened = find_changes(table, shape)
    if added or widened:
        changes = [f"column {name} is new" for name, _ in added]
        changes += [f"column {name} is {kind} now" for name, kind in widened]
        raise columns_changed(sync, tuple(changes), "verify again")
    known = {*shape.names, DELETED_AT} if sync.is_soft else set(shape.names)
    others = [one.name for one in table.fields if one.name not in known]
    if not others:
        return ()
    return (f"column {', '.join(others)} of the lake is not loaded, and was not compared",)


def _side(
    rows: sql.Composable, key: Sequence[str], names: Sequence[str], hashing: Hashing
) -> sql.Composed:
    return sql.SQL("SELECT {} FROM ({}) e").format(
        hashing.row(_columns(key), _columns(names)), rows
    )


def _columns(names: Sequence[str]) -> list[sql.Composable]:
    return [sql.Identifier("e", name) for name in names]


def _cast(rows: PostgresCopy, like: PostgresCopy) -> sql.Composed:
    """Rows in the types of others."""
    return sql.SQL("SELECT {} FROM ({}) s").format(
        sql.SQL(", ").join(
            sql.SQL("{}::{} AS {}").format(
                sql.Identifier(name), sql.SQL(like.value_type(name)), sql.Identifier(name)
            )
            for name, _ in rows.kinds
        ),
        rows.rows,
    )
