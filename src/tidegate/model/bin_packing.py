"""How Iceberg puts files together: which it takes, in what groups, and how many come of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

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
