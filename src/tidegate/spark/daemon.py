"""Spark's daemon on this machine, from which its Python workers are forked.

Spark's own imports pyspark from a zip file, which holds nothing compiled, and leaves the rest to
every worker. Here all of it is imported once, from where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from contextlib import suppress
from pathlib import Path

_ZIP = "pyspark/python/lib/pyspark.zip"
# What the workers of any of our jobs import.
_NEEDED = (
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "adbc_driver_postgresql.dbapi",
    "tidegate.spark.binary_copy",
    "tidegate.spark.transform",
)


def main() -> None:
    """Serve until Spark closes our input."""
    prepare()
    from pyspark import daemon

    daemon.manager()  # type: ignore[no-untyped-call]


def prepare() -> None:
    """Import what workers need, as far as it is there."""
    sys.path[:] = _without_zip(sys.path)
    for name in _NEEDED:
        # Whoever needs it says so, in the words that are known.
        with suppress(ImportError):
            importlib.import_module(name)


def _without_zip(path: list[str]) -> list[str]:
    """The path less Spark's zip file, if what is found instead is what it was made of."""
    rest = [place for place in path if not place.endswith(_ZIP)]
    packages = {Path(place).parents[2] for place in path if place.endswith(_ZIP)}
    found = importlib.machinery.PathFinder.find_spec("pyspark", rest)
    if found is None or found.origin is None or packages != {Path(found.origin).parent}:
        return path
    return rest


if __name__ == "__main__":
    main()
