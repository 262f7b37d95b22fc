"""Delete files and Iceberg's bin packing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.core.table_actions import Amount
from tidegate.iceberg.manifests import EQUALITY_DELETES, FileEntry
from tidegate.iceberg.table import whole_property

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

TARGET_FILE_BYTES = 512 * 1024 * 1024
TARGET_DELETE_FILE_BYTES = 64 * 1024 * 1024
TARGET_MANIFEST_BYTES = 8 * 1024 * 1024
MAX_GROUP_BYTES = 100 * 1024 * 1024 * 1024
DELETED_SHARE = 0.3
"""a file that has lost so much of its rows is rewritten, whatever its size"""


@dataclass(frozen=True, slots=True)
class FileSizes:
    """What is neither too small nor too large, around the size that is aimed at."""

    target: int

    @property
    def least(self) -> int:
        return int(self.target * 0.75)

    @property
    def most(self) -> int:
        return int(self.target * 1.8)

    @property
    def most_written(self) -> int:
        """A little leeway, so that no tiny rest is left over."""
        return int(self.target + (self.most - self.target) * 0.5)

    def is_off(self, size: int) -> bool:
        return size < self.least or size > self.most

    def output_files(self, total: int) -> int:
        """How many files come of so many bytes."""
        if total < self.target:
            return 1
        whole, rest = divmod(total, self.target)
        if rest > self.least:
            return whole + 1
        if total // whole < min(1.1 * self.target, self.most_written):
            return whole
        return whole + 1


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that are rewritten together."""

    files: int
    bytes: int
    must: bool = False
    """one of them has lost too many rows"""

    def is_worth_it(self, sizes: FileSizes, min_input_files: int) -> bool:
        """Whether Iceberg rewrites it."""
        several = self.files > 1 and (self.files >= min_input_files or self.bytes > sizes.target)
        return several or self.bytes > sizes.most or self.must


@dataclass(slots=True)
class Packer:
    """Packs files into groups in the order in which they come; keeps nothing of a file."""

    sizes: FileSizes
    max_group_bytes: int = MAX_GROUP_BYTES
    _files: int = 0
    _bytes: int = 0
    _must: bool = False
    _full: list[FileGroup] = field(default_factory=list)

    def add(self, size: int, *, must: bool = False) -> None:
        """Take a file in, if it is off the mark or must be rewritten anyway."""
        if not must and not self.sizes.is_off(size):
            return
        if self._files and self._bytes + size > self.max_group_bytes:
            self._full.append(FileGroup(self._files, self._bytes, self._must))
            self._files, self._bytes, self._must = 0, 0, False
        self._files += 1
        self._bytes += size
        self._must = self._must or must

    def groups(self, min_input_files: int) -> Iterator[FileGroup]:
        """Those that Iceberg rewrites."""
        last = FileGroup(self._files, self._bytes, self._must)
        for group in (*self._full, last):
            if group.files and group.is_worth_it(self.sizes, min_input_files):
                yield group


PartitionKey = tuple[int, tuple[Any, ...]]
"""a partitioning and the values in it"""
_TARGET_SIZE = "write.delete.target-file-size-bytes"
_GRANULARITY = "write.delete.granularity"


@dataclass(slots=True)
class _Group:
    """The position delete files of one partition."""

    packer: Packer
    newest_unnamed: int | None = None
    """the sequence of those that are for several data files"""
    named: set[str] = field(default_factory=set)


class DeleteFiles:
    """The delete files of one snapshot, and what is known of the data files that they are for.

    All delete files come first: then only the data files that one of them names need be kept.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        target = whole_property(metadata.properties, _TARGET_SIZE, TARGET_DELETE_FILE_BYTES)
        self._sizes = FileSizes(target)
        # Spark's own default; Iceberg's is the other.
        self._by_file = metadata.properties.get(_GRANULARITY, "file") == "file"
        self._global = frozenset(
            one.spec_id for one in metadata.partition_specs if one.is_unpartitioned()
        )
        self._vectors_only = metadata.format_version >= 3
        self._named: dict[tuple[str, int], Amount] = {}
        self._shared: dict[tuple[int, PartitionKey, int], int] = {}
        self._of_partition: dict[PartitionKey | None, Counter[tuple[int, int]]] = {}
        """of files that name no data file: content and sequence; None is for all partitions"""
        self._of_file: dict[str, list[int]] = {}
        self._rows: dict[str, int] = {}
        self._found: dict[str, int] = {}
        self._groups: dict[PartitionKey, _Group] = {}
        self._positions = Amount()

    def take(self, entry: FileEntry) -> None:
        """Note a delete file."""
        partition = (entry.spec_id, entry.partition)
        if entry.content != EQUALITY_DELETES:
            self._take_positions(entry, partition)
        if entry.data_file is not None:
            named = (entry.data_file, entry.sequence)
            self._named[named] = _more(self._named.get(named, Amount()), entry.bytes)
            self._rows[entry.data_file] = self._rows.get(entry.data_file, 0) + entry.records
            self._of_file.setdefault(entry.data_file, []).append(entry.sequence)
            return
        key = (entry.content, partition, entry.sequence)
        self._shared[key] = self._shared.get(key, 0) + 1
        everywhere = entry.content == EQUALITY_DELETES and entry.spec_id in self._global
        reach = self._of_partition.setdefault(None if everywhere else partition, Counter())
        reach[entry.content, entry.sequence] += 1

    def _take_positions(self, entry: FileEntry, partition: PartitionKey) -> None:
        self._positions = _more(self._positions, entry.bytes)
        self._vectors_only = self._vectors_only and entry.is_vector
        group = self._groups.get(partition)
        if group is None:
            group = self._groups[partition] = _Group(Packer(self._sizes))
        group.packer.add(entry.bytes)
        if entry.data_file is not None:
            group.named.add(entry.data_file)
            return
        group.newest_unnamed = max(entry.sequence, group.newest_unnamed or 0)

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

    def files_for(self, data: FileEntry) -> int:
        """How many delete files may delete rows of a data file, as far as is known of them."""
        found = sum(sequence >= data.sequence for sequence in self._of_file.get(data.path, ()))
        for reach in (None, (data.spec_id, data.partition)):
            for (content, sequence), count in self._of_partition.get(reach, {}).items():
                is_later = sequence > data.sequence
                if is_later or (content != EQUALITY_DELETES and sequence == data.sequence):
                    found += count
        return found

    def dangling(self, oldest: Mapping[PartitionKey, int]) -> int:
        """How many delete nothing any more; `oldest` is the least sequence of each partition."""
        oldest_of_all = min(oldest.values(), default=None)
        lost = sum(amount.files for amount in self._lost())
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

    def _lost(self) -> Iterator[Amount]:
        """Those that name a data file which is gone, or younger than they are."""
        for (path, sequence), amount in self._named.items():
            found = self._found.get(path)
            if found is None or found > sequence:
                yield amount

    def put_together(
        self, min_input_files: int, oldest: Mapping[PartitionKey, int]
    ) -> tuple[Amount, Amount]:
        """Position delete files before and after they are rewritten."""
        before = after = self._positions
        if self._vectors_only:
            # Iceberg leaves a table alone whose deletes are all vectors.
            return before, after
        for partition, group in self._groups.items():
            taken = list(group.packer.groups(min_input_files))
            if taken:
                gone = sum(one.files for one in taken) - self._written(partition, group, oldest)
                after = Amount(after.files - gone, after.bytes)
        lost = sum(amount.bytes for amount in self._lost()) if after != before else 0
        return before, Amount(after.files, after.bytes - lost)

    def _written(
        self, partition: PartitionKey, group: _Group, oldest: Mapping[PartitionKey, int]
    ) -> int:
        live = sum(1 for path in group.named if path in self._found)
        least = oldest.get(partition)
        unnamed = (
            group.newest_unnamed is not None and least is not None and least <= group.newest_unnamed
        )
        if self._by_file:
            # One that names no file is for two at least; for which and how many, it does not tell.
            return max(live, 2 if unnamed else 0)
        weight = sum(one.bytes for one in group.packer.groups(1))
        return self._sizes.output_files(weight) if live or unnamed else 0


def _more(amount: Amount, size: int) -> Amount:
    return Amount(amount.files + 1, amount.bytes + size)
