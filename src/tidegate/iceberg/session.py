"""One Spark session for each attempt, files registered through the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.core.errors import SettingsError
from tidegate.core.relation import Relation
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.jars import EXTENSIONS, ICEBERG, POSTGRES
from tidegate.spark.session import SparkSessions
from tidegate.spark.tags import is_classic, tagged, work_tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROPERTY = "spark.sql.iceberg.snapshot-property."
# To overwrite a table is to replace all of it, whatever the user's own jobs mean by that.
_STATIC = {"spark.sql.sources.partitionOverwriteMode": "static"}


@dataclass(frozen=True, slots=True)
class IcebergSession:
    """A Spark session with a catalog of its own."""

    spark: SparkSession
    catalog: Catalog

    def run(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement of ours; its answer is small."""
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def read(self, statement: str) -> DataFrame:
        return self.spark.sql(statement)

    def mark(self, properties: Mapping[str, str]) -> None:
        """What the summaries of the next commits say."""
        for name, value in properties.items():
            self.spark.conf.set(f"{_PROPERTY}{name}", value)

    @property
    def is_classic(self) -> bool:
        """Whether Iceberg's own interface is at hand, as opposed to its SQL alone."""
        return is_classic(self.spark)


@contextmanager
def iceberg_session(
    sessions: SparkSessions,
    catalog: Catalog,
    attempt_id: str | None = None,
    *,
    maintains: bool = False,
) -> Iterator[IcebergSession]:
    """A session for one attempt; its work can be interrupted, its connections end with it.

    One that `maintains` adds and takes away no row, so that a race it has lost harms nobody.
    """
    conf = catalog.spark_conf(attempt_id, maintains=maintains)
    spark = sessions.separate({**conf, **_STATIC})
    session = IcebergSession(spark, catalog)
    if session.is_classic and EXTENSIONS not in str(spark.conf.get("spark.sql.extensions", "")):
        # A session that somebody else has started, for other things.
        raise SettingsError(
            f'this Spark was started without Iceberg, which connection "{catalog.name}" needs',
            f"start it with spark.sql.extensions={EXTENSIONS} and "
            f"spark.jars.packages={ICEBERG},{POSTGRES}",
        )
    try:
        if attempt_id is None:
            yield session
        else:
            with tagged(spark, work_tag(attempt_id)):
                yield session
    finally:
        with suppress(Exception):
            _close(session)


def _close(session: IcebergSession) -> None:
    """Spark itself closes a catalog's connections only when it ends."""
    if not session.is_classic:
        session.spark.stop()
        return
    manager = session.spark._jsparkSession.sessionState().catalogManager()
    manager.catalog(session.catalog.name).icebergCatalog().close()


def register_files(
    session: IcebergSession,
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
