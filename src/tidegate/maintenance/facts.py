"""What a table is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from statistics import median_low
from typing import TYPE_CHECKING, Any

from tidegate.core.relation import Endpoint, Relation
from tidegate.core.table_actions import Action, Amount, RewriteDataFiles
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.manifests import POSITION_DELETES, holds_deletes, manifests_of, read_entries
from tidegate.iceberg.metadata import read_consistently
from tidegate.iceberg.table import MANIFEST_SIZE, TARGET_SIZE, may_delete_files, whole_property
from tidegate.load.context import Context
from tidegate.maintenance.delete_files import (
    TARGET_FILE_BYTES,
    TARGET_MANIFEST_BYTES,
    DeleteFiles,
    FileSizes,
    PartitionKey,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table at one moment; sizes are of the current snapshot unless they say otherwise."""

    uuid: str
    location: str
    metadata_location: str
    format_version: int
    snapshot_id: int | None
    """of main; None for a table that was never written"""
    snapshot_at: datetime | None
    snapshots: int
    oldest_snapshot_at: datetime | None
    branches: int
    tags: int
    records: int
    """rows in data files, deleted ones included"""
    target_file_bytes: int
    data: Amount
    small: Amount
    """data files below three quarters of the target size that have another such beside them"""
    small_after: int
    """how many files these would become, as far as can be told"""
    partitions: int
    largest_partition_bytes: int
    median_partition_bytes: int
    position_deletes: Amount
    position_deleted_rows: int
    equality_deletes: Amount
    equality_deleted_rows: int
    dangling_delete_files: int
    manifests: Amount
    small_manifests: int
    """below the size that Iceberg aims at, with another such beside them"""
    metadata_files: int
    """earlier versions of the metadata that are still known"""
    most_small_together: int = 0
    """of the small data files, the most that lie in one partition"""
    position_deletes_after: int = 0
    """how many position delete files would be left if they were put together"""
    loose_snapshots: int = 0
    """snapshots that are not the head of a branch and have no tag"""
    oldest_loose_at: datetime | None = None
    added_files_per_commit: float = 0.0
    """data files that a commit has brought, on average of those that are known and brought any"""
    added_bytes_per_file: float = 0.0
    may_delete_files: bool = True
    """False where the table's files may be shared with another (gc.enabled = false)"""

    def document(self) -> dict[str, Any]:
        """For the cache; `read` takes it back."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def read(cls, document: dict[str, Any]) -> TableFacts:
        """What `document` gave; what a later version added is left aside."""
        known = {one.name for one in fields(cls)}
        given = {name: value for name, value in document.items() if name in known}
        for name in ("snapshot_at", "oldest_snapshot_at", "oldest_loose_at"):
            if given.get(name) is not None:
                given[name] = datetime.fromisoformat(given[name])
        for name in ("data", "small", "position_deletes", "equality_deletes", "manifests"):
            given[name] = Amount(**given[name])
        return cls(**given)


_REPLACE = "replace"


def read_facts(
    catalog: Catalog, relation: Relation, target_file_bytes: int | None = None
) -> TableFacts | None:
    """The table as it is now; None when there is none.

    `target_file_bytes` is the size to measure small files by; None is what the table itself says.
    """
    return read_consistently(catalog, relation, lambda table: facts_of(table, target_file_bytes))


def facts_of(table: Table, target_file_bytes: int | None = None) -> TableFacts:
    """What the table's metadata tells; FileNotFoundError where it is being changed."""
    metadata = table.metadata
    current = table.current_snapshot()
    manifests = manifests_of(table, current)
    own = whole_property(metadata.properties, TARGET_SIZE, TARGET_FILE_BYTES)
    target = target_file_bytes or own
    found = _Files(FileSizes(target).least, DeleteFiles(metadata))
    found.read(table, manifests)
    small = found.small(metadata.default_spec_id)
    sizes = [one.bytes for one in found.partitions.values()]
    oldest = {key: one.oldest for key, one in found.partitions.items()}
    kinds = Counter(ref.snapshot_ref_type.value for ref in metadata.refs.values())
    at = [one.timestamp_ms for one in metadata.snapshots]
    loose = _loose_snapshots(metadata)
    commits, added = _added(metadata)
    return TableFacts(
        uuid=str(metadata.table_uuid),
        location=metadata.location,
        metadata_location=table.metadata_location,
        format_version=metadata.format_version,
        snapshot_id=None if current is None else current.snapshot_id,
        snapshot_at=None if current is None else moment(current.timestamp_ms),
        snapshots=len(at),
        oldest_snapshot_at=moment(min(at)) if at else None,
        branches=kinds["branch"],
        tags=kinds["tag"],
        records=found.records,
        target_file_bytes=target,
        data=Amount(sum(one.files for one in found.partitions.values()), sum(sizes)),
        small=Amount(sum(one.files for one in small), sum(one.bytes for one in small)),
        small_after=sum(FileSizes(target).output_files(one.bytes) for one in small),
        partitions=len(sizes),
        largest_partition_bytes=max(sizes, default=0),
        median_partition_bytes=median_low(sizes) if sizes else 0,
        position_deletes=found.position_deletes.amount,
        position_deleted_rows=found.position_deletes.rows,
        equality_deletes=found.equality_deletes.amount,
        equality_deleted_rows=found.equality_deletes.rows,
        dangling_delete_files=found.deletes.dangling(oldest),
        manifests=Amount(len(manifests), sum(one.manifest_length for one in manifests)),
        small_manifests=_small_manifests(
            manifests,
            whole_property(metadata.properties, MANIFEST_SIZE, TARGET_MANIFEST_BYTES),
            metadata.default_spec_id,
        ),
        metadata_files=len(metadata.metadata_log),
        most_small_together=max((one.files for one in small), default=0),
        position_deletes_after=found.deletes.put_together(2, oldest)[1].files,
        loose_snapshots=len(loose),
        oldest_loose_at=moment(min(loose)) if loose else None,
        added_files_per_commit=added.files / commits if commits else 0.0,
        added_bytes_per_file=added.bytes / added.files if added.files else 0.0,
        may_delete_files=may_delete_files(metadata.properties),
    )


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@dataclass(slots=True)
class _Partition:
    """The data files of one partition, added up."""

    files: int = 0
    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    oldest: int = 0


@dataclass(slots=True)
class _Sum:
    """Delete files of one kind, added up."""

    files: int = 0
    bytes: int = 0
    rows: int = 0

    @property
    def amount(self) -> Amount:
        return Amount(self.files, self.bytes)


@dataclass(slots=True)
class _Files:
    """All files of a snapshot, added up as they come."""

    small_below: int
    deletes: DeleteFiles
    records: int = 0
    partitions: dict[PartitionKey, _Partition] = field(default_factory=dict)
    position_deletes: _Sum = field(default_factory=_Sum)
    equality_deletes: _Sum = field(default_factory=_Sum)

    def read(self, table: Table, manifests: Iterable[ManifestFile]) -> None:
        # Those with deletes first: they say which data files are to be remembered.
        for manifest in sorted(manifests, key=holds_deletes, reverse=True):
            if holds_deletes(manifest):
                self._read_deletes(table, manifest)
            else:
                self._read_data(table, manifest)

    def _read_deletes(self, table: Table, manifest: ManifestFile) -> None:
        for entry in read_entries(table.io, manifest):
            self.deletes.take(entry)
            positions = entry.content == POSITION_DELETES
            total = self.position_deletes if positions else self.equality_deletes
            total.files += 1
            total.bytes += entry.bytes
            total.rows += entry.records

    def _read_data(self, table: Table, manifest: ManifestFile) -> None:
        partitions, small_below = self.partitions, self.small_below
        named = self.deletes.names_files
        for entry in read_entries(table.io, manifest):
            key = (entry.spec_id, entry.partition)
            found = partitions.get(key)
            if found is None:
                found = partitions[key] = _Partition(oldest=entry.sequence)
            found.files += 1
            found.bytes += entry.bytes
            if entry.bytes < small_below:
                found.small_files += 1
                found.small_bytes += entry.bytes
            if entry.sequence < found.oldest:
                found.oldest = entry.sequence
            self.records += entry.records
            if named:
                self.deletes.see(entry)

    def small(self, spec_id: int) -> list[Amount]:
        """Small files of each partition that has several: what can be put together."""
        groups: dict[PartitionKey | None, Amount] = {}
        for key, one in self.partitions.items():
            # Iceberg puts all files of former partitionings together.
            group = key if key[0] == spec_id else None
            held = groups.get(group, Amount())
            groups[group] = Amount(held.files + one.small_files, held.bytes + one.small_bytes)
        return [one for one in groups.values() if one.files > 1]


def _loose_snapshots(metadata: TableMetadata) -> list[int]:
    """When the snapshots were made that no branch or tag points at."""
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    return [one.timestamp_ms for one in metadata.snapshots if one.snapshot_id not in heads]


def _added(metadata: TableMetadata) -> tuple[int, Amount]:
    """How many commits have brought data files, and which; rewritten ones are not new."""
    commits = files = size = 0
    for one in metadata.snapshots:
        if one.summary is None or one.summary.operation.value == _REPLACE:
            continue
        told = one.summary.additional_properties
        brought = int(told.get("added-data-files", 0))
        if brought:
            commits += 1
            files += brought
            size += int(told.get("added-files-size", 0))
    return commits, Amount(files, size)


def _small_manifests(manifests: Iterable[ManifestFile], target: int, spec_id: int) -> int:
    beside: Counter[bool] = Counter()
    for one in manifests:
        # Iceberg rewrites those of the partitioning that is in force.
        if one.manifest_length < target and one.partition_spec_id == spec_id:
            beside[holds_deletes(one)] += 1
    return sum(count for count in beside.values() if count > 1)


def read_target_facts(context: Context, target: Endpoint) -> TableFacts | None:
    """The table as it is now; None when there is none."""
    policy = context.settings.maintenance.policy_of(target.connection, target.relation)
    options = policy.options[Action.REWRITE_DATA_FILES]
    assert isinstance(options, RewriteDataFiles)
    # Else what rewrite_data_files has made by these options would be small for ever.
    return read_facts(
        context.catalog(target.connection), target.relation, options.target_file_bytes
    )
