"""Somebody else who writes to a lake's table: a session of their own, one commit after another.

python lake_writer.py PROJECT REMOTE STOP: adds a row a second until there is a file STOP, and says
so after each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidegate.project import Project

REGION = "elsewhere"


def main(folder: str, remote: str, stop: str) -> None:
    builder: Any = SparkSession.builder
    with Project.open(folder) as project:
        for name, value in project.context.catalog("lake").spark_conf().items():
            builder = builder.config(name, value)
    spark = builder.remote(remote).create()
    number = 0
    while not Path(stop).exists():
        started = time.monotonic()
        spark.sql(
            "INSERT INTO lake.raw.orders (region, id, total, updated_at) "
            f"VALUES ('{REGION}', {number}, 1.00, TIMESTAMP '2000-01-01')"
        ).collect()
        number += 1
        print(number, flush=True)
        time.sleep(max(0.0, started + 1 - time.monotonic()))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
