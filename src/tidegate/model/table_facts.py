"""What a lake's table is made of, read from its metadata alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from tidegate.model.maintenance import Amount


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
