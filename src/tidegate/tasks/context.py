"""Ctx: the first argument of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.config.task import TaskRun
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import SourceError
from tidegate.core.log import log
from tidegate.core.relation import Endpoint
from tidegate.iceberg import statements
from tidegate.iceberg.session import iceberg_session
from tidegate.load.context import Context
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.stage import typed_columns
from tidegate.postgres.catalog import check_readable, describe_table
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import holds_own_sql
from tidegate.postgres.types import spark_type
from tidegate.spark.binary_copy import SnapshotReader
from tidegate.spark.tags import tagged, work_tag
from tidegate.spark.user_code import user_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Report = Callable[[dict[str, Any]], None]


class TaskContext:
    """Spark, tables, sessions, parameters and a log; all that it opened ends with the task."""

    def __init__(
        self,
        context: Context,
        run: TaskRun,
        *,
        attempt_id: str | None = None,
        report: Report = lambda _: None,
    ) -> None:
        self.task = run.name
        self.parameters: Mapping[str, Any] = dict(run.values)
        self.update_id = run.update_id
        self.attempt_id = attempt_id
        self.log = log.bind(task=run.name, parameters=run.parameters)
        self._context = context
        self._report = report
        self._open = ExitStack()
        self._session: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The project's Spark, which is started when it is first asked for."""
        if self._session is None:
            self._context.spark.ship(user_code(self._context.settings))
            self._session = self._context.spark.get()
            if self.attempt_id is not None:
                # A lost lease ends these Spark jobs, and no others.
                self._open.enter_context(tagged(self._session, work_tag(self.attempt_id)))
        return self._session

    def read(self, table: str) -> DataFrame:
        """A table as a DataFrame: `ctx.read("warehouse:raw.orders")`."""
        assert self.spark is not None
        return read_table_frame(
            self._context, Endpoint.parse(table), self._open, attempt_id=self.attempt_id
        )

    def connect(self, connection: str) -> Connection:
        """A session on one of the project's databases; it is closed when the task ends."""
        self._context.settings.connection(connection)
        return self._open.enter_context(self._context.databases.connect(connection, own_path=True))

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the task has got, for whoever watches its job."""
        found: dict[str, Any] = {"done": done}
        if total is not None:
            found["total"] = total
        if note is not None:
            found["note"] = note
        self._report(found)

    def __enter__(self) -> TaskContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, traceback)


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
        session = until.enter_context(iceberg_session(context.spark, catalog, attempt_id))
        return session.read(
            f"SELECT * FROM {statements.branch_table(catalog, endpoint.relation, None)}"
        )
    from tidegate.spark.transform import read_frame

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
