"""Files that become part of a table as they are, through Iceberg's own interface in the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegate.lake.session import LakeSession
from tidegate.model.relation import Relation


def register_files(
    session: LakeSession,
    relation: Relation,
    branch: str | None,
    paths: Iterable[str],
    properties: Mapping[str, str],
) -> None:
    """Append written files in one commit; their rows are read from nowhere and moved nowhere."""
    spark = session.spark
    assert spark._jvm is not None
    iceberg = spark._jvm.org.apache.iceberg
    name = session.catalog.quoted(relation)
    table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    append = table.newAppend()
    for path in paths:
        file = table.io().newInputFile(path)
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(
            file, iceberg.MetricsConfig.forTable(table)
        )
        built = (
            iceberg.DataFiles.builder(table.spec())
            .withInputFile(file)
            .withFormat("PARQUET")
            .withMetrics(metrics)
            .build()
        )
        append = append.appendFile(built)
    for key, value in properties.items():
        append = append.set(key, value)
    if branch is not None:
        append = append.toBranch(branch)
    append.commit()
