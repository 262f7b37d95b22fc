"""What all sources in a Postgres database share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.config.sync import Duplicates, Mode, Rules, Sync
from tidegate.core.batch import Batch
from tidegate.core.errors import DeclarationError, DriftRefused
from tidegate.core.identity import load_update_id
from tidegate.core.shape import Shape, record_columns
from tidegate.core.watermark import CursorType, Watermark
from tidegate.jobs.job import SYNC
from tidegate.jobs.job_records import JobRecords
from tidegate.load.context import Context
from tidegate.load.engine import Transfer
from tidegate.load.source import PassOver, Prepare
from tidegate.load.sources.cdc.first_copy import MARK_TYPE, mark_column
from tidegate.load.sources.cdc.slot_lifecycle import release_slots
from tidegate.load.sources.cdc.slot_registry import Slots
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.resolve import lake_shape, passthrough_shape
from tidegate.load.stage import Reading, Staged, stage_batch
from tidegate.load.target import Target
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.postgres.databases import CONTROL
from tidegate.postgres.types import lake_type


@dataclass(slots=True)
class DatabaseSource:
    """A table, view or query of a database, and the session in which it is read."""

    context: Context
    sync: Sync
    source: PostgresSource
    connection: Connection
    _identity: str | None = field(default=None, init=False)

    @property
    def names(self) -> tuple[str, ...]:
        return self.source.table.column_names

    @property
    def cursor_type(self) -> CursorType | None:
        return self.source.cursor_type

    @property
    def loads_whole(self) -> bool:
        return self.source.is_whole

    @property
    def identity(self) -> str:
        """The same wherever the database is reached, and as long as it exists."""
        if self._identity is None:
            self._identity = f"{database_identity(self.connection)}/{self.sync.source.relation}"
        return self._identity

    def rules(self, _: Batch) -> Rules:
        return self.sync.rules

    def update_id(self, batch: Batch, watermark: Watermark) -> str:
        return load_update_id(
            pipeline=self.sync.pipeline,
            source=self.identity,
            target=str(self.sync.target.relation),
            generation=watermark.generation,
            version=watermark.version,
            batch=batch,
        )

    def check(self, _: Watermark) -> None:
        """Nothing to refuse before a scan."""

    def stage(
        self, snapshot: Snapshot, batch: Batch, transfer: Transfer, prepare: Prepare
    ) -> Staged:
        """Write the rows of a batch aside, as one snapshot shows them."""
        return stage_batch(
            Reading(self.context, self.sync, self.source, self.connection, snapshot, batch),
            transfer.target,
            attempt_id=transfer.attempt.fence.attempt_id,
            prepare=prepare,
        )

    def known_fingerprints(self, transfer: Transfer) -> dict[str, Any]:
        """What the last run that went well remembers of the rows that it has loaded."""
        records = JobRecords(self.context.plane)
        last = transfer.attempt.ask(
            lambda control: records.last_result(control, self.sync.project, SYNC, self.sync.name)
        )
        found: dict[str, Any] = last.get("fingerprints", {})
        return found

    def release_slots(self, transfer: Transfer) -> None:
        """One that was read by its changes before must not hold its slot for ever."""
        slots, pipeline = Slots(self.context.plane), self.sync.pipeline
        if transfer.attempt.ask(lambda control: slots.read_by(control, pipeline)):
            with self.context.databases.lease(CONTROL) as control:
                release_slots(self.context, control, pipeline)

    def follow_columns(self, transfer: Transfer) -> None:
        """Let the target follow where no row came that it would have to follow for.

        Without this `verify` would ask for a run that does nothing. What a transformation makes of
        the columns is not known until it has rows.
        """
        watermark = transfer.watermark()
        recorded = (watermark.declaration or {}).get("columns")
        if transfer.outcome.loads or recorded is None or self.sync.transform is not None:
            return
        # What is replaced each time is loaded again when its columns change.
        if self.sync.mode is Mode.REPLACE or watermark.version == 0:
            return
        shape = _followed_shape(self.sync, self.source, transfer.target)
        columns = record_columns(shape)
        if columns == recorded:
            return
        try:
            transfer.outcome.remarks += transfer.target.prepare(
                shape,
                watermark,
                self.sync.rules,
                fence=transfer.attempt.fence,
                source_names=self.names,
            )
        except DriftRefused:
            # Who cannot follow says so when there is something to load.
            return
        kind = watermark.cursor_type
        transfer.pass_over(
            watermark,
            PassOver(
                watermark.value,
                None if kind is None else CursorType(kind),
                {**(watermark.declaration or {}), "columns": columns},
                reason="columns changed",
            ),
        )


def _followed_shape(sync: Sync, source: PostgresSource, target: Target) -> Shape:
    if isinstance(target, IcebergTarget):
        shape, kind = lake_shape(source), lake_type(MARK_TYPE)
    else:
        with target.open() as connection:
            shape, kind = passthrough_shape(connection, source), MARK_TYPE
    return mark_column(shape, kind) if sync.is_soft else shape


def check_first_key(
    sync: Sync, source: PostgresSource, connection: Connection, watermark: Watermark
) -> None:
    """On the first load, look once at the whole key unless an index vouches for it."""
    if sync.transform is not None or tolerates_duplicates(sync):
        return
    if watermark.version == 0:
        refuse_duplicates(source, connection, sync.name)


def tolerates_duplicates(sync: Sync) -> bool:
    """Whether rows that share a key do no harm."""
    return sync.duplicates is Duplicates.NEWEST or sync.mode is Mode.APPEND


def refuse_duplicates(source: PostgresSource, connection: Connection, sync_name: str) -> None:
    """Refuse a key that does not identify a row of the source."""
    duplicate = source.find_duplicate_key(connection)
    if duplicate is not None:
        raise DeclarationError(
            f"sync {sync_name}: the key ({', '.join(source.key)}) of {source.table.relation} is "
            f"not unique: one occurs {duplicate[1]} times",
            'choose a unique key, or set duplicates = "newest" to keep the newest row',
            detail=f"the key {duplicate[0]} occurs {duplicate[1]} times",
        )
