"""The first argument of every task: what it may ask for while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.log import log
from tidegate.model.relation import Endpoint
from tidegate.model.task import TaskRun
from tidegate.pipeline.context import Context
from tidegate.pipeline.user_code import user_code
from tidegate.postgres.connect import Connection
from tidegate.spark.tags import tagged, work_tag

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
        from tidegate.pipeline.task_reading import read_table_frame

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
