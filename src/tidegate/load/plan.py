"""What a run would do, as values."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch
from tidegate.core.relation import Column
from tidegate.core.shape import Shape
from tidegate.core.watermark import CursorType, Guarantee, Session, Watermark
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import read_table
from tidegate.iceberg.table import IcebergTable
from tidegate.load.context import Context
from tidegate.load.modes import MODES
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.targets.iceberg.table import (
    adds_unrecorded,
    allowed_changes,
    alter_statements,
    check_present,
    create_parts,
    publish_steps,
)
from tidegate.load.targets.postgres.table import unrecorded
from tidegate.postgres.types import lake_type


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of a table; `free` as well when its holder is gone and the next run takes over."""

    resource: str
    free: bool
    holder: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The columns that identify a row; `proven` by a unique index of the source."""

    columns: tuple[str, ...]
    declared: bool
    proven: bool
    origin: str = "declared"
    """who chose it: declared, primary key, unique index, or the loads before"""


@dataclass(frozen=True, slots=True)
class CursorPlan:
    """The column that orders a sync; `indexed` when an index leads with it."""

    name: str
    type: CursorType
    indexed: bool
    stamped: str


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """The target as it is; what makes it, or what changes it before the next load."""

    exists: bool
    rows_present: bool
    create: tuple[str, ...] = ()
    alter: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The slot of a sync by its changes; its names are known once the project has run."""

    slot: str | None
    publication: str | None
    exists: bool
    copies: bool
    """whether the whole table is copied first"""
    behind_bytes: int
    """how much of the log has been written since the last load, whatever it is about"""
    retained_bytes: int | None
    deletes: str


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Everything a run of one sync would start from."""

    sync: str
    source: str
    target: str
    mode: str
    transformed: bool
    key: KeyPlan
    cursor: CursorPlan | None
    watermark: str | None
    generation: int
    version: int
    horizon: str | None
    guarantee: Guarantee
    because: str
    lookback: str | int | None
    held_by: Session | None
    rows: int
    rows_are_exact: bool
    batches: int
    next_batch: Batch | None
    partitions: int
    statements: tuple[str, ...]
    publish: str | None
    target_table: TargetPlan
    lock: Lock
    expected_seconds: float | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """what was chosen for a table of a group, and why"""
    group: str | None = None
    table: str | None = None
    """its name within the group"""
    source_rows: int = 0
    """about how many rows the source has"""
    is_large: bool = False
    """whether it loads so much each time that it deserves a second thought"""
    source_snapshot: str | None = None
    """where main of a lake's table stands, if the source is one"""
    snapshots: int | None = None
    """how many snapshots of it wait to be loaded; None where the source is no lake"""
    slot: SlotPlan | None = None
    """where its changes come from, if it is read by them"""
    changes: str = "cursor"
    """how changes are found"""
    removes: int = 0
    """how many rows of the target would go at least, by the numbers of rows on both sides"""


@dataclass(frozen=True, slots=True)
class LeftOutTable:
    """What a group's pattern matches and the group does not load, and why."""

    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How a group came to its tables."""

    group: str
    source: str
    target: str
    tables: int
    left_out: tuple[LeftOutTable, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task as it is declared; whether it is complete depends on its parameters."""

    task: str
    parameters: tuple[str, ...]
    target: str | None
    mode: str | None
    requires: tuple[str, ...]
    requires_computed: bool
    """a function of the parameters says what it requires"""
    complete: str
    """what tells that it is done"""
    schedule: str | None = None


@dataclass(frozen=True, slots=True)
class EventPlan:
    """The events of a project: what they become, and what a run would make first."""

    raw: str
    facts: str
    partition_column: str
    hashed: tuple[str, ...]
    dimensions: tuple[str, ...]
    views: tuple[str, ...]
    missing: tuple[str, ...]
    """tables, columns and functions that are not there yet"""
    months: tuple[str, ...]
    """partitions that waiting events need, or will"""
    waiting: int
    schedule: str | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sync that would not run, and what to do about it."""

    sync: str
    kind: str
    message: str
    hint: str | None
    exit_code: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    """The plans of a project's syncs, and the refusals; its tasks as they are declared."""

    plans: tuple[SyncPlan, ...]
    refusals: tuple[Refusal, ...]
    groups: tuple[GroupPlan, ...] = ()
    tasks: tuple[TaskPlan, ...] = ()
    events: EventPlan | None = None

    @property
    def exit_code(self) -> int:
        """2 when something is refused, 1 when something only could not be reached."""
        return max((refusal.exit_code for refusal in self.refusals), default=0)


# Types whose values are text already, whatever their length.
_TEXTS = frozenset({"text", "character varying", "character", "bpchar", "name", '"char"', "citext"})


@dataclass(frozen=True, slots=True)
class LakePlan:
    """One sync whose target is a lake's table, as it is now."""

    context: Context
    sync: Sync
    catalog: Catalog
    table: IcebergTable | None

    @classmethod
    def read(cls, context: Context, sync: Sync) -> LakePlan:
        catalog = context.catalog(sync.target.connection)
        table = read_table(catalog, sync.target.relation)
        return cls(context, sync, catalog, table)

    def target(self, shape: Shape | None, watermark: Watermark) -> TargetPlan:
        """What is there or is made; refuses as a run would."""
        sync, table = self.sync, self.table
        if not MODES[sync.mode].loads_whole and watermark.rows_synced:
            check_present(table, sync.target.relation, watermark, sync.project)
        if table is not None and adds_unrecorded(sync.mode, watermark) and table.has_rows():
            raise unrecorded(sync.target.relation, watermark, sync.project)
        if table is None:
            columns = () if shape is None else create_parts(shape, self.sync.layout)
            return TargetPlan(exists=False, rows_present=False, create=columns)
        alter: tuple[str, ...] = ()
        if shape is not None:
            changes = allowed_changes(table, shape, sync.rules)
            alter = alter_statements(self.catalog, sync.target.relation, *changes)
        return TargetPlan(exists=True, rows_present=table.rows() > 0, alter=alter)

    def publish(self, shape: Shape | None, batch: Batch | None) -> str | None:
        """What puts staged rows in; unknown until a transformation has run."""
        if shape is None:
            return None
        steps = publish_steps(
            self.catalog,
            self.sync.target.relation,
            self.table,
            shape,
            self.sync.rules
            if batch is None
            else self.sync.rules.for_batch(batch.kind, key_is_unique=shape.key_is_unique),
            batch,
            layout=self.sync.layout,
            classic=self.context.settings.spark.remote is None,
        )
        return "; ".join(steps)


def text_columns(source: PostgresSource) -> list[str]:
    """A warning that names the columns whose values arrive as text."""
    found = [f"{column.name} ({column.type})" for column in source.columns if _becomes_text(column)]
    if not found:
        return []
    return [f"Iceberg has no equal type, so these arrive as string: {', '.join(found)}"]


def _becomes_text(column: Column) -> bool:
    plain = column.wire.partition("(")[0]
    as_text = column.via_text or lake_type(column.wire) == "string"
    return as_text and plain not in _TEXTS
