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

from tidegate.control.job_records import JobRecords
from tidegate.destinations import merge
from tidegate.destinations.lake_target import gone
from tidegate.destinations.target import check_present
from tidegate.errors import BusyError, SourceBusy, SourceChanged, TidegateError
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.cursor import NullPolicy
from tidegate.model.drift import Loaded
from tidegate.model.job import SYNC
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.model.verification import Verdict, Verification
from tidegate.model.watermark import Watermark
from tidegate.pipeline.bags import compare_bags
from tidegate.pipeline.cdc_source import CdcSource
from tidegate.pipeline.cdc_waiting import Moved, send_waiting
from tidegate.pipeline.changed import refuse_changed, refuse_shared
from tidegate.pipeline.comparable import check_comparable
from tidegate.pipeline.compare import NONE, Hashing, Side
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import passthrough_shape, resolve_source
from tidegate.pipeline.lake_view import LakeView, look
from tidegate.pipeline.loaded import (
    loaded_condition,
    pending_condition,
    reads_whole,
    rows_ahead,
)
from tidegate.pipeline.opened import Examine, Opened, PostgresDifference, only_compare
from tidegate.pipeline.opening import locks_as_busy
from tidegate.pipeline.passes import check_standing
from tidegate.pipeline.sessions import Sessions
from tidegate.pipeline.set_aside import leave_out_rejected, rejected_side, without_keys
from tidegate.pipeline.sides import (
    LeftOut,
    send_left_out,
    target_fingerprint,
    target_rows,
    target_snapshot,
)
from tidegate.pipeline.stage import passed_columns
from tidegate.pipeline.sync import tolerates_duplicates
from tidegate.pipeline.verdict import Compared, Since, report
from tidegate.pipeline.verify_lake import LakeVerification, nothing_loaded
from tidegate.pipeline.verify_transformed import compare_transformed
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection, translate
from tidegate.postgres.identifiers import column_list
from tidegate.sources.postgres import PostgresSource

_TRIES = 5
_PAUSE_SECONDS = 0.25


def verify_sync(context: Context, sync: Sync, examine: Examine = only_compare) -> Verification:
    """Compare one sync's source and target; starts Spark only for a transformation.

    `examine` is given both sides where rows have a key, and says how they differ.
    """
    busy: TidegateError | None = None
    try:
        for tries in range(_TRIES):
            if busy is not None:
                time.sleep(_PAUSE_SECONDS * 2**tries)
            try:
                with Sessions(context) as sessions, suppress(Moved), locks_as_busy(sync):
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
    with Sessions(context) as sessions:
        connection = sessions.source(sync.source.connection)
        source = resolve_source(connection, sync)
        target = sessions.target(sync.target.connection)
        watermark = _Verifying(sessions, sync, only_compare).watermark(target)
        CdcSource.of(context, sync, source, connection).check(watermark)


@dataclass(slots=True)
class _Verifying:
    sessions: Sessions
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
            view = look(self.sessions.context, sync, target)
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
        refuse_changed(watermark, source, sync)
        check_standing(self.sessions.context, connection, source, watermark, sync)
        if view is not None:
            return report(sync, self._compare_lake(connection, source, view))
        if describe_table(target, sync.target.relation) is None:
            check_present(target, sync.target.relation, watermark, sync.project)
            with self.sessions.context.reading(connection, source):
                waiting = _count(
                    connection, source, pending_condition(source, watermark, nulls=False)
                )
            nothing = Compared(watermark, NONE, LeftOut(waiting, 0))
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
        self, connection: Connection, source: PostgresSource, view: LakeView
    ) -> Compared:
        sync, watermark = self.sync, view.watermark
        if view.table is None:
            if watermark.rows_synced:
                raise gone(None, sync.target.relation, watermark, sync.project)
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
    ) -> Compared:
        sync = self.sync
        with target_snapshot(target):
            watermark = self.watermark(target)
            table = describe_table(target, sync.target.relation)
            assert table is not None
            shape = passthrough_shape(target, source)
            loaded = Loaded.recorded(watermark.declaration, source.table.column_names)
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
                    comparison, older, count = compare_bags(
                        *sides, hashing, sync.mode, self._put_in(target), aside
                    )
                    left_out = replace(left_out, rejected=count)
                since = Since.NOTHING
                if comparison.difference is not None and reads_whole(source, sync):
                    since = self._since(connection, source, watermark)
                if since is Since.CHANGED and not (hashing.portable or left_out.rejected):
                    now = target_fingerprint(target, table, shape)
                    same = now == self._fingerprint(BatchKind.FULL).get("fingerprint")
                    since = Since.CHANGED_ALONE if same else Since.BOTH_CHANGED
        return Compared(
            watermark,
            comparison,
            left_out,
            keyless=not shape.key,
            older=older,
            since=since,
            drift=drift,
        )

    def _since(self, connection: Connection, source: PostgresSource, watermark: Watermark) -> Since:
        """Whether a source without a cursor is as the last load found it."""
        before = self._fingerprint(BatchKind.FULL)
        loaded = (watermark.version, watermark.update_id)
        if (before.get("version"), before.get("update_id")) != loaded:
            return Since.UNKNOWN
        now = source.fingerprint(connection, Batch(BatchKind.FULL))
        return Since.NOTHING if before.get("fingerprint") == now else Since.CHANGED

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
        expected = merge.newest_rows(_without(expected, source, waiting), shape)
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
