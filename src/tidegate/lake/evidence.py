"""Whether a load is in a table, from all that the table's files still tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.lake.catalog import Catalog
from tidegate.lake.metadata import lake_table, open_table
from tidegate.model.lake import MAIN, LakeTable, Seen
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    from pyiceberg.table import Table


def find_load(
    catalog: Catalog, found: LakeTable, update_id: str, base: int | None, snapshot: int | None
) -> Seen:
    """Whether a load is in, that was staged upon `base` and as `snapshot`, where that is known."""
    seen = found.see(update_id, base)
    if seen is not Seen.UNKNOWN:
        return seen
    table = open_table(catalog, found.relation)
    if table is None:
        return Seen.UNPUBLISHED
    seen = _trace(table, found.relation, update_id, base)
    if seen is Seen.UNKNOWN and snapshot is not None and _carries(table, snapshot):
        return Seen.PUBLISHED
    return seen


def has_rows(catalog: Catalog, relation: Relation, ref: str = MAIN) -> bool:
    """Whether a branch has any row, its deletes applied."""
    table = open_table(catalog, relation)
    if table is None or ref not in table.metadata.refs:
        return False
    try:
        return len(table.scan(limit=1).use_ref(ref).to_arrow()) > 0
    except ValueError:
        # Deletes by value, which other engines write; what they leave only Spark can tell.
        return True


def _trace(table: Table, relation: Relation, update_id: str, base: int | None) -> Seen:
    """Go back through what the table was after each commit: when the load got in, it was main."""
    for file in [entry.metadata_file for entry in reversed(table.metadata.metadata_log)]:
        try:
            was = _read(table, relation, file)
        except FileNotFoundError:
            break
        head = next(was.ancestors(), None)
        if head is not None and head.update_id == update_id:
            return Seen.PUBLISHED
        if head is None or head.snapshot_id == base:
            return Seen.UNPUBLISHED
    return Seen.UNKNOWN


def _read(table: Table, relation: Relation, file: str) -> LakeTable:
    from pyiceberg.serializers import FromInputFile

    return lake_table(relation, FromInputFile.table_metadata(table.io.new_input(file)))


def _carries(table: Table, snapshot_id: int) -> bool:
    """Whether main has a file that a snapshot brought: it remembers that until it is rewritten."""
    picked = table.snapshot_by_id(snapshot_id)
    brought = () if picked is None else _files(table, picked)
    paths = {path for added_by, path in brought if added_by == snapshot_id}
    return any(
        added_by == snapshot_id or path in paths
        for added_by, path in _files(table, table.current_snapshot())
    )


def _files(table: Table, snapshot: Any) -> Iterator[tuple[int | None, str]]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.snapshot_id, entry.data_file.file_path
