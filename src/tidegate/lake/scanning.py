"""The rows of a lake's table, read without Spark, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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

    table = open_table(catalog, relation)
    if table is None or table.current_snapshot() is None:
        return
    scan = table.scan(
        row_filter=AlwaysTrue() if where is None else where,
        selected_fields=("*",) if columns is None else tuple(columns),
        snapshot_id=snapshot_id,
    )
    for batch in scan.to_arrow_batch_reader():
        yield batch if columns is None else batch.select(list(columns))
