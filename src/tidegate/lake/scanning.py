"""The rows of a lake's table, read without Spark, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow

    table = open_table(catalog, relation)
    if table is None or table.metadata.current_snapshot() is None:
        return
    condition = AlwaysTrue() if where is None else where
    scan = table.scan(
        row_filter=condition,
        selected_fields=("*",) if columns is None else tuple(columns),
        snapshot_id=snapshot_id,
    )
    target = schema_to_pyarrow(scan.projection())
    reader = ArrowScan(table.metadata, table.io, scan.projection(), condition)
    with _reading(catalog, relation):
        # A file at a time: the library would read all of a table's files at once.
        for task in scan.plan_files():
            for batch in reader.to_record_batches([task]):
                found = batch.cast(target)
                yield found if columns is None else found.select(list(columns))


def count_rows(catalog: Catalog, relation: Relation) -> int:
    """How many rows main has; files are read only where rows were deleted from them."""
    table = open_table(catalog, relation)
    if table is None:
        return 0
    with _reading(catalog, relation):
        return table.scan().count()


@contextmanager
def _reading(catalog: Catalog, relation: Relation) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        # Such as deletes by value, which other engines write.
        raise DestinationError(
            f"the rows of {catalog.name}:{relation} cannot be read without Spark "
            f"({type(error).__name__})",
            "see that its files can be reached from here, and that no other engine has written "
            "deletes by value; rewrite_data_files folds these in",
        ) from None
