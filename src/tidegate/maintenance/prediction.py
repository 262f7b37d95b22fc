"""What an action will do, from metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidegate.core.errors import DestinationError
from tidegate.core.relation import Relation
from tidegate.core.table_actions import (
    Action,
    ActionOptions,
    Amount,
    Effect,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeleteFiles,
)
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.manifests import (
    FileEntry,
    holds_deletes,
    manifests_of,
    read_entries,
    statistics_files,
)
from tidegate.iceberg.metadata import read_consistently
from tidegate.iceberg.table import (
    GC_ENABLED,
    MAIN,
    MANIFEST_SIZE,
    TARGET_SIZE,
    may_delete_files,
    whole_property,
)
from tidegate.maintenance.delete_files import (
    DELETED_SHARE,
    TARGET_FILE_BYTES,
    TARGET_MANIFEST_BYTES,
    DeleteFiles,
    FileSizes,
    Packer,
    PartitionKey,
)
from tidegate.maintenance.orphan_files import find_orphans

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class AgedSnapshot:
    """A snapshot, its parent, and when it was made."""

    snapshot_id: int
    parent_id: int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag, with what it says itself of how long it is kept."""

    name: str
    snapshot_id: int
    is_branch: bool = True
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots: int | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """What holds where a branch or tag says nothing of its own."""

    now_ms: int
    older_than_ms: int
    """a moment"""
    retain_last: int = 1
    max_ref_age_ms: int | None = None

    def expired(
        self,
        snapshots: Collection[AgedSnapshot],
        refs: Collection[Ref],
        keep: Collection[int] = (),
    ) -> frozenset[int]:
        """Those that go; none of `keep`."""
        known = {one.snapshot_id: one for one in snapshots}
        held = [ref for ref in refs if self._holds(ref, known)]
        kept = {ref.snapshot_id for ref in held} | set(keep)
        referred = {ref.snapshot_id for ref in held}
        for ref in held:
            if ref.is_branch:
                kept.update(self._last(ref, known))
                referred.update(one.snapshot_id for one in _ancestors(ref.snapshot_id, known))
        kept.update(
            one.snapshot_id
            for one in snapshots
            if one.snapshot_id not in referred and one.at_ms >= self.older_than_ms
        )
        return frozenset(known) - kept

    def _holds(self, ref: Ref, known: Mapping[int, AgedSnapshot]) -> bool:
        """Whether a branch or tag is still there afterwards."""
        if ref.name == MAIN:
            return True
        if ref.snapshot_id not in known:
            return False
        most = self.max_ref_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        return most is None or self.now_ms - known[ref.snapshot_id].at_ms <= most

    def _last(self, ref: Ref, known: Mapping[int, AgedSnapshot]) -> Iterator[int]:
        """The last of a branch, and what is young enough before the first that is not."""
        older_than = self.older_than_ms
        if ref.max_snapshot_age_ms is not None:
            older_than = self.now_ms - ref.max_snapshot_age_ms
        least = self.retain_last if ref.min_snapshots is None else ref.min_snapshots
        for number, one in enumerate(_ancestors(ref.snapshot_id, known)):
            if number >= least and one.at_ms < older_than:
                return
            yield one.snapshot_id


def _ancestors(snapshot_id: int, known: Mapping[int, AgedSnapshot]) -> Iterator[AgedSnapshot]:
    found = known.get(snapshot_id)
    while found is not None:
        yield found
        found = None if found.parent_id is None else known.get(found.parent_id)


_MAX_REF_AGE = "history.expire.max-ref-age-ms"


def predict_expiry(
    table: Table, options: ExpireSnapshots, now: datetime, keep: Collection[int]
) -> Effect:
    """The files of all snapshots, before and after; earlier metadata files stay as they are."""
    gone = expired_snapshots(table.metadata, options, now, keep)
    kept_manifests, lost_manifests = _manifests(table, gone)
    files = _Files(table)
    # First what may go: only of that the paths need be kept.
    files.lose(lost_manifests)
    files.keep(kept_manifests)
    kept, lost = files.kept, files.lost
    for manifest in kept_manifests:
        kept = _more(kept, manifest.manifest_length)
    for manifest in lost_manifests:
        lost = _more(lost, manifest.manifest_length)
    for snapshot_id, size in _own_files(table):
        if snapshot_id in gone:
            lost = _more(lost, size)
        else:
            kept = _more(kept, size)
    before = Amount(kept.files + lost.files, kept.bytes + lost.bytes)
    return Effect("files", before, kept, snapshots=len(gone))


def expired_snapshots(
    metadata: TableMetadata, options: ExpireSnapshots, now: datetime, keep: Collection[int]
) -> frozenset[int]:
    """Those that will be forgotten."""
    now_ms = int(now.timestamp() * 1000)
    age = metadata.properties.get(_MAX_REF_AGE)
    expiry = Expiry(
        now_ms,
        now_ms - int(options.older_than_seconds * 1000),
        options.retain_last,
        None if age is None else int(age),
    )
    snapshots = [
        AgedSnapshot(one.snapshot_id, one.parent_snapshot_id, one.timestamp_ms)
        for one in metadata.snapshots
    ]
    refs = [
        Ref(
            name,
            ref.snapshot_id,
            ref.snapshot_ref_type.value == "branch",
            ref.max_ref_age_ms,
            ref.max_snapshot_age_ms,
            ref.min_snapshots_to_keep,
        )
        for name, ref in metadata.refs.items()
    ]
    return expiry.expired(snapshots, refs, keep)


class _Files:
    """Data and delete files, told apart by whether a snapshot that stays has them."""

    def __init__(self, table: Table) -> None:
        self._io = table.io
        self._candidates: dict[str, int] = {}
        self._seen: set[int] = set()
        self.kept = Amount()

    @property
    def lost(self) -> Amount:
        return Amount(len(self._candidates), sum(self._candidates.values()))

    def lose(self, manifests: Collection[ManifestFile]) -> None:
        for manifest in manifests:
            for entry in read_entries(self._io, manifest):
                self._candidates[entry.path] = entry.file_bytes

    def keep(self, manifests: Collection[ManifestFile]) -> None:
        files = size = 0
        for manifest in manifests:
            for entry in read_entries(self._io, manifest):
                self._candidates.pop(entry.path, None)
                # A file may stand in several manifests; numbers are smaller than paths.
                mark = hash(entry.path)
                if mark not in self._seen:
                    self._seen.add(mark)
                    files += 1
                    size += entry.file_bytes
        self.kept = Amount(files, size)


def _manifests(
    table: Table, gone: Collection[int]
) -> tuple[list[ManifestFile], list[ManifestFile]]:
    """Manifests that a snapshot which stays has, and those that only others have."""
    kept: dict[str, ManifestFile] = {}
    lost: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        held = lost if snapshot.snapshot_id in gone else kept
        for manifest in manifests_of(table, snapshot):
            held.setdefault(manifest.manifest_path, manifest)
    return list(kept.values()), [one for path, one in lost.items() if path not in kept]


def _own_files(table: Table) -> Iterator[tuple[int, int]]:
    """(snapshot, bytes) of the files that belong to one snapshot alone."""
    for snapshot in table.metadata.snapshots:
        yield snapshot.snapshot_id, len(table.io.new_input(snapshot.manifest_list))
    for _, size, snapshot_id in statistics_files(table.metadata):
        yield snapshot_id, size


def _more(amount: Amount, size: int) -> Amount:
    return Amount(amount.files + 1, amount.bytes + size)


def predict_data_files(table: Table, options: RewriteDataFiles) -> Effect:
    """Data files before and after; what they weigh afterwards is what they weigh now."""
    metadata = table.metadata
    own = whole_property(metadata.properties, TARGET_SIZE, TARGET_FILE_BYTES)
    sizes = FileSizes(options.target_file_bytes or own)
    packers: dict[PartitionKey | None, Packer] = {}
    deletes = DeleteFiles(metadata)
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
    deletes = DeleteFiles(table.metadata)
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


def _must_go(entry: FileEntry, deletes: DeleteFiles, threshold: int) -> bool:
    """Whether deletes have a data file rewritten, whatever its size."""
    lost = min(deletes.rows_of(entry.path), entry.records)
    if lost > 0 and lost >= entry.records * DELETED_SHARE:
        return True
    return threshold > 0 and deletes.files_for(entry) >= threshold


def _deletes_first(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    return sorted(manifests, key=holds_deletes, reverse=True)


def predict(
    catalog: Catalog,
    relation: Relation,
    action: Action,
    options: ActionOptions,
    *,
    now: datetime,
    keep: Collection[int] = (),
    orphans_before: datetime | None = None,
) -> Effect:
    """What an action will do, as far as the metadata tells.

    `keep` are snapshots that must not be forgotten; no file that was written after
    `orphans_before` counts as an orphan.
    """

    def of(table: Table) -> Effect:
        if isinstance(options, ExpireSnapshots | RemoveOrphanFiles):
            _check_may_delete(catalog, relation, action, table)
        match options:
            case ExpireSnapshots():
                return predict_expiry(table, options, now, keep)
            case RewriteDataFiles():
                return predict_data_files(table, options)
            case RewritePositionDeleteFiles():
                return predict_position_deletes(table, options)
            case RewriteManifests():
                return predict_manifests(table)
            case RemoveOrphanFiles():
                before = now - timedelta(seconds=options.older_than_seconds)
                found = find_orphans(catalog, relation, min(before, orphans_before or before))
                if found is None:
                    raise _no_table(catalog, relation)
                left = Amount(
                    found.listed.files - found.amount.files,
                    found.listed.bytes - found.amount.bytes,
                )
                return Effect("files", found.listed, left)

    effect = read_consistently(catalog, relation, of)
    if effect is None:
        raise _no_table(catalog, relation)
    return effect


def _check_may_delete(catalog: Catalog, relation: Relation, action: Action, table: Table) -> None:
    if not may_delete_files(table.metadata.properties):
        raise DestinationError(
            f"{action.value} is not for {catalog.name}:{relation}: {GC_ENABLED} is false, as "
            "another table may share its files",
            f"if none does: ALTER TABLE … SET TBLPROPERTIES ('{GC_ENABLED}' = 'true')",
        )


def _no_table(catalog: Catalog, relation: Relation) -> DestinationError:
    return DestinationError(
        f"there is no table {relation} in {catalog.name}", "see: tidegate table list"
    )
