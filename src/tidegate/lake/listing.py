"""The files that lie below a table's location, whether the table knows them or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that is there; its path starts as the table's location does."""

    path: str
    bytes: int
    modified_at: datetime | None


def list_files(table: Table) -> Iterator[ListedFile]:
    """All files of a table's folder, one folder at a time; hidden ones are left aside."""
    from pyarrow.fs import FileSelector

    io: Any = table.io
    location = table.metadata.location.rstrip("/")
    scheme, netloc, plain = io.parse_location(location, io.properties)
    files = io.fs_by_scheme(scheme, netloc)
    shown = _shown(table.metadata)
    folders = [plain]
    while folders:
        for one in files.get_file_info(FileSelector(folders.pop(), allow_not_found=True)):
            if one.base_name.startswith(_HIDDEN) and not one.base_name.startswith(shown):
                continue
            if one.is_file:
                yield ListedFile(location + one.path[len(plain) :], one.size, one.mtime)
            else:
                folders.append(one.path)


def _shown(metadata: TableMetadata) -> tuple[str, ...]:
    """Folders of partitions that look hidden but are not."""
    names = {field.name for spec in metadata.partition_specs for field in spec.fields}
    return tuple(f"{name}=" for name in sorted(names) if name.startswith(_HIDDEN))
