"""The exported snapshot and the first copy."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import SourceError
from tidegate.core.shape import Shape, StagedColumn
from tidegate.load.source import Prepare
from tidegate.load.sources.cdc.fold import DELETED_AT
from tidegate.load.sources.cdc.slot import PLUGIN, waited_too_long
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import reading
from tidegate.load.sources.resolve import lake_shape, passthrough_shape
from tidegate.load.stage import (
    Reading,
    Staged,
    passed_columns,
    stage_batch,
    staging_place,
    typed_columns,
)
from tidegate.load.target import Target
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.connection import Connection, Snapshot, connect, first_line, merge
from tidegate.postgres.types import lake_type
from tidegate.spark.binary_copy import Copy

MARK_TYPE = "timestamp with time zone"


def stage_first_copy(
    reading: Reading,
    destination: Target,
    attempt_id: str,
    soft: bool,
    prepare: Prepare,
) -> Staged:
    """Stage every row; where deleted rows stay, those of the copy are marked as not deleted."""
    if not soft:
        return stage_batch(reading, destination, attempt_id=attempt_id, prepare=prepare)
    if reading.sync.transform is not None:
        marked = replace(reading.sync, transform=_marking(reading.sync.transform))
        return stage_batch(
            replace(reading, sync=marked), destination, attempt_id=attempt_id, prepare=prepare
        )
    context, source = reading.context, reading.source
    unmarked = sql.SQL("NULL::{} AS {}").format(sql.SQL(MARK_TYPE), sql.Identifier(DELETED_AT))
    if isinstance(destination, IcebergTarget):
        from tidegate.iceberg.staged_files import stage_shares

        shape = mark_column(lake_shape(source), lake_type(MARK_TYPE))
        prepare(shape)
        if reading.batch.rows == 0:
            return Staged(shape, ())
        reader = reading.reader([*typed_columns(source), unmarked])
        place = destination.place(shape, attempt_id)
        return Staged(shape, stage_shares(context.spark.get(), reader, place))
    with destination.open() as connection:
        shape = mark_column(passthrough_shape(connection, source), MARK_TYPE)
    prepare(shape)
    if reading.batch.rows == 0:
        return Staged(shape, ())
    reader = reading.reader([*passed_columns(source), unmarked])
    staging = staging_place(context, reading.sync.target, shape, attempt_id)
    return Staged(shape, context.stager.stage(Copy(reader, staging)))


def mark_column(shape: Shape, kind: str) -> Shape:
    """With the column that says when a row was deleted."""
    return replace(shape, columns=(*shape.columns, StagedColumn(DELETED_AT, kind, kind)))


def _marking(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def marked(frame: Any) -> Any:
        from pyspark.sql import functions as f

        return transform(frame).withColumn(DELETED_AT, f.lit(None).cast("timestamp"))

    return marked


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """All that was committed up to `lsn`, and nothing else, is seen under `snapshot`."""

    lsn: str
    snapshot: Snapshot


@contextmanager
def replication_session(conninfo: str, name: str) -> Iterator[Connection]:
    """A session that also speaks the language of replication; `name` is the connection's."""
    with connect(
        merge(conninfo, replication="database"), name=name, application="tidegate copy"
    ) as session:
        yield session


@contextmanager
def copy_point(
    conninfo: str,
    name: str,
    connection: Connection,
    source: PostgresSource,
    *,
    timeout_seconds: float,
    lock_seconds: float,
) -> Iterator[CopyPoint]:
    """Hold such a snapshot in `connection`, under a name that any number of readers can import.

    The temporary slot that gave it goes with its session, which must stay until the snapshot
    is held elsewhere. A lock cannot be taken first: making the slot waits for the transaction of
    an ALTER, which would wait for that lock.
    """
    positions: list[str] = []

    @contextmanager
    def slot() -> Iterator[str]:
        with replication_session(conninfo, name) as session:
            lsn, given = _make(session, connection, timeout_seconds)
            positions.append(lsn)
            yield given

    with reading(connection, source, lock_seconds, given=slot) as snapshot:
        yield CopyPoint(positions[-1], snapshot)


def read_history(conninfo: str, name: str, timeline: int) -> str | None:
    """The history of a timeline, from its beginning; None where the server does not tell."""
    try:
        with replication_session(conninfo, name) as session:
            row = session.execute(
                sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline))
            ).fetchone()
    except psycopg.Error:
        return None
    content = None if row is None else row[1]
    return content.decode() if isinstance(content, bytes) else content


def _make(session: Connection, beside: Connection, timeout_seconds: float) -> tuple[str, str]:
    slot = f"tidegate_copy_{uuid.uuid4().hex[:16]}"
    # A statement_timeout does not hold for these commands, and any other ends the snapshot.
    timer = threading.Timer(timeout_seconds, session.cancel_safe)
    timer.start()
    try:
        row = session.execute(
            sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL {} EXPORT_SNAPSHOT").format(
                sql.Identifier(slot), sql.Identifier(PLUGIN)
            )
        ).fetchone()
    except pg.QueryCanceled:
        raise waited_too_long(beside, timeout_seconds) from None
    except (pg.ConfigurationLimitExceeded, pg.InsufficientPrivilege) as error:
        raise SourceError(
            f"the source gives no snapshot for the first copy: {first_line(error)}",
            "raise max_replication_slots, drop a slot that nobody uses, or grant the right "
            "REPLICATION; tidegate doctor says which",
        ) from None
    finally:
        timer.cancel()
    assert row is not None
    return str(row[1]), str(row[2])
