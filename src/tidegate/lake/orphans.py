"""Files in a table's folder that the table does not know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.lake.catalog import Catalog
from tidegate.lake.consistent import read_consistently
from tidegate.lake.known_files import known_files, normal_path
from tidegate.lake.listing import ListedFile, list_files
from tidegate.model.maintenance import Amount
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class Orphans:
    """What is there in all, and what of it the table does not know."""

    listed: Amount
    files: tuple[ListedFile, ...]

    @property
    def amount(self) -> Amount:
        return Amount(len(self.files), sum(one.bytes for one in self.files))


def find_orphans(catalog: Catalog, relation: Relation, before: datetime) -> Orphans | None:
    """Files that were last written before a moment and that no snapshot knows; None: no table."""
    found = read_consistently(catalog, relation, lambda table: _candidates(table, before))
    if found is None:
        return None
    listed, candidates = found

    def unknown(table: Table) -> Orphans:
        left = dict(candidates)
        for path in known_files(table):
            left.pop(normal_path(path), None)
        return Orphans(listed, tuple(left.values()))

    # Looked up after the listing: what was committed meanwhile is known.
    return read_consistently(catalog, relation, unknown)


def _candidates(table: Table, before: datetime) -> tuple[Amount, dict[str, ListedFile]]:
    files = size = 0
    found: dict[str, ListedFile] = {}
    for one in list_files(table):
        files += 1
        size += one.bytes
        if one.modified_at is not None and one.modified_at < before:
            found[normal_path(one.path)] = one
    return Amount(files, size), found
