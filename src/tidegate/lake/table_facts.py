"""What a table is made of, from its metadata alone: no data file is opened, no Spark is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median_low
from typing import TYPE_CHECKING

from tidegate.lake.catalog import Catalog
from tidegate.lake.consistent import read_consistently
from tidegate.lake.dangling import Deletes, PartitionKey
from tidegate.lake.manifest_entries import (
    POSITION_DELETES,
    holds_deletes,
    manifests_of,
    read_entries,
)
from tidegate.model.bin_packing import TARGET_FILE_BYTES, TARGET_MANIFEST_BYTES, FileSizes
from tidegate.model.maintenance import Amount
from tidegate.model.relation import Relation
from tidegate.model.table_facts import TableFacts

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

TARGET_SIZE = "write.target-file-size-bytes"
MANIFEST_SIZE = "commit.manifest.target-size-bytes"


def read_facts(catalog: Catalog, relation: Relation) -> TableFacts | None:
    """The table as it is now; None when there is none."""
    return read_consistently(catalog, relation, facts_of)


def facts_of(table: Table) -> TableFacts:
    """What the table's metadata tells; FileNotFoundError where it is being changed."""
    metadata = table.metadata
    current = table.current_snapshot()
    manifests = manifests_of(table, current)
    target = whole_property(metadata.properties, TARGET_SIZE, TARGET_FILE_BYTES)
    found = _Files(FileSizes(target).least, Deletes(unpartitioned_specs(metadata)))
    found.read(table, manifests)
    small, small_after = found.small(metadata.default_spec_id, FileSizes(target))
    sizes = [one.bytes for one in found.partitions.values()]
    kinds = Counter(ref.snapshot_ref_type.value for ref in metadata.refs.values())
    at = [one.timestamp_ms for one in metadata.snapshots]
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
        small=small,
        small_after=small_after,
        partitions=len(sizes),
        largest_partition_bytes=max(sizes, default=0),
        median_partition_bytes=median_low(sizes) if sizes else 0,
        position_deletes=found.position_deletes.amount,
        position_deleted_rows=found.position_deletes.rows,
        equality_deletes=found.equality_deletes.amount,
        equality_deleted_rows=found.equality_deletes.rows,
        dangling_delete_files=found.dangling(),
        manifests=Amount(len(manifests), sum(one.manifest_length for one in manifests)),
        small_manifests=_small_manifests(
            manifests, whole_property(metadata.properties, MANIFEST_SIZE, TARGET_MANIFEST_BYTES)
        ),
        metadata_files=len(metadata.metadata_log),
    )


def whole_property(properties: Mapping[str, str], name: str, default: int) -> int:
    """A number among the table's properties; what cannot be read as one counts as not given."""
    try:
        return int(properties.get(name, default)) or default
    except ValueError:
        return default


def unpartitioned_specs(metadata: TableMetadata) -> frozenset[int]:
    return frozenset(one.spec_id for one in metadata.partition_specs if one.is_unpartitioned())


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
    deletes: Deletes
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

    def small(self, spec_id: int, sizes: FileSizes) -> tuple[Amount, int]:
        """Small files that another can be put beside, and how many would come of them."""
        groups: Counter[PartitionKey | None] = Counter()
        weights: Counter[PartitionKey | None] = Counter()
        for key, one in self.partitions.items():
            # Iceberg puts all files of former partitionings together.
            group = key if key[0] == spec_id else None
            groups[group] += one.small_files
            weights[group] += one.small_bytes
        several = [group for group, files in groups.items() if files > 1]
        amount = Amount(sum(groups[one] for one in several), sum(weights[one] for one in several))
        return amount, sum(sizes.output_files(weights[one]) for one in several)

    def dangling(self) -> int:
        return self.deletes.dangling({key: one.oldest for key, one in self.partitions.items()})


def _small_manifests(manifests: Iterable[ManifestFile], target: int) -> int:
    beside: Counter[tuple[int, bool]] = Counter()
    for one in manifests:
        if one.manifest_length < target:
            beside[one.partition_spec_id, holds_deletes(one)] += 1
    return sum(count for count in beside.values() if count > 1)
