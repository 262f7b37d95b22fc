"""The least and the greatest value of a column, told from the metadata of files alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.lake.catalog import Catalog
from tidegate.lake.files import staged_path
from tidegate.lake.metadata import file_io, open_table
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Relation

# Their bounds are exact, where those of texts are cut off, and whole numbers in any file.
_EXACT = frozenset({"int", "long", "date", "timestamp", "timestamptz"})
# With more files than these, looking at each costs more than it saves.
_MOST_FILES = 10_000


def all_newer(
    catalog: Catalog,
    relation: Relation,
    branch: str,
    location: str,
    writes: Sequence[StagedWrite],
    column: str,
) -> bool:
    """Whether every staged row is above every row of a branch by this column, for certain."""
    table = open_table(catalog, relation)
    if table is None:
        return False
    field = next((one for one in table.schema().fields if one.name == column), None)
    if field is None or str(field.field_type) not in _EXACT:
        return False
    least = _least(file_io(catalog, location), location, writes, column)
    if least is None:
        return False
    snapshot = table.metadata.snapshot_by_name(branch)
    if snapshot is None or snapshot.summary is None:
        return False
    if int(snapshot.summary["total-data-files"] or 0) > _MOST_FILES:
        return False
    return all(
        _is_below(entry.data_file, field, least)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == 0
    )


def _least(io: Any, location: str, writes: Sequence[StagedWrite], column: str) -> int | None:
    """The least staged value; None where a row has none or it is not told."""
    import pyarrow.parquet as pq

    least: int | None = None
    for write in writes:
        with io.new_input(staged_path(location, write.write_id)).open() as stream:
            metadata = pq.read_metadata(stream)
        index = metadata.schema.to_arrow_schema().get_field_index(column)
        for group in range(metadata.num_row_groups):
            told = metadata.row_group(group).column(index).statistics
            if told is None or not told.has_min_max or told.null_count != 0:
                return None
            least = told.min_raw if least is None else min(least, told.min_raw)
    return least


def _is_below(file: Any, field: Any, least: int) -> bool:
    from pyiceberg.conversions import from_bytes

    nulls = (file.null_value_counts or {}).get(field.field_id, 0)
    if nulls == file.record_count:
        return True
    bound = (file.upper_bounds or {}).get(field.field_id)
    if bound is None:
        return False
    highest: Any = from_bytes(field.field_type, bound)
    return bool(highest < least)
