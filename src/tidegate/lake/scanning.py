"""The rows of a lake's table, read without Spark, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import DestinationError
from tidegate.lake.catalog import Catalog
from tidegate.lake.metadata import open_table
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    import pyarrow as pa


def read_rows(
    catalog: Catalog,
    relation: Relation,
    columns: Sequence[str] | None = None,
    *,
    where: Any = None,
    snapshot_id: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of main, or of one snapshot; `where` is an expression of pyiceberg's."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    table = open_table(catalog, relation)
    if table is None or table.metadata.current_snapshot() is None:
        return
    condition = AlwaysTrue() if where is None else where
    scan = table.scan(
        row_filter=condition,
        selected_fields=("*",) if columns is None else tuple(columns),
        snapshot_id=snapshot_id,
    )
    reader = ArrowScan(table.metadata, table.io, scan.projection(), condition)
    try:
        # A file at a time: the library would read all of a table's files at once.
        for task in scan.plan_files():
            for batch in reader.to_record_batches([task]):
                yield batch if columns is None else batch.select(list(columns))
    except (OSError, ValueError) as error:
        # Such as deletes by value, which other engines write.
        raise DestinationError(
            f"the rows of {catalog.name}:{relation} cannot be read without Spark "
            f"({type(error).__name__})",
            "see that its files can be reached from here, and that no other engine has written "
            "deletes by value; rewrite_data_files folds these in",
        ) from None
