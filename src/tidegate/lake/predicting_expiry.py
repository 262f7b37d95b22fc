"""What expire_snapshots will do to a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.lake.known_files import statistics_files
from tidegate.lake.manifest_entries import manifests_of, read_entries
from tidegate.model.expiry import AgedSnapshot, Expiry, Ref
from tidegate.model.maintenance import Amount, Effect, ExpireSnapshots

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

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
