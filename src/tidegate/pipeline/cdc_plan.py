"""What a run would do now for a sync by its changes; makes no slot, reads nothing out of one."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.column import RelationKind
from tidegate.model.cursor import Guarantee
from tidegate.model.drift import Loaded
from tidegate.model.lsn import lsn_value
from tidegate.model.plan import KeyPlan, SlotPlan, SyncPlan, TargetPlan
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.cdc_origin import ChangeLog
from tidegate.pipeline.cdc_source import CdcSource, obstacles, refuse_obstacles
from tidegate.pipeline.changed import refuse_moved
from tidegate.pipeline.course import FINISHES_REFRESH
from tidegate.pipeline.declaration import lake_shape, passthrough_shape, resolve_source
from tidegate.pipeline.lake_target_plan import LakePlan, text_columns
from tidegate.pipeline.lock import read_lock, refuse_other_plane
from tidegate.pipeline.sessions import Sessions
from tidegate.pipeline.slot_remarks import slot_remark
from tidegate.pipeline.sync import refuse_duplicates
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.reading import count_rows

PlanTarget = Callable[[Connection, Sync, Shape | None, Watermark, Loaded | None], TargetPlan]
_BECAUSE = "every transaction is read from the source's own log, in the order of its commits"


def plan_cdc_sync(sessions: Sessions, sync: Sync, plan_target: PlanTarget) -> SyncPlan:
    """Plan one sync; raises what a run would raise before it writes anything."""
    context = sessions.context
    connection = sessions.source(sync.source.connection)
    source = resolve_source(connection, sync)
    target = sessions.target(sync.target.connection)
    watermark = Watermarks(context.ledger(sync.target.connection)).get(
        target, sync.pipeline, str(sync.target.relation)
    )
    control = sessions.control()
    changes = None
    if control is not None:
        log = ChangeLog.of(sync, source, connection, context.plane.identity(control))
        changes = CdcSource(context, sync, source, log)
        changes.refuse_changed(watermark)
    state = None if changes is None else changes.log.slot.look()
    copies = watermark.value is None or watermark.is_refreshing
    usable = changes is not None and changes.log.is_usable(state)
    slots = (0 if usable else 1) + 1 if copies else 0
    refuse_obstacles(sync, obstacles(connection, sync, source, slots=slots))
    refuse_moved(context, control, sync)
    refuse_other_plane(sessions, sync)
    if not copies and changes is not None:
        changes.refuse_unlogged(watermark)
    lake = LakePlan.read(context, sync) if context.is_lake(sync.target.connection) else None
    shape: Shape | None = None
    if sync.transform is None:
        shape = passthrough_shape(target, source) if lake is None else lake_shape(source)
    loaded = Loaded.recorded(watermark.declaration, source.table.column_names)
    target_plan = (
        plan_target(target, sync, shape, watermark, loaded)
        if lake is None
        else lake.target(shape, watermark)
    )
    with context.reading(connection, source):
        rows, exact = 0, False
        if copies:
            refuse_duplicates(source, connection, sync.name)
            rows, exact = count_rows(connection, source, source.condition(Batch(BatchKind.FULL)))
    server = read_server(connection)
    behind = 0
    batch: Batch | None = Batch(BatchKind.FULL, None, server.lsn, rows=rows)
    if not copies:
        assert watermark.value is not None
        behind = max(0, lsn_value(server.lsn) - lsn_value(watermark.value))
        batch = Batch(BatchKind.CHANGES, watermark.value, server.lsn) if behind else None
    warnings = _warnings(sync, source, watermark, target_plan)
    if state is not None:
        remark = slot_remark(context.settings.cdc, state, ())
        warnings += [] if remark is None else [remark.text]
    if lake is not None and shape is not None:
        warnings += text_columns(source)
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
            "declared" if sync.key and "key" not in sync.proposed else "primary key",
        ),
        cursor=None,
        watermark=watermark.value,
        generation=watermark.generation,
        version=watermark.version,
        horizon=None,
        guarantee=Guarantee.EXACT,
        because=_BECAUSE,
        lookback=None,
        held_by=None,
        rows=rows,
        rows_are_exact=exact,
        batches=1 if batch is not None else 0,
        next_batch=batch,
        partitions=sync.partitions or 1,
        statements=(),
        publish=None,
        target_table=target_plan,
        lock=read_lock(sessions, sync),
        expected_seconds=None,
        warnings=tuple(warnings),
        notes=sync.notes,
        group=sync.group,
        table=sync.name.removeprefix(f"{sync.group}.") if sync.group else None,
        source_rows=max(source.table.estimated_rows, rows),
        slot=SlotPlan(
            slot=None if changes is None else changes.log.slot.name,
            publication=None if changes is None else changes.log.publication.name,
            exists=usable,
            copies=copies,
            behind_bytes=behind,
            retained_bytes=None if state is None else state.retained_bytes,
            deletes=sync.deletes,
        ),
    )


def _warnings(
    sync: Sync, source: PostgresSource, watermark: Watermark, target: TargetPlan
) -> list[str]:
    found: list[str] = []
    if source.table.kind is RelationKind.PARTITIONED:
        found.append(
            f"{source.table.relation} is partitioned: what happens to a partition as a whole "
            "(TRUNCATE, DETACH, DROP, ATTACH with rows) is in no log; the run after one stops and "
            "names the way on"
        )
    if target.rows_present and watermark.version == 0:
        found.append(f"{sync.target} holds rows already; what the source does not have leaves it")
    if watermark.is_refreshing:
        found.append(FINISHES_REFRESH)
    return found + list(target.notes)
