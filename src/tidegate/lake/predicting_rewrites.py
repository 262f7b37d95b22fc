"""What the actions that rewrite files will make of a table's current snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate.lake.deletes import Deletes, PartitionKey
from tidegate.lake.manifest_entries import (
    FileEntry,
    holds_deletes,
    manifests_of,
    read_entries,
)
from tidegate.lake.table_properties import MANIFEST_SIZE, TARGET_SIZE, whole_property
from tidegate.model.bin_packing import (
    DELETED_SHARE,
    TARGET_FILE_BYTES,
    TARGET_MANIFEST_BYTES,
    FileSizes,
    Packer,
)
from tidegate.model.maintenance import (
    Amount,
    Effect,
    RewriteDataFiles,
    RewritePositionDeleteFiles,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table


def predict_data_files(table: Table, options: RewriteDataFiles) -> Effect:
    """Data files before and after; what they weigh afterwards is what they weigh now."""
    metadata = table.metadata
    own = whole_property(metadata.properties, TARGET_SIZE, TARGET_FILE_BYTES)
    sizes = FileSizes(options.target_file_bytes or own)
    packers: dict[PartitionKey | None, Packer] = {}
    deletes = Deletes(metadata)
    files = size = 0
    for manifest in _deletes_first(manifests_of(table, table.current_snapshot())):
        for entry in read_entries(table.io, manifest):
            if holds_deletes(manifest):
                deletes.take(entry)
                continue
            files += 1
            size += entry.bytes
            # Files of former partitionings are put together, whatever they hold.
            current = entry.spec_id == metadata.default_spec_id
            key = (entry.spec_id, entry.partition) if current else None
            packer = packers.get(key)
            if packer is None:
                packer = packers[key] = Packer(sizes)
            packer.add(entry.bytes, must=_must_go(entry, deletes, options.delete_file_threshold))
    groups = [
        group for packer in packers.values() for group in packer.groups(options.min_input_files)
    ]
    gone = sum(group.files - sizes.output_files(group.bytes) for group in groups)
    return Effect(
        "data files",
        Amount(files, size),
        Amount(files - gone, size),
        rewritten=sum(group.files for group in groups),
    )


def predict_position_deletes(table: Table, options: RewritePositionDeleteFiles) -> Effect:
    """Position delete files before and after."""
    deletes = Deletes(table.metadata)
    oldest: dict[PartitionKey, int] = {}
    manifests = manifests_of(table, table.current_snapshot())
    if not any(map(holds_deletes, manifests)):
        return Effect("delete files", Amount(), Amount())
    for manifest in _deletes_first(manifests):
        for entry in read_entries(table.io, manifest):
            if holds_deletes(manifest):
                deletes.take(entry)
                continue
            deletes.see(entry)
            key = (entry.spec_id, entry.partition)
            oldest[key] = min(entry.sequence, oldest.get(key, entry.sequence))
    before, after = deletes.put_together(options.min_input_files, oldest)
    return Effect("delete files", before, after)


def predict_manifests(table: Table) -> Effect:
    """Manifests before and after; what they weigh afterwards is what they weigh now."""
    metadata = table.metadata
    target = whole_property(metadata.properties, MANIFEST_SIZE, TARGET_MANIFEST_BYTES)
    manifests = manifests_of(table, table.current_snapshot())
    gone = 0
    for kind in (False, True):
        taken = [
            one
            for one in manifests
            if holds_deletes(one) is kind and one.partition_spec_id == metadata.default_spec_id
        ]
        gone += len(taken) - _manifests_written(taken, target)
    size = sum(one.manifest_length for one in manifests)
    before = Amount(len(manifests), size)
    return Effect("manifests", before, Amount(before.files - gone, size))


def _manifests_written(manifests: list[ManifestFile], target: int) -> int:
    wanted = -(-sum(one.manifest_length for one in manifests) // target)
    if wanted == 1 and len(manifests) == 1:
        return 1
    # An empty one is not written.
    live = sum((one.added_files_count or 0) + (one.existing_files_count or 0) for one in manifests)
    return min(wanted, live)


def _must_go(entry: FileEntry, deletes: Deletes, threshold: int) -> bool:
    """Whether deletes have a data file rewritten, whatever its size."""
    lost = min(deletes.rows_of(entry.path), entry.records)
    if lost > 0 and lost >= entry.records * DELETED_SHARE:
        return True
    return threshold > 0 and deletes.files_for(entry) >= threshold


def _deletes_first(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    return sorted(manifests, key=holds_deletes, reverse=True)
