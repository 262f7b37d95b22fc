"""Load a range of the cursor again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from shlex import quote
from typing import Any

import psycopg
from psycopg import sql

from tidegate.config.sync import Mode, Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, LoadResult
from tidegate.core.errors import StagingLost, UsageError, WatermarkMoved
from tidegate.core.failpoints import reach
from tidegate.core.watermark import CursorType, Watermark
from tidegate.jobs.attempt import LiveAttempt
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import BACKFILL
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_declaration, unmoved_declaration
from tidegate.load.engine import Attempt, Course, Load, Prepare, SyncOutcome
from tidegate.load.source import OpenSource, Source, open_source, work_through
from tidegate.load.sources.cursor import refuse_duplicates, tolerates_duplicates
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import check_open
from tidegate.load.sources.watermark_conditions import check_standing
from tidegate.load.stage import Reading, Staged, stage_batch
from tidegate.load.target import Target
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connection import Connection, first_line
from tidegate.verify.repair import CommandedLoads, record_load, refuse_unfinished


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
_TRIES = 5
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
class BackfillWork:
    """The work of one attempt; `step` is told of every finished load and the chunk's number."""

    context: Context
    sync: Sync
    source: PostgresSource
    connection: Connection
    destination: Target
    attempt: Attempt
    range: BackfillRange
    step: Callable[[LoadResult, int], None] = lambda _load, _number: None
    outcome: SyncOutcome = field(default_factory=SyncOutcome)

    def run(self) -> BackfillReport:
        """Load chunk after chunk; those that are in, and those without rows, are passed over."""
        watermark = self.destination.watermark(self.sync.pipeline)
        refuse_changed_declaration(watermark, self.source, self.sync)
        check_standing(self.context, self.connection, self.source, watermark, self.sync)
        refuse_unfinished(self.sync, watermark)
        self.destination.check_present(watermark)
        if watermark.version == 0 and self.sync.transform is None:
            self._check_key()
        chunks = self.range.chunks
        turn = self._turn(chunks[-1], watermark)
        rows = self._count()
        report = BackfillReport(
            self.sync.name, self.range.low, self.range.high, self.range.chunk, len(chunks)
        )
        for number, chunk in enumerate(chunks, 1):
            is_last = number == len(chunks)
            batch = replace(chunk, rows=rows.get(number, 0), is_last=is_last)
            update_id = self._update_id(batch, watermark, turn)
            # The last one says that all of them are in, so it is loaded even without a row.
            if not batch.rows and not is_last:
                report.empty += 1
            elif not self.destination.exists(update_id):
                self.step(self._load(batch, update_id), number)
            elif all(load.update_id != update_id for load in self.outcome.loads):
                report.already += 1
        report.loaded, report.rows = len(self.outcome.loads), self.outcome.rows
        report.changed, report.rejected = self.outcome.changed, self.outcome.rejected
        return report

    def _load(self, batch: Batch, update_id: str) -> LoadResult:
        for again in range(_TRIES):
            try:
                return self._load_once(batch, update_id)
            except (WatermarkMoved, StagingLost):
                # A person moved it; where it is does not matter here.
                if again == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _load_once(self, batch: Batch, update_id: str) -> LoadResult:
        self.attempt.check_alive()
        check_open(self.connection, self.source)
        watermark = self.destination.watermark(self.sync.pipeline)
        source = self.source
        course = Course(self.sync, self.destination, self.attempt, self.outcome)
        with self.context.reading(self.connection, source) as snapshot:
            plan = LoadPlan(update_id, batch, watermark.generation, watermark.version)
            self.attempt.store_plan(plan.to_json() | {"final": batch.is_last})
            reach("batch.planned")
            course.report("staging", batch.rows)
            reading = Reading(self.context, self.sync, source, self.connection, snapshot, batch)

            def stage(prepare: Prepare) -> Staged:
                attempt_id = self.attempt.fence.attempt_id
                return stage_batch(
                    reading, self.destination, attempt_id=attempt_id, prepare=prepare
                )

            load = Load(
                sync=self.sync,
                destination=self.destination,
                attempt=self.attempt,
                source_names=source.table.column_names,
                cursor_type=source.ordered_by.type,
                declare=lambda columns: unmoved_declaration(watermark, self.sync, source, columns),
                staged=lambda rows: course.report("publishing", rows),
            )
            prepared = load.stage(stage, watermark)
        result = load.publish(prepared, plan, watermark)
        self.outcome.loads.append(result)
        return result

    def _turn(self, last: Batch, watermark: Watermark) -> int:
        """Which of the turns of this very backfill is not at its end."""
        turn = 1
        while self.destination.exists(self._update_id(last, watermark, turn)):
            turn += 1
        return turn

    def _update_id(self, batch: Batch, watermark: Watermark, turn: int) -> str:
        return self.range.update_id(
            batch,
            pipeline=self.sync.pipeline,
            source=f"{database_identity(self.connection)}/{self.sync.source.relation}",
            target=str(self.destination.relation),
            generation=watermark.generation,
            turn=turn,
        )

    def _count(self) -> dict[int, int]:
        """How many rows each chunk has, by its number, in one look at the range."""
        whole = Batch(self.range.chunks[0].kind, self.range.low, self.range.high)
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

    def _check_key(self) -> None:
        """As the first run would have."""
        if not tolerates_duplicates(self.sync):
            refuse_duplicates(self.source, self.connection, self.sync.name)


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
        if not isinstance(opened, OpenSource):
            raise UsageError(
                f"the source of sync {sync.name} is a lake, which has no cursor to go by",
                f"to load all of it again: tidegate run {sync.name} --full-refresh",
            )
        source, connection = opened.source, opened.connection
        refuse_backfill(sync, source)
        wanted = read_range(connection, source, sync, low, high, chunk)
        reports: list[BackfillReport] = []

        def work(destination: Target, attempt: LiveAttempt) -> dict[str, Any]:
            def loaded(load: LoadResult, number: int) -> None:
                record_load(attempt, load)
                step(load, number, len(wanted.bounds))

            outcome = SyncOutcome()

            def read(opened: Source) -> None:
                assert isinstance(opened, OpenSource)
                report = BackfillWork(
                    context=context,
                    sync=sync,
                    source=opened.source,
                    connection=opened.connection,
                    destination=destination,
                    attempt=attempt,
                    range=wanted,
                    step=loaded,
                    outcome=outcome,
                ).run()
                reports.append(report)

            work_through(
                context,
                sync,
                opened,
                read,
                check_alive=attempt.check_alive,
                progress=lambda: len(outcome.loads),
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
