"""Does the target hold what the declaration would have loaded up to the watermark?

The target is read in one snapshot, together with its watermark, and the source in one that is
taken later: what changed in between carries a cursor above that watermark, or waits in the slot.
The keys of source rows above the watermark, or that waiting changes touch, are left out on both
sides, since the target has an older version of them or none.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import BusyError, SourceBusy, SourceChanged, TidegateError
from tidegate.core.shape import LoadedShape, Shape
from tidegate.core.watermark import NullPolicy, Watermark
from tidegate.jobs.job import SYNC
from tidegate.jobs.job_records import JobRecords
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_declaration, refuse_shared
from tidegate.load.inspection import ReadSessions
from tidegate.load.sources.cdc.slot_lifecycle import SlotLifecycle
from tidegate.load.sources.database import tolerates_duplicates
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.registry import locks_as_busy
from tidegate.load.sources.resolve import passthrough_shape, resolve_source
from tidegate.load.sources.watermark_conditions import (
    check_standing,
    loaded_condition,
    pending_condition,
    reads_whole,
    rows_ahead,
)
from tidegate.load.stage import passed_columns
from tidegate.load.targets.iceberg.table import missing_table
from tidegate.load.targets.postgres import statements
from tidegate.load.targets.postgres.table import check_present
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, translate
from tidegate.postgres.queries import column_list
from tidegate.verify.compare import NONE, Hashing, Side, compare_multisets
from tidegate.verify.compared_rows import (
    SlotMoved,
    UncomparedRows,
    check_comparable,
    leave_out_rejected,
    rejected_side,
    send_left_out,
    send_waiting,
    target_fingerprint,
    target_rows,
    target_snapshot,
    without_keys,
)
from tidegate.verify.difference import Examine, Opened, PostgresDifference, compare_only
from tidegate.verify.iceberg import LakeVerification, nothing_loaded
from tidegate.verify.iceberg_rows import IcebergState, read_iceberg_state
from tidegate.verify.report import Verdict, Verification
from tidegate.verify.transformation import compare_transformed
from tidegate.verify.verdict import ComparedSync, SourceChange, report

_TRIES = 5
_PAUSE_SECONDS = 0.25


def verify_sync(context: Context, sync: Sync, examine: Examine = compare_only) -> Verification:
    """Compare one sync's source and target; starts Spark only for a transformation.

    `examine` is given both sides where rows have a key, and says how they differ.
    """
    busy: TidegateError | None = None
    try:
        for tries in range(_TRIES):
            if busy is not None:
                time.sleep(_PAUSE_SECONDS * 2**tries)
            try:
                with ReadSessions(context) as sessions, suppress(SlotMoved), locks_as_busy(sync):
                    return _Verifying(sessions, sync, examine).verify()
                busy = None
            except (SourceBusy, SourceChanged) as error:
                busy = error
    except psycopg.Error as error:
        raise translate(error, f"verifying {sync.name}") from error
    if busy is not None:
        raise busy
    refuse_lost(context, sync)
    raise BusyError(f"{sync.target} is being loaded all the while", "verify again when it is quiet")


def refuse_lost(context: Context, sync: Sync) -> None:
    """A slot that stays ahead of the target has lost what lies between; ChangesLost says how."""
    with ReadSessions(context) as sessions:
        connection = sessions.source(sync.source.connection)
        source = resolve_source(connection, sync)
        target = sessions.target(sync.target.connection)
        watermark = _Verifying(sessions, sync, compare_only).watermark(target)
        SlotLifecycle.of(context, sync, source, connection).check(watermark)


@dataclass(slots=True)
class _Verifying:
    sessions: ReadSessions
    sync: Sync
    examine: Examine

    def verify(self) -> Verification:
        connection = self.sessions.source(self.sync.source.connection)
        source = resolve_source(connection, self.sync)
        found = self._compare(connection, source)
        return replace(found, notes=(*found.notes, *rows_ahead(connection, source)))

    def _compare(self, connection: Connection, source: PostgresSource) -> Verification:
        sync = self.sync
        target = self.sessions.target(sync.target.connection)
        view = None
        if self.sessions.context.is_lake(sync.target.connection):
            view = read_iceberg_state(self.sessions.context, sync, target)
        watermark = self.watermark(target) if view is None else view.watermark
        if watermark.version == 0 and not self._last_result():
            return Verification(
                sync.name,
                sync.source_name,
                str(sync.target),
                Verdict.NEVER_RAN,
                hint=f"tidegate run {sync.name}",
            )
        refuse_shared(self.sessions.context, sync)
        refuse_changed_declaration(watermark, source, sync)
        check_standing(self.sessions.context, connection, source, watermark, sync)
        if view is not None:
            return report(sync, self._compare_lake(connection, source, view))
        if describe_table(target, sync.target.relation) is None:
            check_present(target, sync.target.relation, watermark, sync.project)
            with self.sessions.context.reading(connection, source):
                waiting = _count(
                    connection, source, pending_condition(source, watermark, nulls=False)
                )
            nothing = ComparedSync(watermark, NONE, UncomparedRows(waiting, 0))
            return report(sync, nothing)
        if sync.transform is None:
            return report(sync, self._compare_passed(connection, source, target))
        found = compare_transformed(
            self.sessions,
            sync,
            source,
            nulls_loaded=lambda: self._nulls_loaded(connection, source),
            since=lambda watermark: self._since(connection, source, watermark),
            examine=self.examine,
        )
        return report(sync, found)

    def _compare_lake(
        self, connection: Connection, source: PostgresSource, view: IcebergState
    ) -> ComparedSync:
        sync, watermark = self.sync, view.watermark
        if view.table is None:
            if watermark.rows_synced:
                raise missing_table(None, sync.target.relation, watermark, sync.project)
            return nothing_loaded(self.sessions.context, connection, source, watermark)
        return LakeVerification(
            self.sessions,
            sync,
            source,
            view,
            nulls_loaded=lambda: self._nulls_loaded(connection, source),
            since=lambda watermark: self._since(connection, source, watermark),
            examine=self.examine,
        ).compare()

    def _compare_passed(
        self, connection: Connection, source: PostgresSource, target: Connection
    ) -> ComparedSync:
        sync = self.sync
        with target_snapshot(target):
            watermark = self.watermark(target)
            table = describe_table(target, sync.target.relation)
            assert table is not None
            shape = passthrough_shape(target, source)
            loaded = LoadedShape.recorded(watermark.declaration, source.table.column_names)
            drift = check_comparable(target, sync, shape, loaded)
            rejected = leave_out_rejected(target, sync, table, shape)
            with self.sessions.context.reading(connection, source):
                hashing = Hashing.between(connection, target)
                nulls = self._nulls_loaded(connection, source)
                if sync.changes == "cdc":
                    kinds = {column.name: column.target_type for column in shape.columns}
                    left_out = send_waiting(
                        self.sessions.context, sync, source, target, watermark, kinds
                    )
                else:
                    left_out = send_left_out(connection, target, source, watermark, nulls=nulls)
                left_out = replace(left_out, rejected=len(rejected))
                expected = _expected(sync, source, shape, watermark, rejected, nulls=nulls)
                names = [sql.Identifier(name) for name in shape.names]
                key = [sql.Identifier(name) for name in shape.key or shape.names]
                ours = sql.SQL("SELECT {} FROM ({}) e").format(hashing.row(key, names), expected)
                theirs = target_rows(table, shape, hashing, left_out=left_out, soft=sync.is_soft)
                older = 0
                if shape.key:
                    sides = Side(connection, ours), Side(target, theirs)
                    mending = PostgresDifference(
                        self.sessions.context,
                        sync,
                        table,
                        shape,
                        hashing,
                        Side(connection, expected),
                        sides[1],
                        loaded,
                    )
                    opened = Opened(source, watermark, hashing, *sides, mending.stage)
                    comparison = self.examine(opened)
                else:
                    aside = rejected_side(target, sync, table, shape, watermark, hashing)
                    sides = Side(connection, ours), Side(target, theirs)
                    comparison, older, count = compare_multisets(
                        *sides, hashing, sync.mode, self._put_in(target), aside
                    )
                    left_out = replace(left_out, rejected=count)
                since = SourceChange.NOTHING
                if comparison.difference is not None and reads_whole(source, sync):
                    since = self._since(connection, source, watermark)
                if since is SourceChange.CHANGED and not (hashing.portable or left_out.rejected):
                    now = target_fingerprint(target, table, shape)
                    same = now == self._fingerprint(BatchKind.FULL).get("fingerprint")
                    since = SourceChange.CHANGED_ALONE if same else SourceChange.BOTH_CHANGED
        return ComparedSync(
            watermark,
            comparison,
            left_out,
            keyless=not shape.key,
            older=older,
            since=since,
            drift=drift,
        )

    def _since(
        self, connection: Connection, source: PostgresSource, watermark: Watermark
    ) -> SourceChange:
        """Whether a source without a cursor is as the last load found it."""
        before = self._fingerprint(BatchKind.FULL)
        loaded = (watermark.version, watermark.update_id)
        if (before.get("version"), before.get("update_id")) != loaded:
            return SourceChange.UNKNOWN
        now = source.fingerprint(connection, Batch(BatchKind.FULL))
        return SourceChange.NOTHING if before.get("fingerprint") == now else SourceChange.CHANGED

    def watermark(self, target: Connection) -> Watermark:
        ledger = self.sessions.context.ledger(self.sync.target.connection)
        return Watermarks(ledger).get(target, self.sync.pipeline, str(self.sync.target.relation))

    def _put_in(self, target: Connection) -> int:
        ledger = self.sessions.context.ledger(self.sync.target.connection)
        return Watermarks(ledger).rows_put_in(target, str(self.sync.target.relation))

    def _last_result(self) -> dict[str, Any]:
        control = self.sessions.control()
        if control is None:
            return {}
        records = JobRecords(self.sessions.context.plane)
        return records.last_result(control, self.sync.project, SYNC, self.sync.name)

    def _nulls_loaded(self, connection: Connection, source: PostgresSource) -> bool:
        """Rows without a cursor count as loaded while they are as the last run left them."""
        if source.null_policy is not NullPolicy.INCLUDE:
            return False
        before = self._fingerprint(BatchKind.NULLS)
        now = source.fingerprint(connection, Batch(BatchKind.NULLS))
        return bool(before.get("fingerprint") == now)

    def _fingerprint(self, kind: BatchKind) -> dict[str, Any]:
        """What the last run remembered of the rows that it reads again each time."""
        known = self._last_result().get("fingerprints", {})
        return dict(known.get(kind.value, {}))


def _expected(
    sync: Sync,
    source: PostgresSource,
    shape: Shape,
    watermark: Watermark,
    rejected: tuple[str, ...],
    *,
    nulls: bool,
) -> sql.Composable:
    """The rows that the declaration would have loaded."""
    select = dict(zip(shape.names, passed_columns(source), strict=True))
    expected: sql.Composable = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(one, sql.Identifier(name)) for name, one in select.items()
        ),
        source.relation,
        loaded_condition(source, watermark, nulls=nulls),
    )
    if shape.key and tolerates_duplicates(sync) and not shape.key_is_unique:
        waiting = pending_condition(source, watermark, nulls=nulls)
        expected = statements.newest_rows(_without(expected, source, waiting), shape)
    return without_keys(expected, column_list(shape.key, "o"), rejected)


def _without(rows: sql.Composable, source: PostgresSource, pending: sql.Composable) -> sql.Composed:
    """Where a key may occur twice, it may be both loaded and not: leave it out here as well."""
    key = column_list(source.key)
    return sql.SQL("{} AND ({}) NOT IN (SELECT {} FROM {} WHERE {})").format(
        rows, key, key, source.relation, pending
    )


def _count(connection: Connection, source: PostgresSource, where: sql.Composable) -> int:
    row = connection.execute(
        sql.SQL("SELECT count(*) FROM {} WHERE {}").format(source.relation, where)
    ).fetchone()
    assert row is not None
    return int(row[0])
