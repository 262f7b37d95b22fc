"""Spark's workers are forked from a daemon that has imported what they need."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tidegate.spark.session import SparkSessions


def test_a_worker_starts_with_everything_imported_from_where_it_is_installed(
    warm_spark: SparkSessions,
) -> None:
    def look(_: int) -> tuple[str, str, bool]:
        import sys

        return (
            getattr(sys.modules["__main__"].__spec__, "name", ""),
            sys.modules["pyspark"].__file__ or "",
            {"pandas", "pyarrow", "tidegate.spark.binary_copy"} <= set(sys.modules),
        )

    (found,) = warm_spark.get().sparkContext.parallelize([0], 1).map(look).collect()
    assert found == ("tidegate.spark.daemon", str(Path(pyspark.__file__)), True)
