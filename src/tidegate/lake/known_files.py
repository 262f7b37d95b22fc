"""Every file that a table knows: in any snapshot, or as part of its metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.lake.manifest_entries import manifests_of, read_entries

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!\\)")
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_SLASHES = re.compile(r"/{2,}")
_VERSION_HINT = "version-hint.text"


def normal_path(path: str) -> str:
    """The same text for the same file, however its path is written.

    >>> normal_path("file:///lake/a"), normal_path("s3a://bucket//a")
    ('/lake/a', 's3://bucket/a')
    """
    match = _SCHEME.match(path)
    if match is None:
        return _SLASHES.sub("/", path)
    scheme, rest = match[1].lower(), path[match.end() :]
    authority = ""
    if rest.startswith("//"):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
    rest = _SLASHES.sub("/", rest)
    if scheme == "file":
        return rest
    return f"{_SAME_SCHEMES.get(scheme, scheme)}://{authority}{rest}"


def known_files(table: Table) -> Iterator[str]:
    """Paths as the table writes them; a file may come more than once, a manifest is read once."""
    yield from _metadata_files(table)
    for manifest in all_manifests(table):
        yield manifest.manifest_path
        for entry in read_entries(table.io, manifest):
            yield entry.path


def all_manifests(table: Table) -> Iterator[ManifestFile]:
    """The manifests of all snapshots, each once."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in manifests_of(table, snapshot):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest


def statistics_files(metadata: TableMetadata) -> Iterator[tuple[str, int, int]]:
    """(path, bytes, snapshot) of what is known of a snapshot beyond its manifests."""
    for one in (*metadata.statistics, *metadata.partition_statistics):
        yield one.statistics_path, one.file_size_in_bytes, one.snapshot_id


def _metadata_files(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    # What a catalog of folders starts from.
    yield f"{table.metadata_location.rpartition('/')[0]}/{_VERSION_HINT}"
    for entry in metadata.metadata_log:
        yield entry.metadata_file
    for path, _, _ in statistics_files(metadata):
        yield path
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
