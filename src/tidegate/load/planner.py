"""What a run would do now: read from the databases, written nowhere, without Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.config import SparkSettings
from tidegate.config.sync import Duplicates, Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import ConnectionFailed, TidegateError
from tidegate.core.shape import LoadedShape, Shape
from tidegate.core.watermark import Guarantee, Horizon, Watermark
from tidegate.iceberg.metadata import read_table
from tidegate.jobs.job import SYNC
from tidegate.jobs.job_records import JobRecords
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.declaration_changes import (
    horizon_remarks,
    identity_remarks,
    refuse_changed_declaration,
    refuse_changed_target,
)
from tidegate.load.engine import FINISHES_REFRESH
from tidegate.load.groups import GroupTables
from tidegate.load.inspection import ReadSessions, read_lock, refuse_other_plane
from tidegate.load.modes import MODES
from tidegate.load.plan import (
    CursorPlan,
    GroupPlan,
    KeyPlan,
    LakePlan,
    LeftOutTable,
    ProjectPlan,
    Refusal,
    SyncPlan,
    TargetPlan,
    text_columns,
)
from tidegate.load.sources.cdc.source import plan_cdc_sync
from tidegate.load.sources.database import refuse_duplicates, tolerates_duplicates
from tidegate.load.sources.horizon import read_horizon
from tidegate.load.sources.iceberg import plan_lake_sync
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import bounded, count_relation, count_rows
from tidegate.load.sources.resolve import lake_shape, passthrough_shape, resolve_source
from tidegate.load.sources.snapshot import next_phase, read_promise, snapshot_warnings
from tidegate.load.sources.watermark_conditions import check_standing, pending_condition
from tidegate.load.stage import passed_columns, typed_columns
from tidegate.load.targets.postgres import statements as merge
from tidegate.load.targets.postgres.apply import Application
from tidegate.load.targets.postgres.drift import find_evolution
from tidegate.load.targets.postgres.rejected_rows import passing_rows
from tidegate.load.targets.postgres.table import (
    check_existing,
    check_present,
    fit_shape,
    physical_table,
    table_form,
    table_parts,
)
from tidegate.postgres.catalog import describe_table, is_empty
from tidegate.postgres.connection import Connection, translate
from tidegate.postgres.queries import qualified

_KEY_CHECK_MILLISECONDS = 60_000
_REMOTE_PARALLELISM = 4
# Loading more than this whenever anything changed deserves a second thought.
_LARGE_ROWS = 1_000_000


def plan_project(
    context: Context, syncs: Iterable[Sync], groups: Iterable[GroupTables] = ()
) -> ProjectPlan:
    """Plan every given sync; one that is refused does not keep the others from being planned."""
    plans: list[SyncPlan] = []
    refusals: list[Refusal] = []
    with ReadSessions(context) as sessions:
        for sync in syncs:
            try:
                plans.append(plan_sync(sessions, sync))
            except TidegateError as error:
                code = 1 if isinstance(error, ConnectionFailed) else 2
                refusals.append(
                    Refusal(
                        sync.name,
                        type(error).__name__,
                        error.message,
                        error.hint,
                        code,
                        sync.group,
                    )
                )
    return ProjectPlan(tuple(plans), tuple(refusals), tuple(_plan_group(one) for one in groups))


def _plan_group(expansion: GroupTables) -> GroupPlan:
    group = expansion.group
    return GroupPlan(
        group=group.name,
        source=group.source,
        target=str(group.target),
        tables=sum(sync.name != group.name for sync in expansion.syncs),
        left_out=tuple(LeftOutTable(str(one.relation), one.reason) for one in expansion.left_out),
        warnings=expansion.warnings,
    )


def plan_sync(sessions: ReadSessions, sync: Sync) -> SyncPlan:
    """Plan one sync; raises what a run would raise before it writes anything."""
    try:
        if sessions.context.is_lake(sync.source.connection):
            found = plan_lake_sync(sessions, sync)
        elif sync.changes == "cdc":
            found = plan_cdc_sync(sessions, sync, _plan_target)
        else:
            found = _Planning(sessions, sync).plan()
        return _with_removal(sessions, sync, found)
    except psycopg.Error as error:
        raise translate(error, f"planning {sync.name}") from error


def _with_removal(sessions: ReadSessions, sync: Sync, plan: SyncPlan) -> SyncPlan:
    """The same with what would leave the target; how many keys are others is not looked at."""
    batch, relation = plan.next_batch, sync.target.relation
    is_whole = batch is not None and batch.kind is BatchKind.FULL and plan.target_table.rows_present
    if not is_whole or plan.transformed:
        return plan
    if sync.lake_target:
        table = read_table(sessions.context.catalog(sync.target.connection), relation)
        present = 0 if table is None else table.rows()
    else:
        target = sessions.target(sync.target.connection)
        present, _ = count_relation(target, qualified(relation))
    removes, limit, warnings = max(0, present - plan.rows), sync.rules.removal, plan.warnings
    if limit is not None and limit.is_exceeded(removes, present):
        warnings += (
            f"about {removes:,} of the {present:,} rows of {sync.target} would be removed, more "
            f"than [safety] max_removed = {limit.share:.4g} allows: a run stops, unless it is "
            "given --allow-removal",
        )
    return replace(plan, removes=removes, warnings=warnings)


@dataclass(frozen=True, slots=True)
class _Phase:
    batch: Batch
    rows: int
    exact: bool


@dataclass(slots=True)
class _Planning:
    sessions: ReadSessions
    sync: Sync

    def plan(self) -> SyncPlan:
        sync, context = self.sync, self.sessions.context
        connection = self.sessions.source(sync.source.connection)
        source = resolve_source(connection, sync)
        target = self.sessions.target(sync.target.connection)
        watermark = Watermarks(context.ledger(sync.target.connection)).get(
            target, sync.pipeline, str(sync.target.relation)
        )
        refuse_changed_declaration(watermark, source, sync)
        refuse_changed_target(context, self.sessions.control(), sync)
        refuse_other_plane(self.sessions, sync)
        lake = LakePlan.read(context, sync) if context.is_lake(sync.target.connection) else None
        shape: Shape | None = None
        if sync.transform is None:
            shape = passthrough_shape(target, source) if lake is None else lake_shape(source)
        loaded = LoadedShape.recorded(watermark.declaration, source.table.column_names)
        target_plan = (
            _plan_target(target, sync, shape, watermark, loaded)
            if lake is None
            else lake.target(shape, watermark)
        )
        memory = self.sessions.memory(sync.pipeline)
        remarks: list[str] = []
        if source.written is not None:
            horizon = read_promise(connection, source, watermark, sync)
        else:
            remarks = check_standing(context, connection, source, watermark, sync)
            horizon = read_horizon(connection, source.cursor, memory, may_wait=False)
            remarks += horizon_remarks(connection, source.cursor, watermark, horizon)
            remarks += identity_remarks(connection, source.cursor)
        guarantee, because = horizon.guarantee, horizon.because
        if source.cursor is not None and guarantee is not Guarantee.EXACT:
            lookback = f"lookback = {sync.lookback}"
            because += f" ({lookback if sync.lookback else 'no lookback is declared'})"
        with context.reading(connection, source):
            warnings = self._check_key(connection, source)
            phases = self._phases(connection, source, watermark, horizon)
            batch = phases[0].batch if phases else None
            statements = self._statements(connection, source, batch)
        rows = sum(phase.rows for phase in phases)
        # Nobody may have analyzed the table yet.
        size = max(source.table.estimated_rows, rows)
        warnings += _warnings(sync, source, horizon, guarantee, size)
        if target_plan.rows_present and watermark.version == 0:
            warnings.append(
                f"{sync.target} holds rows already and everything is loaded into it; to go on "
                f"without that: tidegate adopt {sync.name}"
            )
        if watermark.is_refreshing:
            warnings.append(FINISHES_REFRESH)
        warnings += [*remarks, *target_plan.notes]
        if lake is not None and shape is not None:
            warnings += text_columns(source)
        rate = self._rows_per_second()
        return SyncPlan(
            sync=sync.name,
            source=sync.source_name,
            target=str(sync.target),
            mode=sync.mode.value,
            transformed=sync.transform is not None,
            key=KeyPlan(
                source.key,
                bool(sync.key) and "key" not in sync.proposed,
                source.table.proves_unique(source.key),
                _key_origin(sync, source),
            ),
            cursor=_cursor_plan(connection, source),
            changes=sync.changes,
            watermark=watermark.value,
            generation=watermark.generation,
            version=watermark.version,
            horizon=horizon.high,
            guarantee=guarantee,
            because=because,
            lookback=sync.lookback,
            held_by=horizon.held_by,
            rows=rows,
            rows_are_exact=all(phase.exact for phase in phases),
            batches=sum(max(1, -(-phase.rows // sync.batch_rows)) for phase in phases),
            next_batch=batch,
            partitions=len(statements),
            statements=statements,
            publish=_publish_statement(context, target, sync, shape, target_plan, batch)
            if lake is None
            else lake.publish(shape, batch),
            target_table=target_plan,
            lock=read_lock(self.sessions, sync),
            expected_seconds=rows / rate if rate and rows else None,
            warnings=tuple(warnings),
            notes=sync.notes,
            group=sync.group,
            table=sync.name.removeprefix(f"{sync.group}.") if sync.group else None,
            source_rows=size,
            is_large=source.is_whole and size > _LARGE_ROWS,
        )

    def _check_key(self, connection: Connection, source: PostgresSource) -> list[str]:
        """Look at the whole key, unless an index, a transformation or `duplicates` settles it."""
        if self.sync.transform is not None or tolerates_duplicates(self.sync):
            return []
        try:
            with bounded(connection, _KEY_CHECK_MILLISECONDS):
                refuse_duplicates(source, connection, self.sync.name)
        except pg.QueryCanceled:
            return [
                f"whether ({', '.join(source.key)}) is unique could not be seen within "
                f"{_KEY_CHECK_MILLISECONDS // 1000} s; a unique index on it would prove it"
            ]
        return []

    def _phases(
        self,
        connection: Connection,
        source: PostgresSource,
        watermark: Watermark,
        horizon: Horizon,
    ) -> list[_Phase]:
        """What is left to do, in the order in which a run does it."""
        phases: list[_Phase] = []
        if watermark.is_refreshing and not source.is_whole:
            whole = source.full_batch(connection, horizon)
            return [_Phase(whole, whole.rows, True)]
        if source.written is not None:
            found = next_phase(connection, source, watermark)
            return [] if found is None else [_Phase(*found)]
        if source.cursor is None:
            whole = source.full_batch(connection, horizon)
            same = self._unchanged(connection, source, whole, watermark)
            return [] if same else [_Phase(whole, whole.rows, True)]
        if watermark.value is not None:
            late = source.lookback_batch(connection, watermark.value, None)
            if late is not None:
                whole = Batch(BatchKind.LOOKBACK, late.low, watermark.value)
                if not self._unchanged(connection, source, whole, watermark):
                    counted = count_rows(connection, source, source.condition(whole))
                    phases.append(_Phase(late, *counted))
        new = source.next_batch(connection, watermark, horizon)
        if new is not None:
            condition = pending_condition(source, watermark, nulls=True, high=horizon.high)
            phases.append(_Phase(new, *count_rows(connection, source, condition)))
        nulls = source.null_batch(connection)
        if nulls is not None and not self._unchanged(connection, source, nulls, watermark):
            phases.append(_Phase(nulls, nulls.rows, True))
        return phases

    def _unchanged(
        self, connection: Connection, source: PostgresSource, batch: Batch, watermark: Watermark
    ) -> bool:
        """Whether the last run loaded these rows just so, and this one would pass them over."""
        control = self.sessions.control()
        if control is None:
            return False
        records = JobRecords(self.sessions.context.plane)
        known = records.last_result(control, self.sync.project, SYNC, self.sync.name)
        before = known.get("fingerprints", {}).get(batch.kind.value, {})
        if (before.get("version"), before.get("update_id")) != (
            watermark.version,
            watermark.update_id,
        ):
            return False
        return bool(before.get("fingerprint") == source.fingerprint(connection, batch))

    def _statements(
        self, connection: Connection, source: PostgresSource, batch: Batch | None
    ) -> tuple[str, ...]:
        if batch is None:
            return ()
        context, sync = self.sessions.context, self.sync
        typed = sync.transform is not None or context.is_lake(sync.target.connection)
        return tuple(
            source.read_statements(
                connection,
                batch,
                typed_columns(source) if typed else passed_columns(source),
                partitions=sync.partitions,
                parallelism=expected_parallelism(context.settings.spark),
            )
        )

    def _rows_per_second(self) -> float | None:
        control = self.sessions.control()
        if control is None:
            return None
        row = control.execute(
            self.sessions.context.plane.statement("load/throughput", "rows_per_second"),
            {"project": self.sync.project, "kind": SYNC, "name": self.sync.name},
        ).fetchone()
        return row[0] if row else None


def expected_parallelism(settings: SparkSettings) -> int:
    """How many tasks Spark would run at once, told from the settings alone."""
    if settings.remote is not None:
        return _REMOTE_PARALLELISM
    match = re.match(r"local(?:-cluster)?\[(\*|\d+)(?:,\s*(\d+))?", settings.master or "local[*]")
    if match is None:
        given = settings.conf.get("spark.default.parallelism", "")
        return int(given) if str(given).isdigit() else 1 if settings.master == "local" else 2
    if match.group(1) == "*":
        return len(os.sched_getaffinity(0))
    cores = int(match.group(2) or 1) if "cluster" in match.group(0) else 1
    return int(match.group(1)) * cores


def _plan_target(
    connection: Connection,
    sync: Sync,
    shape: Shape | None,
    watermark: Watermark,
    loaded: LoadedShape | None,
) -> TargetPlan:
    relation = sync.target.relation
    mode = MODES[sync.mode]
    if not mode.loads_whole:
        adds = mode.doubles(sync.key if shape is None else shape.key)
        check_present(connection, relation, watermark, sync.project, adds=adds)
    table = describe_table(connection, relation)
    exists = table is not None
    evolution = None
    if shape is not None:
        evolution = find_evolution(connection, relation, shape, sync.rules, loaded)
        evolved = None if evolution is None else evolution.table
        exists = check_existing(connection, relation, shape, sync.rules, evolved)
    if not exists:
        columns = () if shape is None else _definitions(connection, sync, shape)
        return TargetPlan(exists=False, rows_present=False, create=columns)
    statements = [] if evolution is None else evolution.statements()
    return TargetPlan(
        exists=True,
        rows_present=not is_empty(connection, qualified(relation)),
        alter=tuple(statement.as_string(connection) for statement in statements),
        notes=() if evolution is None else evolution.notes,
    )


def _definitions(connection: Connection, sync: Sync, shape: Shape) -> tuple[str, ...]:
    parts = table_parts(shape, table_form(shape, sync.rules))
    return tuple(part.as_string(connection) for part in parts)


def _publish_statement(
    context: Context,
    connection: Connection,
    sync: Sync,
    shape: Shape | None,
    target: TargetPlan,
    batch: Batch | None,
) -> str | None:
    """The statements that put staged rows in; unknown until a transformation has run."""
    if shape is None:
        return None
    rules, relation = sync.rules, sync.target.relation
    if batch is not None:
        rules = rules.for_batch(batch.kind, key_is_unique=shape.key_is_unique)
    if target.exists:
        shape = fit_shape(connection, physical_table(relation, shape, rules), shape)
    staging = sql.Identifier(context.settings.ledger.schema_name, "stg_…")
    rows: sql.Composable = merge.staged_rows([staging], shape, cast=True)
    if sync.duplicates is Duplicates.NEWEST and shape.may_repeat_keys:
        rows = merge.newest_rows(rows, shape)
    if rules.checks:
        rows = passing_rows(rows, shape, rules)
    full = batch is not None and batch.kind is BatchKind.FULL
    application = Application(relation, rows, shape, rules, "…", full)
    steps = application.steps(first=not target.rows_present)
    statements = [step.statement.as_string(connection) for step in steps]
    return "; ".join([*rules.before_sql, *statements, *rules.after_sql])


def _warnings(
    sync: Sync, source: PostgresSource, horizon: Horizon, guarantee: Guarantee, size: int
) -> list[str]:
    found: list[str] = []
    if source.written is not None:
        return snapshot_warnings(sync, source, size)
    if source.cursor is None:
        return _replace_warnings(sync, source, size)
    relation, cursor = source.table.relation, source.cursor.name
    if source.table.query is not None:
        found.append("whether an index serves the query cannot be seen; every batch runs it anew")
    elif not source.reads_by_index:
        found.append(
            f"no index of {relation} leads with {cursor}, so every batch reads the whole table"
        )
    if guarantee is not Guarantee.EXACT and source.lookback is None:
        found.append("no lookback is declared, so rows that commit late would be missed")
    if horizon.high is None and horizon.settles and horizon.held_by is None:
        found.append(f"a run waits {source.cursor.settle_seconds:g} s (settle) before it reads")
    if source.lookback is not None:
        found += _hidden_updates(sync, source)
    if sync.transform is not None:
        found.append("the target's columns are checked when the transformation runs")
    return found


def _hidden_updates(sync: Sync, source: PostgresSource) -> list[str]:
    """Where a row that the lookback finds cannot take the place of one with a higher cursor."""
    proven = sync.transform is None and source.table.proves_unique(source.key)
    warning = MODES[sync.mode].hides_updates(sync.cursor, key_is_proven=proven)
    return [] if warning is None else [warning]


def _cursor_plan(connection: Connection, source: PostgresSource) -> CursorPlan | None:
    if source.written is not None and source.written.cursor is not None:
        cursor = source.written.cursor
        return CursorPlan(cursor.name, cursor.type, source.reads_by_index, "bounds how far back")
    if source.cursor is None:
        return None
    words = source.cursor.facts(connection).words
    return CursorPlan(source.cursor.name, source.cursor.type, source.reads_by_index, words)


def _key_origin(sync: Sync, source: PostgresSource) -> str:
    if sync.key and "key" not in sync.proposed:
        return "declared"
    if set(source.key) == set(source.table.primary_key):
        return "primary key"
    return "unique index" if source.table.proves_unique(source.key) else "as loaded before"


def _replace_warnings(sync: Sync, source: PostgresSource, size: int) -> list[str]:
    found: list[str] = []
    if size > _LARGE_ROWS:
        found.append(
            f"every run that finds a change loads all of about {size:,} rows; a cursor would load "
            "only what changed"
        )
    if not source.key:
        found.append("without a key every row is deleted and inserted when anything changed")
    if sync.transform is not None:
        found.append("the target's columns are checked when the transformation runs")
    return found
