"""Spark's own way: JDBC read, JDBC write into staging, the same upsert."""

from __future__ import annotations

from typing import Any

from benchmarks.floor import upsert
from benchmarks.shop import TABLE
from tidegate.postgres.connect import Connection

PACKAGE = "org.postgresql:postgresql:42.7.9"
PARTITIONS = 4


def run(
    spark: Any,
    source: dict[str, str],
    target: dict[str, str],
    session: Connection,
    name: str,
    since: str | None,
) -> None:
    session.execute("DROP TABLE IF EXISTS jdbc_staging")
    session.execute(
        TABLE.format(name="jdbc_staging")
        .replace("CREATE TABLE", "CREATE UNLOGGED TABLE")
        .replace(" PRIMARY KEY", "")
    )
    where = "" if since is None else f" WHERE updated_at > '{since}'"
    options = {**source, "fetchsize": "10000"}
    reader = spark.read.format("jdbc").options(**options)
    if since is None:
        reader = (
            reader.option("dbtable", "orders")
            .option("partitionColumn", "id")
            .option("lowerBound", 1)
            .option("upperBound", 1_000_000)
            .option("numPartitions", PARTITIONS)
        )
    else:
        reader = reader.option("dbtable", f"(SELECT * FROM orders{where}) o")
    (
        reader.load()
        .write.format("jdbc")
        .options(**target)
        .option("dbtable", "jdbc_staging")
        .option("stringtype", "unspecified")
        .option("batchsize", "10000")
        .option("reWriteBatchedInserts", "true")
        .mode("append")
        .save()
    )
    session.execute(upsert(name, "jdbc_staging"))
    session.execute("DROP TABLE jdbc_staging")
