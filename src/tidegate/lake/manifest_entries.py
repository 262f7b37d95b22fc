"""The files that a table's manifests list, one at a time.

pyiceberg's own reader makes a list of all, and leaves out which data file a delete file is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
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
