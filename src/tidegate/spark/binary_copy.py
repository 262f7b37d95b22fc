"""Rows from source to staging without a transformation: binary COPY from end to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import LoadError, TidegateError
from tidegate.core.failpoints import reach
from tidegate.core.identity import new_write_id, staging_table
from tidegate.postgres.connection import OWN_PATH, Connection, Snapshot, connect, own_path
from tidegate.postgres.queries import holds_own_sql
from tidegate.spark.task_outcome import (
    OUTCOME_SCHEMA,
    collect_writes,
    failure,
    lacking,
    only,
    other_version,
    outcome_batches,
    spark_reason,
)
from tidegate.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_BLOCK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Where a task stages its rows; travels to the workers with the task."""

    conninfo: str
    schema: str
    control_id: UUID
    attempt_id: str
    columns: tuple[tuple[str, str], ...]
    """(name, type) of the staging table"""
    version: str = __version__
    """the driver's Tidegate"""

    def __repr__(self) -> str:
        return f"StagingPlace({self.schema}, {self.attempt_id})"

    def table(self, write_id: str) -> sql.Identifier:
        return sql.Identifier(
            self.schema, staging_table(self.control_id, self.attempt_id, write_id)
        )

    def check_version(self) -> None:
        """Called by the workers, who may have another Tidegate installed than the driver."""
        if self.version != __version__:
            raise other_version(self.version, __version__)

    def create_statement(self, write_id: str) -> sql.Composed:
        """Makes the table of one writer call; it commits together with its rows."""
        return sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
            self.table(write_id),
            sql.SQL(", ").join(
                [
                    sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
                    for name, kind in self.columns
                ]
            ),
        )


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """How a task reads its share of the batch; all shares see one snapshot."""

    conninfo: str
    snapshot: Snapshot
    statements: tuple[str, ...]
    own_path: bool = False
    """whether they hold SQL of the user's"""

    def __repr__(self) -> str:
        return f"SnapshotReader({len(self.statements)} statements)"

    @property
    def arrow_conninfo(self) -> str:
        """The same session as Arrow readers open it."""
        return make_conninfo(self.conninfo, application_name=self.snapshot.application)

    def open(self, sessions: CopySessions) -> Connection:
        """A session of the task that sees the snapshot."""
        connection = sessions.get(self.conninfo, "the source", self.snapshot.application)
        for statement in self.snapshot.entering():
            connection.execute(statement)
        if self.own_path:
            connection.execute(f"SET LOCAL {OWN_PATH}")
        return connection


@dataclass(frozen=True, slots=True)
class Copy:
    """One batch to be staged: where its rows are read, and where they go."""

    reader: SnapshotReader
    place: StagingPlace


def stage_copy(
    spark: SparkSession, reader: SnapshotReader, place: StagingPlace
) -> tuple[StagedWrite, ...]:
    """Stage every share of the batch, one Spark task each."""
    return only(stage_copies(spark, [Copy(reader, place)], tasks=len(reader.statements)))


def stage_copies(
    spark: SparkSession, copies: Sequence[Copy], *, tasks: int
) -> list[tuple[StagedWrite, ...] | TidegateError]:
    """Stage several batches in one Spark job; one that fails does not harm the others."""
    shares = [
        (place, share)
        for place, copy in enumerate(copies)
        for share in range(len(copy.reader.statements))
    ]

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with CopySessions() as sessions:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    number, share = shares[index]
                    outcome = _copy_share(copies[number], share, sessions)
                    yield from outcome_batches({**outcome, "copy": number})

    count = len(shares)
    frame = spark.range(0, count, 1, max(1, min(tasks, count))).mapInArrow(work, OUTCOME_SCHEMA)
    try:
        return collect_writes(frame, len(copies))
    except Exception as error:
        if (known := lacking(error)) is not None:
            raise known from error
        raise LoadError(
            f"Spark failed while it staged the rows: {spark_reason(error)}",
            "run again; nothing was published",
        ) from error


class CopySessions:
    """The sessions of one task: opened once for each database, and closed with the task."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Connection] = {}

    def get(self, conninfo: str, name: str, application: str) -> Connection:
        known = self._open.get((conninfo, application))
        if known is None or known.closed:
            known = connect(conninfo, name=name, application=application)
            self._open[conninfo, application] = known
        return known

    def drop(self) -> None:
        """After a failure: whatever state they are in, nobody uses them again."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def __enter__(self) -> CopySessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def _copy_share(copy: Copy, share: int, sessions: CopySessions) -> dict[str, Any]:
    reader, place = copy.reader, copy.place
    write_id = new_write_id()
    side = "source"
    try:
        place.check_version()
        source = reader.open(sessions)
        side = "destination"
        destination = sessions.get(place.conninfo, "the destination", "tidegate stage")
        with destination.transaction():
            destination.execute(place.create_statement(write_id))
            reach("stage.write")
            rows = copy_rows(
                source,
                reader.statements[share],
                destination,
                place.table(write_id),
                [name for name, _ in place.columns],
            )
        reach("stage.written")
        source.execute("ROLLBACK")
    except Exception as error:
        sessions.drop()
        return failure(error, side)
    return {"write_id": write_id, "rows": rows}


def copy_rows(
    source: Connection,
    statement: str | sql.Composable,
    destination: Connection,
    table: sql.Identifier,
    names: Sequence[str],
) -> int:
    """Pipe a query's rows into a table as binary COPY, in blocks, whatever their number."""
    into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        table, sql.SQL(", ").join(map(sql.Identifier, names))
    )
    text = statement if isinstance(statement, str) else statement.as_string(source)
    cursor = destination.cursor()
    path = own_path(source) if holds_own_sql(statement) else nullcontext()
    with path, cursor.copy(into) as copy:
        for block in _read_blocks(source, text):
            copy.write(block)
    return cursor.rowcount


def _read_blocks(source: Connection, statement: str) -> Iterator[bytes]:
    """A query's binary COPY in large blocks.

    libpq hands out a row at a time; taking them from it directly costs a third less than through
    the cursor's iterator, which is most of the time a copy takes.
    """
    libpq = source.pgconn
    started = libpq.exec_(f"COPY ({statement}) TO STDOUT (FORMAT binary)".encode())
    if started.status != ExecStatus.COPY_OUT:
        raise _error(started)
    take = libpq.get_copy_data
    rows: list[bytes] = []
    size = 0
    while True:
        length, data = take(0)
        if length <= 0:
            break
        rows.append(bytes(data))
        size += length
        if size >= _BLOCK_BYTES:
            yield b"".join(rows)
            rows.clear()
            size = 0
    if rows:
        yield b"".join(rows)
    while (ended := libpq.get_result()) is not None:
        if ended.status != ExecStatus.COMMAND_OK:
            raise _error(ended)


def _error(result: PGresult) -> psycopg.Error:
    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    message = result.error_message.decode("utf-8", "replace").strip()
    return psycopg.errors.lookup(state)(message) if state else psycopg.OperationalError(message)
