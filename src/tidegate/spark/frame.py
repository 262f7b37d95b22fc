"""Is this a DataFrame that can be published? Asked without looking at its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import UsageError
from tidegate.spark.borrowing import is_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def require_frame(value: object) -> DataFrame:
    """The value, if it is a DataFrame of Spark, classic or Connect."""
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind.startswith("pyspark.pandas."):
        hint = "turn it into one with df.to_spark()"
    elif kind.startswith(("pandas.", "polars.", "pyarrow.")):
        hint = "turn it into one with spark.createDataFrame(…)"
    else:
        hint = "give the DataFrame itself, such as spark.table(…) or what df.select(…) returns"
    raise UsageError(f"publish takes a Spark DataFrame, not {kind.removeprefix('builtins.')}", hint)


def refuse_unreadable(frame: DataFrame) -> None:
    """A stream never ends, so it has no single load; a stopped session computes nothing."""
    if is_stopped(frame.sparkSession):
        raise UsageError(
            "the DataFrame belongs to a Spark session that was stopped",
            "make it again in a session that runs",
        )
    if frame.isStreaming:
        raise UsageError(
            "publish takes a DataFrame that ends, not a stream",
            "publish each of its micro-batches: writeStream.foreachBatch(…), with the batch's "
            "number in update_id",
        )
