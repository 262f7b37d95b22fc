"""Why a row is as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import DeclarationError, UsageError
from tidegate.core.relation import Endpoint, Relation, Table
from tidegate.core.watermark import CursorType, Watermark
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import SYNC
from tidegate.jobs.job_records import JobRecords
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_declaration
from tidegate.load.inspection import ReadSessions
from tidegate.load.modes import MODES
from tidegate.load.sources.horizon import read_horizon
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import bounded, read_only
from tidegate.load.sources.resolve import nearest, passthrough_shape, resolve_source
from tidegate.load.sources.watermark_conditions import check_standing
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, translate
from tidegate.postgres.queries import statement
from tidegate.postgres.types import postgres_type
from tidegate.verify.compared_rows import has_waiting_change
from tidegate.verify.iceberg_rows import IcebergState, field_kinds, lake_columns, read_iceberg_state
from tidegate.verify.reasons import Facts
from tidegate.verify.report import ColumnDifference, Explanation, Rejection, RowLoad
from tidegate.verify.row import (
    Key,
    LakeRow,
    SourceRow,
    TargetRow,
    lake_key,
    nearest_keys,
    parse_key,
    read_lake_row,
    read_rejection,
    read_source,
    read_target,
    read_version,
    same_key,
)
from tidegate.verify.transformation import TransformedRow, transform_row


@dataclass(frozen=True, slots=True)
class RowLoads:
    """Searches the log of one sync's watermark."""

    ledger: Ledger
    sync: Sync

    def passing(
        self,
        connection: Connection,
        value: str | None,
        cursor_type: CursorType | None,
        *,
        tie: str | None,
        lookback: bool,
    ) -> RowLoad | None:
        """The last move that may have brought a row with this value; `tie` is one half loaded."""
        name = sql.SQL(cursor_type.value if cursor_type else "text")
        parameters = {**self._sync, "value": value, "tie": tie, "lookback": lookback}
        try:
            with connection.transaction():
                rows = connection.execute(
                    self._statement("find_carriers", type=name), parameters
                ).fetchall()
        except (psycopg.DataError, pg.UndefinedTable, pg.InvalidSchemaName):
            # Values of a cursor that was declared before cannot be compared with this one's.
            return None
        if not rows:
            return None
        return replace(_carrier(rows[0]), others=len(rows) - 1)

    def of_load(self, connection: Connection, update_id: str) -> RowLoad | None:
        """The move that one load made; the row says that it came with it."""
        try:
            with connection.transaction():
                row = connection.execute(
                    self._statement("find_load"), {**self._sync, "update_id": update_id}
                ).fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return None
        return replace(_carrier(row), is_certain=True) if row else None

    @property
    def _sync(self) -> dict[str, Any]:
        return {"pipeline": self.sync.pipeline, "table": str(self.sync.target.relation)}

    def _statement(self, name: str, **parts: sql.Composable) -> sql.Composed:
        schema = self.ledger.schema_identifier
        return statement("ledger/watermark_log", name, schema=schema, **parts)


def with_job(carrier: RowLoad, plane: ControlDatabase, control: Connection | None) -> RowLoad:
    """The carrier with its job, where the history still has it."""
    if control is None or carrier.attempt_id is None:
        return carrier
    row = control.execute(
        plane.statement("jobs/jobs", "job_of_attempt"), {"attempt_id": carrier.attempt_id}
    ).fetchone()
    return replace(carrier, job_id=row[0]) if row else carrier


def _carrier(row: tuple[Any, ...]) -> RowLoad:
    return RowLoad(*row)


_FINGERPRINT_MILLISECONDS = 30_000


def find_sync(syncs: Mapping[str, Sync], target: str) -> Sync:
    """The sync of this name, or the one that loads this table."""
    if target in syncs:
        return syncs[target]
    known = [*syncs, *(str(sync.target) for sync in syncs.values())]
    if ":" not in target:
        raise UsageError(f"there is no sync {target}", nearest(target, known))
    try:
        endpoint = Endpoint.parse(target)
    except DeclarationError as error:
        raise UsageError(error.message, error.hint) from None
    found = [sync for sync in syncs.values() if sync.target == endpoint]
    if not found:
        raise UsageError(f"no declared sync loads {endpoint}", nearest(target, known))
    if len(found) > 1:
        names = ", ".join(sync.name for sync in found)
        raise UsageError(f"{endpoint} is loaded by {names}", "name the sync instead of the table")
    return found[0]


def explain_row(
    context: Context, sync: Sync, given: Mapping[str, Any], *, run_transform: bool = False
) -> Explanation:
    """Explain one row; starts Spark only to run a transformation, and only when asked to."""
    try:
        with ReadSessions(context) as sessions:
            return _Explaining(sessions, sync, run_transform).explain(given)
    except psycopg.Error as error:
        raise translate(error, f"looking for a row of {sync.name}") from error


@dataclass(frozen=True, slots=True)
class _Found:
    """What the target holds of a row, read in one snapshot."""

    watermark: Watermark
    row: TargetRow | None
    rejection: Rejection | None
    versions: int
    exists: bool = True
    columns: list[sql.Composable] | None = None
    """how the source's columns look in a lake"""
    snapshot: int | None = None
    """of a lake, at which it was read"""
    edited_in: int | None = None
    """the commit of a lake that wrote the row and was nobody's load"""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Explaining:
    sessions: ReadSessions
    sync: Sync
    run_transform: bool

    def explain(self, given: Mapping[str, Any]) -> Explanation:
        sync = self.sync
        connection = self.sessions.source(sync.source.connection)
        source = resolve_source(connection, sync)
        key = parse_key(connection, sync, source, given)
        target = self.sessions.target(sync.target.connection)
        memory = self.sessions.memory(sync.pipeline)
        horizon = read_horizon(connection, source.cursor, memory, may_wait=False)
        # As in verify: what changes between the two snapshots lies above the watermark.
        if self.sessions.context.is_lake(sync.target.connection):
            found = self._read_lake(connection, target, source, key)
        else:
            before = self._watermark(target)
            with read_only(target):
                found = self._read_target(target, source, key, before)
        refuse_changed_declaration(found.watermark, source, sync)
        check_standing(self.sessions.context, connection, source, found.watermark, sync)
        with self.sessions.context.reading(connection, source):
            row = read_source(
                connection, sync, source, key, found.watermark, horizon, found.columns
            )
            near = []
            if row is None and found.row is None:
                near = nearest_keys(connection, source, key)
            changed = self._source_changed(connection, source, found.watermark)
        made = self._transform(source, key, row) if found.exists else None
        compared = sync.transform is None or made is not None
        differences = _differences(self._expected(row, made), found.row) if compared else ()
        carrier = self._carrier(target, source, found, row)
        facts = Facts(
            sync=sync,
            watermark=found.watermark,
            horizon=horizon,
            null_policy=source.null_policy,
            source=row,
            target=found.row,
            differ=bool(differences),
            compared=compared,
            rejection=found.rejection,
            carrier=carrier,
            cursor_order=self._order(target, source, row, found.row),
            source_changed=changed,
            made=None if made is None else len(made.rows),
            nearest=near,
            edited_in=found.edited_in,
            waits=self._waits(source, key, found),
        )
        reason, sentence, hint = facts.explain()
        return Explanation(
            sync=sync.name,
            source=sync.source_name,
            target=str(sync.target),
            key=key,
            reason=reason,
            sentence=sentence,
            hint=hint,
            source_row=None if row is None else row.values,
            target_row=None if found.row is None else found.row.values,
            differences=differences,
            watermark=found.watermark.value,
            horizon=horizon.high,
            carrier=carrier if found.row is not None else None,
            rejection=found.rejection,
            snapshot=found.snapshot,
            notes=tuple(self._notes(row, found, made)),
        )

    def _waits(self, source: PostgresSource, key: Key, found: _Found) -> bool:
        if self.sync.changes != "cdc" or found.watermark.value is None:
            return False
        return has_waiting_change(self.sessions.context, self.sync, source, key)

    def _read_target(
        self, target: Connection, source: PostgresSource, key: Key, before: Watermark
    ) -> _Found:
        sync = self.sync
        # Without a ledger there is nothing to read, and trying would end the snapshot.
        watermark = before if before.version == 0 else self._watermark(target)
        table = describe_table(target, sync.target.relation)
        if table is None:
            return _Found(watermark, None, None, 0, exists=False)
        self._check_columns(table, key)
        shape = None if sync.transform else passthrough_shape(target, source)
        row = read_target(target, sync, table, shape, key)
        versions = 0 if row is None else row.rows
        if row is not None and MODES[sync.mode].table(sync.key).holds_versions:
            version = read_version(target, sync, key)
            if version is not None:
                row, versions = replace(row, update_id=version[0]), version[1]
        return _Found(watermark, row, read_rejection(target, sync, table, key), versions)

    def _read_lake(
        self, connection: Connection, target: Connection, source: PostgresSource, key: Key
    ) -> _Found:
        sync = self.sync
        view = read_iceberg_state(self.sessions.context, sync, target)
        if view.table is None or view.rows is None:
            return _Found(view.watermark, None, None, 0, exists=False)
        fields = [one.name for one in view.table.fields]
        missing = [name for name in key if name not in fields]
        if missing:
            self._refuse_missing(view.table.relation, missing)
        # A transformation's rows may lie beside columns that are somebody else's.
        names = [one.name for one in view.table.fields if postgres_type(one.type) is not None]
        columns = None
        if sync.transform is None:
            names = [column.name for column in source.columns if column.name in fields]
            columns = list(lake_columns(source, field_kinds(view.table, names)).values())
        wanted = lake_key(connection, target, source, view.table, key)
        found = read_lake_row(target, view.table, view.rows, names, wanted, sync.cursor)
        return _Found(
            view.watermark,
            None if found is None else found.row,
            None,
            0 if found is None else found.row.rows,
            columns=columns,
            snapshot=view.snapshot_id,
            edited_in=None if found is None else found.edited_in,
            notes=tuple(_lake_notes(view, found)),
        )

    def _watermark(self, target: Connection) -> Watermark:
        ledger = self.sessions.context.ledger(self.sync.target.connection)
        return Watermarks(ledger).get(target, self.sync.pipeline, str(self.sync.target.relation))

    def _check_columns(self, table: Table, key: Key) -> None:
        missing = [name for name in key if table.column(name) is None]
        if missing:
            self._refuse_missing(table.relation, missing)

    def _refuse_missing(self, relation: Relation, missing: list[str]) -> NoReturn:
        raise UsageError(
            f"{relation} has no column {', '.join(missing)}, which is part of the key",
            f"is this the table that sync {self.sync.name} loads? see: tidegate plan",
        )

    def _transform(
        self, source: PostgresSource, key: Key, row: SourceRow | None
    ) -> TransformedRow | None:
        if not self.run_transform:
            return None
        if self.sync.transform is None:
            raise UsageError(
                f"sync {self.sync.name} has no transformation", "leave out --run-transform"
            )
        if row is None or not row.meets_where:
            return None
        return transform_row(self.sessions, self.sync, source, same_key(source.table, key))

    def _expected(
        self, row: SourceRow | None, made: TransformedRow | None
    ) -> dict[str, str | None] | None:
        """The row that the target should hold."""
        if made is not None:
            return made.rows[0] if made.rows else None
        return None if row is None else row.values

    def _carrier(
        self,
        target: Connection,
        source: PostgresSource,
        found: _Found,
        row: SourceRow | None,
    ) -> RowLoad | None:
        if found.edited_in is not None:
            return None
        ledger = self.sessions.context.ledger(self.sync.target.connection)
        carriers = RowLoads(ledger, self.sync)
        value = None
        if found.row is not None:
            value = found.row.cursor
            if value is None and row is not None and self.sync.cursor not in found.row.values:
                value = row.cursor
        elif row is not None:
            value = row.cursor
        if found.row is not None and found.row.update_id is not None:
            carrier = carriers.of_load(target, found.row.update_id)
        else:
            position = found.watermark.position
            carrier = carriers.passing(
                target,
                value,
                None if source.cursor is None else source.cursor.type,
                tie=None if position is None else position[0],
                lookback=source.lookback is not None,
            )
        if carrier is None:
            return None
        return with_job(carrier, self.sessions.context.plane, self.sessions.control())

    def _order(
        self,
        target: Connection,
        source: PostgresSource,
        row: SourceRow | None,
        found: TargetRow | None,
    ) -> int:
        if source.cursor is None or row is None or found is None:
            return 0
        if row.cursor is None or found.cursor is None:
            return 0
        ledger = self.sessions.context.ledger(self.sync.target.connection)
        watermarks = Watermarks(ledger)
        return watermarks.compare(target, row.cursor, found.cursor, source.cursor.type)[0]

    def _source_changed(
        self, connection: Connection, source: PostgresSource, watermark: Watermark
    ) -> bool | None:
        """Whether a source that is loaded whole is as the last run found it."""
        control = self.sessions.control()
        if not source.is_whole or control is None:
            return None
        records = JobRecords(self.sessions.context.plane)
        last = records.last_result(control, self.sync.project, SYNC, self.sync.name)
        before = last.get("fingerprints", {}).get(BatchKind.FULL.value, {})
        loaded = (watermark.version, watermark.update_id)
        if (before.get("version"), before.get("update_id")) != loaded:
            return None
        try:
            with bounded(connection, _FINGERPRINT_MILLISECONDS):
                now = source.fingerprint(connection, Batch(BatchKind.FULL))
        except pg.QueryCanceled:
            return None
        return bool(before.get("fingerprint") != now)

    def _notes(
        self, row: SourceRow | None, found: _Found, made: TransformedRow | None
    ) -> list[str]:
        notes = list(found.notes)
        if not found.exists and found.watermark.version:
            notes.append(f"{self.sync.target} does not exist any more")
        expected = self._expected(row, made) if self.sync.transform is None or made else None
        if expected is not None and found.row is not None:
            lacking = [name for name in expected if name not in found.row.values]
            if lacking:
                notes.append(f"the target has no column {', '.join(lacking)}")
        if row is not None and row.rows > 1:
            notes.append(f"{row.rows:,} rows of the source have this key; this is the newest")
        if found.versions > 1:
            kept = (
                "versions of it are kept" if self.sync.key else "rows of the target have this key"
            )
            notes.append(f"{found.versions:,} {kept}; this is the newest")
        if made is not None and len(made.rows) > 1:
            notes.append("the transformation makes several rows of it; the first was compared")
        return notes


def _lake_notes(view: IcebergState, found: LakeRow | None) -> list[str]:
    notes: list[str] = []
    if view.unrecorded is not None:
        notes.append(f"load {view.unrecorded} is in and not recorded yet; the next run does that")
    others = [one.snapshot_id for one in view.strangers()]
    if found is None and others:
        notes.append(
            "somebody else has committed to the lake since the last load, last in snapshot "
            f"{others[0]}"
        )
    elif found is not None and found.edited_in is not None:
        notes.append(f"it was written in snapshot {found.edited_in}, which is none of a load")
    elif found is not None and found.row.update_id is not None and found.written_in is not None:
        notes.append(f"it was written in snapshot {found.written_in.snapshot_id}")
    return notes


def _differences(
    expected: dict[str, str | None] | None, found: TargetRow | None
) -> tuple[ColumnDifference, ...]:
    if expected is None or found is None:
        return ()
    return tuple(
        ColumnDifference(name, value, found.values[name])
        for name, value in expected.items()
        if name in found.values and value != found.values[name]
    )
