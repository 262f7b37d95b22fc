"""The files that a table's manifests name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_DELETED = 2
_PATH_COLUMN = 2147483546
"""the column of a position delete file that says where a row was"""
_CONTENT, _PATH, _PARTITION, _RECORDS, _BYTES = 0, 1, 3, 4, 5


class FileEntry(NamedTuple):
    """A file that is part of the table."""

    content: int
    path: str
    spec_id: int
    partition: tuple[Any, ...]
    sequence: int
    records: int
    bytes: int
    data_file: str | None = None
    """the only data file that a position delete file or deletion vector is for"""
    file_bytes: int = 0
    """of the file that it lies in; a file may hold several deletion vectors"""
    is_vector: bool = False


def manifests_of(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    """The manifests of a snapshot; none for a table that was never written."""
    if snapshot is None:
        return []
    from pyiceberg.manifest import read_manifest_list

    # Not `snapshot.manifests`, which keeps them for as long as the process lives.
    return list(read_manifest_list(table.io.new_input(snapshot.manifest_list)))


def holds_deletes(manifest: ManifestFile) -> bool:
    return int(manifest.content) != DATA


def read_entries(io: FileIO, manifest: ManifestFile) -> Iterator[FileEntry]:
    """What a manifest lists as part of the table."""
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS

    names = {one.name: at for at, one in enumerate(DATA_FILE_TYPE[3].fields)}
    lower, upper = names["lower_bounds"], names["upper_bounds"]
    reference, piece = names["referenced_data_file"], names["content_size_in_bytes"]
    spec_id = manifest.partition_spec_id
    inherited = manifest.sequence_number
    entries: AvroFile[Any] = AvroFile(
        io.new_input(manifest.manifest_path), MANIFEST_ENTRY_SCHEMAS[3]
    )
    with entries:
        for entry in entries:
            if entry[0] == _DELETED:
                continue
            sequence, file = entry[2], entry[4]
            content, size, data_file, vector = file[_CONTENT] or DATA, file[_BYTES], None, False
            if content == POSITION_DELETES:
                data_file = file[reference] or _only_path(file[lower], file[upper])
                vector = file[piece] is not None
            yield FileEntry(
                content,
                file[_PATH],
                spec_id,
                tuple(file[_PARTITION]),
                inherited if sequence is None else sequence,
                file[_RECORDS],
                file[piece] if vector else size,
                data_file,
                size,
                vector,
            )


def _only_path(lower: Any, upper: Any) -> str | None:
    least = (lower or {}).get(_PATH_COLUMN)
    if least is None or least != (upper or {}).get(_PATH_COLUMN):
        return None
    path: str = least.decode()
    return path


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
