"""`ctx.read`: a table of any connection as a DataFrame, for as long as the task runs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidegate.errors import SourceError
from tidegate.lake import statements
from tidegate.lake.session import lake_session
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.pipeline.privileges import check_readable
from tidegate.pipeline.stage import typed_columns
from tidegate.pipeline.user_code import user_code
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.identifiers import holds_own_sql
from tidegate.postgres.types import spark_type
from tidegate.sources.postgres import PostgresSource
from tidegate.spark.copying import SnapshotReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MANY_ROWS = 500_000


def read_table_frame(
    context: Context, endpoint: Endpoint, until: ExitStack, *, attempt_id: str | None
) -> DataFrame:
    """The rows of a table; all that is read of a database is read in one snapshot of it.

    Rows are read when the DataFrame is computed, so the snapshot is held `until` the task ends.
    """
    context.settings.connection(endpoint.connection)
    context.spark.ship(user_code(context.settings))
    if context.is_lake(endpoint.connection):
        catalog = context.catalog(endpoint.connection)
        session = until.enter_context(lake_session(context.spark, catalog, attempt_id))
        return session.read(
            f"SELECT * FROM {statements.branch_table(catalog, endpoint.relation, None)}"
        )
    from tidegate.spark.transforming import read_frame

    connection = until.enter_context(context.databases.connect_source(endpoint.connection))
    table = describe_table(connection, endpoint.relation)
    if table is None:
        raise SourceError(
            f"{endpoint} does not exist, or this role may not see it",
            "load it first, or require the sync or task that does",
        )
    check_readable(connection, table, [column.name for column in table.columns])
    source = PostgresSource(
        table=table,
        columns=table.columns,
        key=(),
        cursor=None,
        null_policy=None,
        lookback=None,
        batch_rows=_MANY_ROWS,
        where=None,
        tie_key=(),
    )
    snapshot = until.enter_context(context.reading(connection, source))
    batch = Batch(BatchKind.FULL, rows=table.estimated_rows)
    reader = SnapshotReader(
        conninfo=context.databases.portable_conninfo(endpoint.connection),
        snapshot=snapshot,
        statements=tuple(
            source.read_statements(
                connection,
                batch,
                typed_columns(source),
                partitions=None,
                parallelism=context.spark.parallelism(),
            )
        ),
        own_path=holds_own_sql(source.relation),
    )
    columns = [
        (column.name, "string" if column.via_text else spark_type(column.wire))
        for column in table.columns
    ]
    return read_frame(context.spark.get(), reader, columns)
