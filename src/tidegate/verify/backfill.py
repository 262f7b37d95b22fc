"""Load a range of the cursor again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from shlex import quote
from typing import Any

import psycopg
from psycopg import sql

from tidegate.config.sync import Mode, Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, LoadResult
from tidegate.core.errors import UsageError
from tidegate.core.watermark import CursorType, Watermark
from tidegate.jobs.attempt import LiveAttempt
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import BACKFILL
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_declaration, unmoved_declaration
from tidegate.load.engine import Transfer, run
from tidegate.load.source import PassOver, Prepare, Source
from tidegate.load.sources.database import DatabaseSource, check_first_key
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import check_open
from tidegate.load.sources.registry import open_source, work_through
from tidegate.load.sources.watermark_conditions import check_standing
from tidegate.load.stage import Staged
from tidegate.load.target import Target
from tidegate.postgres.connection import Connection, Snapshot, first_line
from tidegate.verify.repair import CommandedLoads, refuse_unfinished


@dataclass(frozen=True, slots=True)
class BackfillRange:
    """[low, high) as the source prints it, and how it is cut: `bounds` begin with low."""

    low: str
    high: str
    chunk: str
    bounds: tuple[str, ...]

    @property
    def chunks(self) -> list[Batch]:
        ends = (*self.bounds[1:], self.high)
        return [
            Batch(BatchKind.BACKFILL, low, high)
            for low, high in zip(self.bounds, ends, strict=True)
        ]

    def number(self, chunk: Batch) -> int:
        """Which of the chunks it is, from 1 on."""
        return self.bounds.index(str(chunk.low)) + 1

    def update_id(
        self, batch: Batch, *, pipeline: str, source: str, target: str, generation: int, turn: int
    ) -> str:
        """The identity of one chunk: the same command gives the same, until it has come to its end.

        A backfill that has, is a new turn when it is given again.
        """
        content = json.dumps(
            [source, target, self.low, self.high, self.chunk, batch.identity],
            ensure_ascii=False,
            separators=(",", ":"),
        )
        digest = hashlib.sha256(content.encode()).hexdigest()[:40]
        return f"{pipeline}-backfill-g{generation}-t{turn}-{digest}"


@dataclass(slots=True)
class BackfillReport:
    """What a backfill did."""

    sync: str
    low: str
    high: str
    chunk: str
    chunks: int
    loaded: int = 0
    already: int = 0
    """chunks that an earlier one, which did not come to its end, had loaded"""
    empty: int = 0
    rows: int = 0
    changed: int = 0
    rejected: int = 0
    job: str | None = None


_MOST_CHUNKS = 100_000
_DAY = "1 day"


def refuse_backfill(sync: Sync, source: PostgresSource) -> None:
    """Refuse a sync that has no range, or in which a row would be twice."""
    if source.cursor is None and sync.changes != "cursor":
        raise UsageError(
            f'sync {sync.name}: changes = "{sync.changes}" without a cursor has no range to '
            "backfill",
            "it misses no row; what was changed in the target comes right with: tidegate verify "
            f"{sync.name} --repair",
        )
    if source.cursor is None:
        raise UsageError(
            f"sync {sync.name} has no cursor, so there is no range to backfill",
            f"to load all of it again: tidegate run {sync.name} --full-refresh",
        )
    if source.cursor.type is CursorType.XID8:
        raise UsageError(
            f"sync {sync.name}: its cursor {source.cursor.name} counts transactions, of which no "
            "range is known by name",
            f"tidegate watermark rewind {sync.name} VALUE loads all from there on again; what "
            f"differs comes right with: tidegate verify {sync.name} --repair",
        )
    if sync.mode is Mode.APPEND and (sync.lake_target or not source.key):
        why = "append into a lake keeps every version" if sync.lake_target else "rows have no key"
        raise UsageError(
            f"sync {sync.name}: {why}, so rows that are there would be added once more",
            f'use mode = "merge", or load everything again: tidegate run {sync.name} '
            "--full-refresh",
        )


def read_range(
    connection: Connection,
    source: PostgresSource,
    sync: Sync,
    low: str,
    high: str,
    chunk: str | None,
) -> BackfillRange:
    """The range in the cursor's own type, cut into chunks by the source."""
    kind = source.ordered_by.type
    size = chunk or (str(sync.batch_rows) if kind.is_integer else _DAY)
    typed = sql.SQL(kind.value)
    given = {"low": low.strip(), "high": high.strip(), "size": size.strip()}
    question: sql.Composable = sql.SQL(
        "SELECT %(low)s::{t}::text, %(high)s::{t}::text, %(low)s::{t} < %(high)s::{t},"
    ).format(t=typed)
    series: sql.Composable
    if kind.is_integer:
        question += sql.SQL(" %(size)s::bigint > 0")
        series = sql.SQL("generate_series(%(low)s::bigint, %(high)s::bigint, %(size)s::bigint)")
    else:
        clock = sql.SQL("timestamptz" if kind.value.endswith("with time zone") else "timestamp")
        question += sql.SQL(" %(low)s::{c} + %(size)s::interval > %(low)s::{c}").format(c=clock)
        series = sql.SQL(
            "generate_series(%(low)s::{t}::{c}, %(high)s::{t}::{c}, %(size)s::interval)"
        ).format(t=typed, c=clock)
    try:
        row = connection.execute(question, given).fetchone()
        assert row is not None
        canonical_low, canonical_high, in_order, is_positive = row
        if not in_order:
            raise UsageError(
                f"--to {high} is not above --from {low}",
                "the range begins with --from and ends before --to",
            )
        if not is_positive:
            raise UsageError(f"--chunk {size} leads nowhere", 'such as "1 day" or 10000')
        rows = connection.execute(
            sql.SQL(
                "SELECT b::text FROM (SELECT DISTINCT g::{t} AS b FROM {} g"
                " WHERE g::{t} < %(high)s::{t} ORDER BY 1 LIMIT {}) s ORDER BY b"
            ).format(series, sql.Literal(_MOST_CHUNKS + 1), t=typed),
            given,
        )
        bounds = tuple(bound for (bound,) in rows)
    except psycopg.DataError as error:
        raise UsageError(
            f"the range of {sync.name} cannot be read: {first_line(error)}",
            f"its cursor {source.ordered_by.name} is a {kind.value}: "
            + (
                "--from 1 --to 100000 --chunk 10000"
                if kind.is_integer
                else '--from 2026-11-01 --to 2026-12-01 --chunk "1 day"'
            ),
        ) from None
    if len(bounds) > _MOST_CHUNKS:
        raise UsageError(
            f"that is more than {_MOST_CHUNKS:,} chunks of {size}", "give a larger --chunk"
        )
    return BackfillRange(canonical_low, canonical_high, given["size"], bounds)


@dataclass(slots=True)
class BackfillSource(DatabaseSource):
    """A range of the cursor, chunk after chunk, wherever the watermark is."""

    range: BackfillRange
    report: BackfillReport = field(init=False)
    _generation: int = field(default=0, init=False)
    _turn: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        wanted = self.range
        self.report = BackfillReport(
            self.sync.name, wanted.low, wanted.high, wanted.chunk, len(wanted.bounds)
        )

    @property
    def cursor_type(self) -> CursorType | None:
        return self.source.ordered_by.type

    @property
    def loads_whole(self) -> bool:
        return False

    def update_id(self, batch: Batch, _: Watermark) -> str:
        return self.range.update_id(
            batch,
            pipeline=self.sync.pipeline,
            source=self.identity,
            target=str(self.sync.target.relation),
            generation=self._generation,
            turn=self._turn,
        )

    def declaration(self, _: Batch | None, watermark: Watermark, columns: Any) -> dict[str, Any]:
        return unmoved_declaration(watermark, self.sync, self.source, columns)

    def check(self, watermark: Watermark) -> None:
        refuse_changed_declaration(watermark, self.source, self.sync)
        check_standing(self.context, self.connection, self.source, watermark, self.sync)
        refuse_unfinished(self.sync, watermark)
        # As the first run would have.
        check_first_key(self.sync, self.source, self.connection, watermark)

    @contextmanager
    def scan(self, transfer: Transfer, watermark: Watermark) -> Iterator[BackfillScan]:
        chunks = self.range.chunks
        self._generation, self._turn = watermark.generation, 1
        # Which of the turns of this very backfill is not at its end.
        while transfer.target.exists(self.update_id(chunks[-1], watermark)):
            self._turn += 1
        rows = self._count()
        yield BackfillScan(
            self,
            transfer,
            [
                replace(chunk, rows=rows.get(number, 0), is_last=number == len(chunks))
                for number, chunk in enumerate(chunks, 1)
            ],
        )
        report, outcome = self.report, transfer.outcome
        report.loaded, report.rows = len(outcome.loads), outcome.rows
        report.changed, report.rejected = outcome.changed, outcome.rejected

    def _count(self) -> dict[int, int]:
        """How many rows each chunk has, by its number, in one look at the range."""
        whole = Batch(BatchKind.BACKFILL, self.range.low, self.range.high)
        statement = sql.SQL(
            "SELECT width_bucket({}, {}::{}[]), count(*) FROM {} WHERE {} GROUP BY 1"
        ).format(
            self.source.cursor_identifier,
            sql.Literal(list(self.range.bounds)),
            sql.SQL(self.source.ordered_by.type.value),
            self.source.relation,
            self.source.condition(whole),
        )
        # A chunk without rows is passed over, so they are counted as they are read.
        with self.context.reading(self.connection, self.source):
            return dict(self.connection.execute(statement).fetchall())


@dataclass(slots=True)
class BackfillScan:
    """Chunks that are in, and those without rows, are passed over."""

    origin: BackfillSource
    transfer: Transfer
    _left: list[Batch]
    _snapshot: Snapshot | None = None

    @contextmanager
    def next(self, watermark: Watermark, _: Batch | None) -> Iterator[Batch | PassOver | None]:
        origin, transfer = self.origin, self.transfer
        while self._left and not self._is_due(self._left[0], watermark):
            del self._left[0]
        if not self._left:
            yield None
            return
        transfer.attempt.check_alive()
        check_open(origin.connection, origin.source)
        with origin.context.reading(origin.connection, origin.source) as self._snapshot:
            yield self._left[0]

    def _is_due(self, chunk: Batch, watermark: Watermark) -> bool:
        # The last one says that all of them are in, so it is loaded even without a row.
        if not chunk.rows and not chunk.is_last:
            self.origin.report.empty += 1
            return False
        update_id = self.origin.update_id(chunk, watermark)
        if not self.transfer.target.exists(update_id):
            return True
        if all(load.update_id != update_id for load in self.transfer.outcome.loads):
            self.origin.report.already += 1
        return False

    def stored(self, batch: Batch) -> dict[str, Any]:
        return {"final": batch.is_last}

    def stage(self, batch: Batch, prepare: Prepare) -> Staged:
        assert self._snapshot is not None
        return self.origin.stage(self._snapshot, batch, self.transfer, prepare)

    def published(self, _: LoadPlan) -> None:
        del self._left[0]

    def passed(self, found: PassOver, watermark: Watermark) -> None:
        """The watermark stays where it is."""


COMMAND = "tidegate backfill"


def backfill_sync(
    context: Context,
    sync: Sync,
    heartbeat: Heartbeat,
    *,
    low: str,
    high: str,
    chunk: str | None = None,
    step: Callable[[LoadResult, int, int], None] = lambda _load, _number, _of: None,
) -> BackfillReport:
    """Load the rows with low <= cursor < high again; `step` is told of each chunk that is in."""
    with open_source(context, sync) as opened:
        if not isinstance(opened, DatabaseSource):
            raise UsageError(
                f"the source of sync {sync.name} is a lake, which has no cursor to go by",
                f"to load all of it again: tidegate run {sync.name} --full-refresh",
            )
        source, connection = opened.source, opened.connection
        refuse_backfill(sync, source)
        wanted = read_range(connection, source, sync, low, high, chunk)
        reports: list[BackfillReport] = []

        def work(destination: Target, attempt: LiveAttempt) -> dict[str, Any]:
            transfer = Transfer(
                sync,
                opened,
                destination,
                attempt,
                loaded=lambda load: step(load, wanted.number(load.batch), len(wanted.bounds)),
            )

            def read(opened: Source) -> None:
                assert isinstance(opened, DatabaseSource)
                backfill = BackfillSource(context, sync, opened.source, opened.connection, wanted)
                transfer.source = backfill
                run(transfer)
                reports.append(backfill.report)

            work_through(
                context,
                sync,
                opened,
                read,
                check_alive=attempt.check_alive,
                progress=lambda: len(transfer.outcome.loads),
            )
            return asdict(reports[0])

        payload = {
            "from": wanted.low,
            "to": wanted.high,
            "chunk": wanted.chunk,
            # What a person has to give again to go on with it.
            "command": f"{COMMAND} --from {quote(low)} --to {quote(high)}"
            + ("" if chunk is None else f" --chunk {quote(chunk)}"),
        }
        loads = CommandedLoads(context, heartbeat, sync, BACKFILL, COMMAND)
        job_id = loads.run(work, payload)
    reports[0].job = str(job_id)
    return reports[0]
