"""Arrow batches as lines that COPY takes, so that Postgres holds exactly the same values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.errors import DestinationError
from tidegate.postgres.types import postgres_type

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 10_000
# How the words of these types differ between Arrow and Postgres, before Christ and after 9999.
_NUMBERED = {"date": "integer", "timestamp": "bigint", "timestamp_ntz": "bigint"}
_EPOCH = "timestamp '1970-01-01'"
_MICROSECONDS = 86_400_000_000


def copied_type(kind: str, what: str) -> str:
    """The Postgres type in which a column of this type, in Spark's words, is copied."""
    found = _NUMBERED.get(kind) or postgres_type(kind)
    if found is None:
        raise DestinationError(
            f"{what} is of type {kind}, which Postgres has no equal of",
            "only flat columns of the types that Tidegate loads can be compared",
        )
    return found


def value_of(kind: str, column: str) -> str:
    """A copied column as the value it stands for, in the SQL of Postgres."""
    if kind == "date":
        return f"(date '1970-01-01' + {column})"
    if kind not in _NUMBERED:
        return column
    # In days and the rest of one: an interval of more microseconds would be rounded.
    moment = (
        f"({_EPOCH} + make_interval(days => ({column} / {_MICROSECONDS})::integer)"
        f" + make_interval(secs => ({column} % {_MICROSECONDS}) / 1e6::float8))"
    )
    return f"({moment} AT TIME ZONE 'UTC')" if kind == "timestamp" else moment


def csv_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The rows as CSV: what is NULL is not quoted, all else is."""
    import pyarrow as pa
    from pyarrow import csv

    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for start in range(0, batch.num_rows, _ROWS):
        part = batch.slice(start, _ROWS)
        columns = [_texts(column) for column in part.columns]
        names = [str(number) for number in range(len(columns))]
        sink = pa.BufferOutputStream()
        csv.write_csv(pa.RecordBatch.from_arrays(columns, names=names), sink, options)
        yield sink.getvalue().to_pybytes()


def _texts(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column, kind = column.storage, kind.storage_type
    if pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_fixed_size_binary(kind):
        return _uuids(column)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = column.to_pylist()
        return pa.array([None if one is None else f"\\x{one.hex()}" for one in values], pa.string())
    return column.cast(pa.string())


def _uuids(column: Any) -> Any:
    from uuid import UUID

    import pyarrow as pa

    return pa.array(
        [None if one is None else str(UUID(bytes=one)) for one in column.to_pylist()], pa.string()
    )
