"""Verifying a sync whose target is a lake: its rows at one snapshot are copied aside and compared.

They are copied into a temporary table of the control database, where the ledger of a lake lies,
in types that print alike on both sides. Without a transformation Spark has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.destinations.lake import LakeDestination
from tidegate.destinations.lake_target import find_changes
from tidegate.errors import BusyError, StagingLost
from tidegate.lake.reading import staged_batches
from tidegate.model.batch import Batch
from tidegate.model.identity import new_attempt_id
from tidegate.model.lake import LakeTable
from tidegate.model.load import StagedWrite
from tidegate.model.rules import Mode
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.bags import compare_bags
from tidegate.pipeline.cdc_waiting import send_waiting
from tidegate.pipeline.comparable import columns_changed
from tidegate.pipeline.compare import LEFT_OUT, NONE, Hashing, Side
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import lake_shape
from tidegate.pipeline.lake_difference import LakeDifference
from tidegate.pipeline.lake_mirror import (
    Mirror,
    field_kinds,
    lake_columns,
    mirror,
    newest_in_lake,
)
from tidegate.pipeline.lake_view import LakeView
from tidegate.pipeline.landing_table import DELETED_AT
from tidegate.pipeline.loaded import (
    compared_batches,
    loaded_condition,
    pending_condition,
    reads_whole,
    waiting_batches,
)
from tidegate.pipeline.opened import Examine, Opened
from tidegate.pipeline.sessions import Sessions
from tidegate.pipeline.sides import LeftOut, not_left_out, send_left_out, target_snapshot
from tidegate.pipeline.stage import Reading, Staged, stage_batch
from tidegate.pipeline.sync import tolerates_duplicates
from tidegate.pipeline.verdict import Compared, Since
from tidegate.postgres.connect import Connection, Snapshot
from tidegate.sources.postgres import PostgresSource

_TRIES = 3
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LakeVerification:
    """One sync's source against one snapshot of its lake."""

    sessions: Sessions
    sync: Sync
    source: PostgresSource
    view: LakeView
    nulls_loaded: Callable[[], bool]
    since: Callable[[Watermark], Since]
    examine: Examine

    def compare(self) -> Compared:
        if self.sync.transform is None:
            found = self._compare_passed()
        else:
            found = self._compare_transformed()
        notes = found.drift
        if found.comparison.difference is not None:
            notes += self._strangers()
            if found.since is Since.CHANGED:
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
    def _table(self) -> LakeTable:
        assert self.view.table is not None
        return self.view.table

    @property
    def _is_keyed(self) -> bool:
        """Append keeps every version in a lake, so that rows are found by all that they hold."""
        return bool(self.source.key) and self.sync.mode is not Mode.APPEND

    def _compare_passed(self) -> Compared:
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
                Compared(watermark, NONE, left_out, drift=notes),
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

    def _leave_out(self, watermark: Watermark, found: Mirror, *, nulls: bool) -> LeftOut:
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

    def _compare_transformed(self) -> Compared:
        destination = self.sessions.context.destination(self.sync.target)
        assert isinstance(destination, LakeDestination)
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

    def _compare_staged(self, destination: LakeDestination, attempt_id: str) -> Compared:
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
                    Compared(self.view.watermark, NONE, left_out, drift=notes, used_spark=True),
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
        compared: Compared,
        expected: Side,
        found: Mirror,
        shape: Shape,
        hashing: Hashing,
        loaded: sql.Composable,
        snapshot: Snapshot,
    ) -> Compared:
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
        comparison, older, _ = compare_bags(
            expected, theirs, hashing, self.sync.mode, self.view.put_in
        )
        return replace(compared, comparison=comparison, older=older, keyless=True)

    @contextmanager
    def _found(self, shape: Shape) -> Iterator[Mirror]:
        """The lake's rows."""
        names = (*shape.names, DELETED_AT) if self.sync.is_soft else shape.names
        kinds = field_kinds(self._table, names)
        with mirror(self._target, "tidegate_verify_lake", kinds) as found:
            assert self.view.rows is not None
            found.fill(batch for _, batch in self.view.rows.batches(names))
            yield found

    @contextmanager
    def _staged(self, shape: Shape, staged: Sequence[Staged], name: str) -> Iterator[Mirror]:
        """What the transformation made."""
        kinds = [(column.name, column.staged_type) for column in shape.columns]
        with mirror(self._target, f"tidegate_verify_{name}", kinds) as made:
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

    def _alone(self) -> Since:
        """A lake remembers who wrote to it, so nothing has to be summed up to know."""
        if any(self.view.strangers()):
            return Since.BOTH_CHANGED
        head = next(
            (one.update_id for one in self._table.ancestors() if one.update_id is not None), None
        )
        return Since.CHANGED_ALONE if head == self.view.watermark.update_id else Since.CHANGED


@dataclass(frozen=True, slots=True)
class _Staging:
    """Stages batches of the source again, under one snapshot of it."""

    work: LakeVerification
    destination: LakeDestination
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
) -> Compared:
    """Of a lake without the table, into which nothing was loaded so far."""
    with context.reading(connection, source):
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {}").format(
                source.relation, pending_condition(source, watermark, nulls=False)
            )
        ).fetchone()
    assert row is not None
    return Compared(watermark, NONE, LeftOut(int(row[0]), 0))


def _check_comparable(table: LakeTable, shape: Shape, sync: Sync) -> tuple[str, ...]:
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


def _cast(rows: Mirror, like: Mirror) -> sql.Composed:
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
