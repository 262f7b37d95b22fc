"""Which pyspark the workers on this machine import."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from tidegate.spark.daemon import _without_zip

INSTALLED = str(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")


def test_the_zip_file_of_the_installed_pyspark_is_not_needed() -> None:
    assert _without_zip([INSTALLED, *sys.path]) == sys.path


def test_a_spark_that_lies_elsewhere_is_left_alone() -> None:
    other = ["/elsewhere/pyspark/python/lib/pyspark.zip", *sys.path]
    assert _without_zip(other) == other
    of_a_distribution = ["/opt/spark/python/lib/pyspark.zip", *sys.path]
    assert _without_zip(of_a_distribution) == of_a_distribution


def test_where_nothing_else_is_found_the_zip_file_stays() -> None:
    assert _without_zip([INSTALLED, "/nowhere"]) == [INSTALLED, "/nowhere"]
