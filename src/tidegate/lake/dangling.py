"""Delete files that no data file is left for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.lake.manifest_entries import EQUALITY_DELETES, FileEntry

PartitionKey = tuple[int, tuple[Any, ...]]


class Deletes:
    """The delete files of a table, and what is known of the data files that they are for.

    All delete files come first: then only the data files that one of them names need be kept.
    """

    def __init__(self, unpartitioned: frozenset[int]) -> None:
        self._global = unpartitioned
        self._named: dict[tuple[str, int], int] = {}
        self._shared: dict[tuple[int, PartitionKey, int], int] = {}
        self._rows: dict[str, int] = {}
        self._found: dict[str, int] = {}

    def take(self, entry: FileEntry) -> None:
        """Note a delete file."""
        if entry.data_file is not None:
            named = (entry.data_file, entry.sequence)
            self._named[named] = self._named.get(named, 0) + 1
            self._rows[entry.data_file] = self._rows.get(entry.data_file, 0) + entry.records
            return
        key = (entry.content, (entry.spec_id, entry.partition), entry.sequence)
        self._shared[key] = self._shared.get(key, 0) + 1

    @property
    def names_files(self) -> bool:
        return bool(self._rows)

    def see(self, entry: FileEntry) -> None:
        """Note a data file, if a delete file names it."""
        if entry.path in self._rows:
            self._found[entry.path] = entry.sequence

    def rows_of(self, path: str) -> int:
        """Rows that are deleted from a file, as far as is known of it alone."""
        return self._rows.get(path, 0)

    def dangling(self, oldest: Mapping[PartitionKey, int]) -> int:
        """How many delete nothing any more; `oldest` is the least sequence of each partition."""
        oldest_of_all = min(oldest.values(), default=None)
        lost = 0
        for (path, sequence), count in self._named.items():
            found = self._found.get(path)
            if found is None or found > sequence:
                lost += count
        for (content, partition, sequence), count in self._shared.items():
            least = oldest.get(partition)
            if content == EQUALITY_DELETES:
                if partition[0] in self._global:
                    least = oldest_of_all
                if least is None or least >= sequence:
                    lost += count
            elif least is None or least > sequence:
                lost += count
        return lost
