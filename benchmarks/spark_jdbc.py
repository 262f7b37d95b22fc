"""Spark's own way: JDBC read, JDBC write into staging, the same upsert."""

from __future__ import annotations

from typing import Any

from benchmarks.floor import upsert
from benchmarks.shop import TABLE
from tidegate.postgres.connection import Connection

PACKAGE = "org.postgresql:postgresql:42.7.9"
PARTITIONS = 4


def read(spark: Any, source: dict[str, str], since: str | None, rows: int = 1_000_000) -> Any:
    """The source's rows as a DataFrame, read by several tasks where all are wanted."""
    options = {**source, "fetchsize": "10000"}
    reader = spark.read.format("jdbc").options(**options)
    if since is not None:
        query = f"(SELECT * FROM orders WHERE updated_at > '{since}') o"
        return reader.option("dbtable", query).load()
    return (
        reader.option("dbtable", "orders")
        .option("partitionColumn", "id")
        .option("lowerBound", 1)
        .option("upperBound", rows)
        .option("numPartitions", PARTITIONS)
        .load()
    )


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
    (
        read(spark, source, since)
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
