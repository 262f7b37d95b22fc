"""A catalog that is nothing but folders: each table numbers its metadata files itself."""

from __future__ import annotations

from typing import Any

from tidegate.model.relation import Relation


def newest_metadata(io: Any, warehouse: str, relation: Relation) -> str | None:
    """The metadata file that counts; None when there is no such table."""
    folder = f"{warehouse.rstrip('/')}/{relation.schema}/{relation.name}/metadata"
    version = _hint(io, f"{folder}/version-hint.text")
    # The hint is written after the commit, and not by one who was gone between the two.
    while io.new_input(_file(folder, version + 1)).exists():
        version += 1
    return _file(folder, version) if version else None


def has_folder(io: Any, location: str) -> bool:
    """Whether a folder is there, empty or not."""
    from pyarrow.fs import FileType

    scheme, netloc, plain = io.parse_location(location, io.properties)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(plain)
    return bool(found.type == FileType.Directory)


def list_folders(io: Any, warehouse: str) -> list[Relation]:
    """The tables below a warehouse."""
    from pyarrow.fs import FileSelector

    scheme, netloc, plain = io.parse_location(warehouse, io.properties)
    files = io.fs_by_scheme(scheme, netloc)

    def below(path: str) -> list[Any]:
        found = files.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted((one for one in found if not one.is_file), key=lambda one: one.path)

    return [
        Relation(namespace.base_name, table.base_name)
        for namespace in below(plain)
        for table in below(namespace.path)
        if any(one.base_name == "metadata" for one in below(table.path))
    ]


def _hint(io: Any, path: str) -> int:
    try:
        with io.new_input(path).open() as stream:
            return int(stream.read().decode())
    except (FileNotFoundError, ValueError):
        return 0


def _file(folder: str, version: int) -> str:
    return f"{folder}/v{version}.metadata.json"
