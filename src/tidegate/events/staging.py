"""Claimed events, read by the model and staged: by Spark's tasks, or by this process itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg import sql

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import LoadError, TidegateError
from tidegate.core.identity import new_write_id
from tidegate.core.relation import Relation
from tidegate.events.model import EventModel
from tidegate.events.reader import EventLimits, EventReader, RawEvent, ReadEvent
from tidegate.postgres.connection import READER, Connection, begin_read_only, first_line
from tidegate.postgres.queries import column_list, qualified
from tidegate.spark.binary_copy import CopySessions, StagingPlace
from tidegate.spark.tags import tagged, work_tag
from tidegate.spark.task_outcome import (
    OUTCOME_SCHEMA,
    carried_failure,
    collect_writes,
    failure,
    lacking,
    only,
    outcome_batches,
    spark_reason,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_CHUNK_ROWS = 2_000
_CHUNK_BYTES = 4 << 20
_ID_BYTES = 16
_REASON = 1_000

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EventReading:
    """How a task reads events; travels to the workers with the task."""

    conninfo: str
    raw: Relation
    model: EventModel
    limits: EventLimits
    kept_from: datetime | None
    """events before it fail, since their months are not kept"""

    def __repr__(self) -> str:
        return f"EventReading({self.raw})"

    def rows(self, connection: Connection, share: Share) -> Iterator[tuple[int, Row]]:
        """(size, staged row) of each event of a share, one after the other."""
        model = self.model
        reader = EventReader(model, self.limits)
        places = {id_: place for place, id_ in enumerate(share.ids(), share.first)}
        made = [number for number, one in enumerate(model.dimensions) if one.id_column is not None]
        nothing = (None,) * (len(model.fields) + len(made))
        moment_at = [one.name for one in model.fields].index(model.partition_column)
        for id_, body, received_at in self._stream(connection, list(places)):
            event = self._read(reader, id_, body, received_at)
            if event.error is None and self.kept_from is not None:
                event = self._refuse_old(event, event.values[moment_at])
            place = places[id_]
            if event.error is None:
                ids = [event.ids[number] for number in made]
                row = (id_, place, None, event.event_hash, *event.values, *ids, event.payload)
            else:
                row = (id_, place, _plain(event.error), None, *nothing, event.payload)
            yield len(body or ""), row

    def _stream(self, connection: Connection, ids: list[UUID]) -> Iterator[Row]:
        """(id, body, received_at); what is larger than an event may be stays where it is."""
        return connection.cursor().stream(
            sql.SQL(
                "SELECT id, CASE WHEN octet_length(body) <= {most} THEN body END,"
                " CASE WHEN received_at BETWEEN '0001-01-02' AND '9999-12-30' THEN received_at END"
                " FROM {raw} WHERE id = ANY(%s)"
            ).format(raw=_beside_parameters(self.raw), most=sql.Literal(self.limits.max_bytes)),
            (ids,),
            binary=True,
            size=100,
        )

    def _read(
        self, reader: EventReader, id_: UUID, body: str | None, received_at: datetime | None
    ) -> ReadEvent:
        if body is None:
            return ReadEvent(f"larger than {self.limits.max_bytes} bytes")
        if received_at is None:
            return ReadEvent("received_at is no moment of the years 1 to 9999")
        return reader.read(RawEvent(id_, body, received_at))

    def _refuse_old(self, event: ReadEvent, moment: datetime) -> ReadEvent:
        if self.kept_from is None or moment >= self.kept_from:
            return event
        return ReadEvent(f"{self.model.partition_column} is older than what is kept")


def _beside_parameters(relation: Relation) -> sql.SQL:
    # Next to parameters a percent sign is written twice, and a name may hold one.
    return sql.SQL(qualified(relation).as_string(None).replace("%", "%%"))


def _plain(reason: str | None) -> str | None:
    """A reason that any text column takes, even one that quotes the event."""
    if reason is None or (reason.isascii() and reason.isprintable() and len(reason) < _REASON):
        return reason
    return reason[:_REASON].replace("\0", "\\0").encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Share:
    """The ids of some of a batch's events, packed, and the place of the first in the batch."""

    first: int
    packed: bytes

    def __len__(self) -> int:
        return len(self.packed) // _ID_BYTES

    def ids(self) -> Iterator[UUID]:
        for start in range(0, len(self.packed), _ID_BYTES):
            yield UUID(bytes=self.packed[start : start + _ID_BYTES])


def split(ids: Sequence[UUID], count: int) -> list[Share]:
    """The ids in so many shares of about the same size, in their order."""
    bounds = [len(ids) * number // count for number in range(count + 1)]
    return [
        Share(first, b"".join(one.bytes for one in ids[first:end]))
        for first, end in pairwise(bounds)
        if end > first
    ]


def stage_here(
    reading: EventReading, place: StagingPlace, shares: Sequence[Share]
) -> tuple[StagedWrite, ...]:
    """Stage without Spark, where starting it would take longer than the work."""
    with CopySessions() as sessions:
        return tuple(_stage_share(reading, place, share, sessions) for share in shares)


def stage_events(
    spark: SparkSession, reading: EventReading, place: StagingPlace, shares: Sequence[Share]
) -> tuple[StagedWrite, ...]:
    """Stage every share of the batch, one Spark task each."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with CopySessions() as sessions:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from outcome_batches(_outcome(reading, place, shares[index], sessions))

    count = len(shares)
    frame = spark.range(0, count, 1, count).mapInArrow(work, OUTCOME_SCHEMA)
    try:
        with tagged(spark, work_tag(place.attempt_id)):
            return only(collect_writes(frame))
    except TidegateError:
        raise
    except Exception as error:
        if (known := carried_failure(error) or lacking(error)) is not None:
            raise known from error
        raise LoadError(
            f"Spark failed while it read events: {spark_reason(error)}",
            "run again; the events are still pending",
        ) from error


def _outcome(
    reading: EventReading, place: StagingPlace, share: Share, sessions: CopySessions
) -> dict[str, Any]:
    try:
        place.check_version()
        write = _stage_share(reading, place, share, sessions)
    except Exception as error:
        sessions.drop()
        return failure(error, "destination")
    return {"write_id": write.write_id, "rows": write.rows}


def _stage_share(
    reading: EventReading, place: StagingPlace, share: Share, sessions: CopySessions
) -> StagedWrite:
    write_id = new_write_id()
    source = sessions.get(reading.conninfo, "the events", READER)
    destination = sessions.get(place.conninfo, "the events", "tidegate stage")
    begin_read_only(source)
    copy = _Copy(destination, place, write_id)
    with destination.transaction():
        destination.execute(place.create_statement(write_id))
        chunk: list[Row] = []
        size = 0
        for length, row in reading.rows(source, share):
            chunk.append(row)
            size += length
            if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                copy.write(chunk)
                chunk, size = [], 0
        copy.write(chunk)
    source.execute("ROLLBACK")
    return StagedWrite(write_id, copy.rows)


class _Copy:
    """Writes rows into a staging table; one that Postgres does not take becomes a failed event."""

    def __init__(self, connection: Connection, place: StagingPlace, write_id: str) -> None:
        self._connection = connection
        self._statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            place.table(write_id), column_list(name for name, _ in place.columns)
        )
        self.rows = 0

    def write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        try:
            self._copy(rows)
        except (psycopg.Error, UnicodeError) as error:
            if not _is_data(error):
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                self.write(rows[:middle])
                self.write(rows[middle:])
            else:
                reason = f"Postgres does not take it: {first_line(error)}"
                self._copy([_failed(rows[0], reason)])

    def _copy(self, rows: Sequence[Row]) -> None:
        with (
            self._connection.transaction(),
            self._connection.cursor().copy(self._statement) as copy,
        ):
            for row in rows:
                copy.write_row(row)
        self.rows += len(rows)


def _is_data(error: Exception) -> bool:
    """Whether it is about the values, or more of them than the server can work with."""
    state = getattr(error, "sqlstate", None) or ""
    return isinstance(error, psycopg.DataError | UnicodeError) or state.startswith("54")


def _failed(row: Row, reason: str) -> Row:
    """The row of the same event, which now fails."""
    id_, place = row[:2]
    return (id_, place, reason, *(None,) * (len(row) - 3))
