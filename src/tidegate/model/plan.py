"""What a run would do now, as values."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.model.batch import Batch
from tidegate.model.cursor import CursorType, Guarantee
from tidegate.model.horizon import Session


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
