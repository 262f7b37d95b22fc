"""A table as its metadata describes it: snapshots, branches, properties."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.core.relation import MAX_NAME_BYTES, Relation
from tidegate.core.watermark import SUMMARY, LoadMark

MAIN = "main"
UPDATE_ID = f"{SUMMARY}update-id"
PIPELINE = f"{SUMMARY}pipeline"
STAGED_ID = "wap.id"
"""what a snapshot must not share with one that main has, if Iceberg shall pick it up for main"""
PICKED_ID = "published-wap-id"
_SOURCE_ID = "source-snapshot-id"
EMBEDDED = "embedded"

_BRANCH = "tidegate_"
_APPEND, _REPLACE = "append", "replace"
_SPARK_TYPES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "uuid": "string",
    "binary": "binary",
    "date": "date",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)\Z")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit, wherever in the table's tree it stands."""

    snapshot_id: int
    parent_id: int | None
    summary: Mapping[str, str] = field(default_factory=dict)
    operation: str = ""
    schema_id: int | None = None
    sequence: int = 0
    """which commit of the table it was, from 1; 0 where that is not known"""

    @property
    def adds_only(self) -> bool:
        """Whether no row that was there before has gone or changed."""
        return self.operation in (_APPEND, _REPLACE)

    @property
    def changes_nothing(self) -> bool:
        """Whether only files were rewritten, as a compaction does."""
        return self.operation == _REPLACE

    @property
    def update_id(self) -> str | None:
        """The load that it belongs to."""
        return self.summary.get(UPDATE_ID) or self.summary.get(PICKED_ID)

    def count(self, name: str) -> int:
        """A number of the summary, such as `total-records`."""
        return int(self.summary.get(name, "0"))


@dataclass(frozen=True, slots=True)
class IcebergField:
    """A column; `type` in Spark's words."""

    field_id: int
    name: str
    type: str
    required: bool = False


class PublishEvidence(StrEnum):
    """What a table's metadata says of a snapshot."""

    PUBLISHED = "published"
    """main is it, or comes from it"""
    UNPUBLISHED = "unpublished"
    UNKNOWN = "unknown"
    """snapshots between it and main have expired"""


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A table at one moment."""

    relation: Relation
    uuid: str
    location: str
    fields: tuple[IcebergField, ...]
    snapshots: Mapping[int, Snapshot]
    refs: Mapping[str, int]
    is_plain: bool = True
    """neither partitioned nor sorted, so that any file may be added to it"""
    properties: Mapping[str, str] = field(default_factory=dict)
    identifier: tuple[str, ...] = ()
    """the columns that the table itself says identify a row"""
    schemas: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    """the names that its columns have or had, by the number of the schema"""

    @property
    def main(self) -> int | None:
        return self.refs.get(MAIN)

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches of our attempts, at work or left over."""
        return tuple(name for name in sorted(self.refs) if attempt_of(name) is not None)

    def field(self, name: str) -> IcebergField | None:
        return next((one for one in self.fields if one.name == name), None)

    def ancestors(self, ref: str = MAIN) -> Iterator[Snapshot]:
        """The snapshots that a branch is made of, newest first, as far back as they are kept.

        A table's other snapshots, such as those of unpublished branches, are none of its content.
        """
        snapshot = self.snapshots.get(self.refs.get(ref, -1))
        while snapshot is not None:
            yield snapshot
            snapshot = self.snapshots.get(-1 if snapshot.parent_id is None else snapshot.parent_id)

    @property
    def loader(self) -> str | None:
        """The pipeline whose load was the last, as far back as snapshots are kept."""
        found = (snapshot.summary.get(PIPELINE) for snapshot in self.ancestors())
        return next((name for name in found if name), None)

    def since(self, snapshot_id: int) -> list[Snapshot] | None:
        """What main has gone through after a snapshot, oldest first; None if it is not known."""
        found: list[Snapshot] = []
        for snapshot in self.ancestors():
            if snapshot.snapshot_id == snapshot_id:
                return found[::-1]
            found.append(snapshot)
        return None

    def names_at(self, snapshot_id: int) -> Mapping[int, str]:
        """What its columns were called when a snapshot was made, by their numbers."""
        snapshot = self.snapshots.get(snapshot_id)
        number = None if snapshot is None else snapshot.schema_id
        now = {one.field_id: one.name for one in self.fields}
        return now if number is None else self.schemas.get(number, now)

    def is_cut(self, ref: str = MAIN) -> bool:
        """Whether the branch goes back to snapshots that have expired, or may do so.

        Who expires snapshots may keep the name of the last one's parent, as Spark does, or remove
        it, as PyIceberg does: then only the first commit of all is known to have none.
        """
        oldest = None
        for oldest in self.ancestors(ref):  # noqa: B007
            pass
        return oldest is not None and (oldest.parent_id is not None or oldest.sequence > 1)

    def holds(self, update_id: str, ref: str = MAIN) -> bool:
        """Whether a load is among what a branch is made of."""
        return any(snapshot.update_id == update_id for snapshot in self.ancestors(ref))

    def see(self, update_id: str, base: int | None) -> PublishEvidence:
        """Whether a load that was staged upon `base` is in main."""
        for snapshot in self.ancestors():
            if snapshot.update_id == update_id:
                return PublishEvidence.PUBLISHED
            if snapshot.snapshot_id == base:
                return PublishEvidence.UNPUBLISHED
        return PublishEvidence.UNKNOWN if self.is_cut() else PublishEvidence.UNPUBLISHED

    def loads(self, pipeline: str | None = None) -> Iterator[LoadMark]:
        """The loads of a sync, or of all, that main is made of, newest first, as far back as they
        are kept."""
        for snapshot in self.ancestors():
            summary = snapshot.summary
            if f"{SUMMARY}pipeline" not in summary and _SOURCE_ID in summary:
                # One that Iceberg picked up for main says only where it comes from.
                picked = self.snapshots.get(int(summary[_SOURCE_ID]))
                summary = summary if picked is None else picked.summary
            if snapshot.update_id is None:
                continue
            mark = LoadMark.read(snapshot.update_id, summary)
            if mark is not None and pipeline in (None, mark.pipeline):
                yield mark

    def rows(self, ref: str = MAIN) -> int:
        """How many rows a branch has at least; deletes may outlive the rows that they deleted."""
        head = self.snapshots.get(self.refs.get(ref, -1))
        if head is None:
            return 0
        return max(0, head.count("total-records") - head.count("total-position-deletes"))

    def has_rows(self, ref: str = MAIN) -> bool | None:
        """Whether a branch has any row; None where its summary does not tell."""
        head = self.snapshots.get(self.refs.get(ref, -1))
        if head is None or not head.count("total-records"):
            return False
        return True if self.rows(ref) and not head.count("total-equality-deletes") else None


def branch_name(attempt_id: str) -> str:
    """The branch on which an attempt stages its rows."""
    return f"{_BRANCH}{attempt_id}"


def attempt_of(branch: str) -> str | None:
    """The attempt that a branch belongs to; None for other people's branches."""
    found = re.fullmatch(rf"{_BRANCH}([0-9a-f]{{32}})", branch)
    return None if found is None else found[1]


def spark_type(iceberg_type: str) -> str:
    """A type in Spark's words; one that has none stays as it is."""
    if match := _DECIMAL.match(iceberg_type):
        return f"decimal({match[1]},{match[2]})"
    return _SPARK_TYPES.get(iceberg_type, iceberg_type)


def lake_resource(catalog: str, relation: Relation) -> str:
    """What a job on a lake's table locks, by whatever name its catalog is called."""
    return f"iceberg:{catalog}/{relation}"


def is_flat(spark_type: str) -> bool:
    """Whether a type is one of those that every destination has an equal of."""
    return spark_type in _SPARK_TYPES.values() or spark_type.startswith("decimal(")


def ledger_schema(project: str, connection: str, catalog: str) -> str:
    """Where the control database keeps what it knows of a lake.

    The embedded catalog is the project's own; another may be shared, under any name.
    """
    if catalog == EMBEDDED:
        name = f"tidegate_lake_{project}_{connection}"
        if len(name.encode()) <= MAX_NAME_BYTES:
            return name
        catalog = name
    return f"tidegate_lake_{hashlib.sha256(catalog.encode()).hexdigest()[:16]}"


TARGET_SIZE = "write.target-file-size-bytes"
MANIFEST_SIZE = "commit.manifest.target-size-bytes"
GC_ENABLED = "gc.enabled"


def whole_property(properties: Mapping[str, str], name: str, default: int) -> int:
    """A number above 0; what cannot be read as one counts as not given."""
    try:
        found = int(properties.get(name, default))
    except ValueError:
        return default
    return found if found > 0 else default


def may_delete_files(properties: Mapping[str, str]) -> bool:
    """Whether no other table shares files with this one."""
    return properties.get(GC_ENABLED, "true").lower() != "false"
