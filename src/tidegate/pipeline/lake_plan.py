"""What a run would do now for a sync that reads a lake: told by its metadata, without Spark."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.destinations.target import check_present
from tidegate.lake.metadata import read_table
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.cursor import Guarantee
from tidegate.model.plan import KeyPlan, SyncPlan, TargetPlan
from tidegate.model.rules import Mode
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.changed import refuse_moved
from tidegate.pipeline.course import FINISHES_REFRESH
from tidegate.pipeline.lake_declaration import refuse_changed_lake, resolve_lake_source
from tidegate.pipeline.lock import read_lock, refuse_other_plane
from tidegate.pipeline.sessions import Sessions
from tidegate.postgres.catalog import describe_table, is_empty
from tidegate.postgres.identifiers import qualified
from tidegate.sources.lake import LakeSource, added, take

_BECAUSE = "every commit to the table is a snapshot, and none is passed over"


def plan_lake_sync(sessions: Sessions, sync: Sync) -> SyncPlan:
    """Plan one sync; raises what a run would raise before it writes anything."""
    context = sessions.context
    source = resolve_lake_source(context, sync)
    target = sessions.target(sync.target.connection)
    watermark = Watermarks(context.ledger(sync.target.connection)).get(
        target, sync.pipeline, str(sync.target.relation)
    )
    refuse_changed_lake(watermark, source, sync)
    refuse_moved(context, sessions.control(), sync)
    refuse_other_plane(sessions, sync)
    target_plan = _target(sessions, sync, watermark)
    waiting = _waiting(source, watermark)
    main = source.table.main
    return SyncPlan(
        sync=sync.name,
        source=sync.source_name,
        target=str(sync.target),
        mode=sync.mode.value,
        transformed=sync.transform is not None,
        key=KeyPlan(
            source.key,
            bool(sync.key),
            proven=False,
            origin="declared" if sync.key else "identifier fields",
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
        rows=waiting.rows,
        rows_are_exact=False,
        batches=waiting.batches,
        next_batch=waiting.batch,
        partitions=sync.partitions or 1,
        statements=(),
        publish=None,
        target_table=target_plan,
        lock=read_lock(sessions, sync),
        expected_seconds=None,
        warnings=_warnings(sync, watermark, target_plan),
        notes=sync.notes,
        source_rows=source.table.rows(),
        source_snapshot=None if main is None else str(main),
        snapshots=waiting.snapshots,
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    batch: Batch | None
    snapshots: int
    rows: int
    batches: int


def _waiting(source: LakeSource, watermark: Watermark) -> _Waiting:
    table, value = source.table, watermark.value
    main = None if table.main is None else str(table.main)
    if watermark.is_refreshing:
        return _Waiting(source.whole_batch(table, BatchKind.FULL), 1, table.rows(), 1)
    if main is None or value == main:
        return _Waiting(None, 0, 0, 0)
    whole = source.mode is Mode.REPLACE
    if value is None or whole:
        kind = BatchKind.FULL if whole else BatchKind.SNAPSHOTS
        return _Waiting(source.whole_batch(table, kind), 1, table.rows(), 1)
    waiting = source.waiting(table, value)
    if all(snapshot.changes_nothing for snapshot in waiting):
        return _Waiting(None, len(waiting), 0, 0)
    batches, rest = 0, waiting
    while rest:
        rest = rest[len(take(rest, source.batch_rows)) :]
        batches += 1
    return _Waiting(source.next_batch(table, value), len(waiting), added(waiting), batches)


def _target(sessions: Sessions, sync: Sync, watermark: Watermark) -> TargetPlan:
    """The target as it is; its columns are checked when Spark tells those of the rows."""
    relation = sync.target.relation
    if sessions.context.is_lake(sync.target.connection):
        found = read_table(sessions.context.catalog(sync.target.connection), relation)
        return TargetPlan(found is not None, found is not None and found.rows() > 0)
    target = sessions.target(sync.target.connection)
    if sync.mode is not Mode.REPLACE:
        adds = sync.mode is Mode.APPEND and not sync.key
        check_present(target, relation, watermark, sync.project, adds=adds)
    exists = describe_table(target, relation) is not None
    return TargetPlan(exists, exists and not is_empty(target, qualified(relation)))


def _warnings(sync: Sync, watermark: Watermark, target: TargetPlan) -> tuple[str, ...]:
    found: list[str] = []
    if target.rows_present and watermark.version == 0:
        found.append(f"{sync.target} holds rows already and everything is loaded into it")
    if watermark.is_refreshing:
        found.append(FINISHES_REFRESH)
    return tuple(found)
