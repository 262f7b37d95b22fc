"""Take over a filled table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.admin.adopted_table import (
    Adoption,
    Extent,
    FilledLake,
    StartingPoint,
    check_mode,
    check_point,
    count_target,
    find_problems,
    read_extent,
)
from tidegate.config import parse_duration
from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import (
    BusyError,
    ControlMismatch,
    DeclarationError,
    SourceError,
    UsageError,
)
from tidegate.core.failpoints import reach
from tidegate.core.relation import Table
from tidegate.core.watermark import CursorType, Horizon
from tidegate.iceberg.metadata import read_table
from tidegate.jobs.worker_records import user_name
from tidegate.ledger.fences import Fence
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.declaration_changes import take_table
from tidegate.load.inspection import ReadSessions, read_lock, refuse_other_plane
from tidegate.load.sources.database import refuse_duplicates
from tidegate.load.sources.horizon import read_horizon
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import count_rows
from tidegate.load.sources.resolve import resolve_source
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, first_line, translate


@dataclass(frozen=True, slots=True)
class ChosenWatermark:
    """A watermark to begin with, why it is that one, and what its owner should know."""

    value: str
    reason: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatermarkChoice:
    """Finds the watermark; values are compared in the target's database, as loads compare them."""

    name: str
    connection: Connection
    watermarks: Watermarks
    source: PostgresSource
    horizon: Horizon
    extent: Extent | None
    """None where the target's rows do not carry the cursor in its own type"""

    def choose(self, point: StartingPoint) -> ChosenWatermark:
        """The watermark that a person's words come to."""
        if self.horizon.high is None:
            raise SourceError(
                f"{self.source.table.relation} is held back by "
                f"{self.horizon.held_by.what if self.horizon.held_by else 'its settle time'}, and "
                "which rows are still to come is not known",
                "try again when that has ended",
            )
        if point.at is not None:
            return self._at(point.at, self.horizon.high)
        return self._below_highest(point.back, self.horizon.high)

    def _at(self, given: str, high: str) -> ChosenWatermark:
        kind = self.source.ordered_by.type
        order, value = self.watermarks.compare(self.connection, given, high, kind)
        self._check_finite(value)
        if order > 0:
            held = f", held by {self.horizon.held_by.what}" if self.horizon.held_by else ""
            raise UsageError(
                f"{value} lies above the horizon of {self.source.table.relation} ({high}{held}): "
                "rows below it may still come, and would be skipped",
                f"give a value up to {high}",
            )
        return ChosenWatermark(value, f"adopted at {value}")

    def _below_highest(self, back: str | None, high: str) -> ChosenWatermark:
        kind = self.source.ordered_by.type
        cursor = self.source.ordered_by.name
        if self.extent is None:
            raise UsageError(
                f"the target has no column {cursor} of type {kind.value}, so its highest value "
                "says nothing",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            )
        highest, below = self.extent.highest, self.extent.below
        if highest is None:
            raise UsageError(
                f"no row of the target has a value in {cursor}, so there is no highest one",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            )
        self._check_finite(highest)
        # The former loader may have stopped inside a run of equal values: these are read again.
        value = below if below is not None else self._minus(highest, _unit(kind))
        if back is not None:
            earlier = self._minus(highest, _amount(back, kind))
            if self.watermarks.compare(self.connection, earlier, value, kind)[0] < 0:
                value = earlier
        reason = f"adopted from the target's highest {cursor}, {highest}"
        if self.watermarks.compare(self.connection, value, high, kind)[0] > 0:
            warning = (
                f"{value} lies above the source's horizon, so it goes on from there, {high}: rows "
                "below it may still come"
            )
            return ChosenWatermark(high, reason, (warning,))
        return ChosenWatermark(value, reason)

    def _minus(self, value: str, amount: str) -> str:
        kind = self.source.ordered_by.type
        if kind is CursorType.XID8:
            return str(max(0, int(value) - int(amount)))
        operand = "{}::numeric" if kind.is_integer else "{}::interval"
        try:
            row = self.connection.execute(
                sql.SQL("SELECT ((({})::{}) - " + operand + ")::{}::text").format(
                    sql.Literal(value),
                    sql.SQL(kind.value),
                    sql.Literal(amount),
                    sql.SQL(kind.value),
                )
            ).fetchone()
        except pg.DataError:
            raise UsageError(
                f"no {kind.value} lies that far below {value}",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            ) from None
        assert row is not None
        return str(row[0])

    def _check_finite(self, value: str) -> None:
        if value.endswith("infinity"):
            raise UsageError(
                f"{value} is no place where {self.name} could go on from",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            )


def _unit(kind: CursorType) -> str:
    if kind.is_number:
        return "1"
    return "1 day" if kind is CursorType.DATE else "1 microsecond"


def _amount(back: str, kind: CursorType) -> str:
    if kind.is_number:
        if not back.strip().isdecimal():
            raise UsageError(
                f"--back {back!r} for an integer cursor", "write a number of values: --back 1000"
            )
        return back.strip()
    try:
        return f"{parse_duration(back):.6f} seconds"
    except ValueError as error:
        raise UsageError(f"--back {back!r} is not {error}", 'for example --back "1 hour"') from None


def examine_table(
    context: Context, sync: Sync, point: StartingPoint, *, take_over: bool = False
) -> Adoption:
    """What adopting would record; refuses everything that is unsafe, and writes nothing."""
    check_mode(sync.name, sync.mode, sync.key, point)
    check_point(sync.name, point)
    try:
        with ReadSessions(context) as sessions:
            return _Examination(sessions, sync).examine(point, take_over=take_over)
    except psycopg.Error as error:
        raise translate(error, f"looking at {sync.target}") from error


def record_adoption(
    context: Context, sync: Sync, found: Adoption, fence: Fence, *, take_over: bool = False
) -> Adoption:
    """Write the watermark and its log in one transaction, under the fence."""
    if take_over:
        take_table(context.destination(sync.target), sync, fence)
    ledger = context.ledger(sync.target.connection)
    watermarks = Watermarks(ledger)
    relation = str(sync.target.relation)
    kind = found.cursor_type
    doing = f"adopting {sync.target}"
    try:
        with context.destination(sync.target).fenced_transaction(fence, doing) as connection:
            watermarks.ensure(connection, sync.pipeline, relation, kind.value)
            watermarks.lock(connection, sync.pipeline, relation)
            # Somebody may have loaded it since it was looked at.
            _refuse_taken(connection, ledger, sync)
            current = watermarks.get(connection, sync.pipeline, relation)
            watermarks.move(
                connection,
                current,
                replace(
                    current,
                    value=found.watermark,
                    version=current.version + 1,
                    rows_synced=found.rows,
                ),
                cursor_type=kind,
                fence=fence.token,
                attempt_id=fence.attempt_id,
                moved_by=user_name(),
                reason=found.reason,
            )
            reach("adopt.moved")
        reach("adopt.committed")
    except (pg.LockNotAvailable, pg.QueryCanceled) as error:
        raise BusyError(
            f"the ledger of {sync.target} is in use by another session ({first_line(error)})",
            "see pg_stat_activity for who; nothing was recorded, try again",
        ) from None
    except psycopg.Error as error:
        raise translate(error, doing) from error
    return replace(found, adopted=True)


class _Examination:
    """One look at a source and a filled target."""

    def __init__(self, sessions: ReadSessions, sync: Sync) -> None:
        self._sessions = sessions
        self._sync = sync
        self._ledger = sessions.context.ledger(sync.target.connection)
        self._connection = sessions.source(sync.source.connection)
        self._target = sessions.target(sync.target.connection)

    def examine(self, point: StartingPoint, *, take_over: bool) -> Adoption:
        sync, target = self._sync, self._target
        source = resolve_source(self._connection, sync)
        if source.written is not None:
            raise UsageError(
                f'sync {sync.name} has changes = "snapshot", and no transaction is known up to '
                f"which {sync.target} holds everything",
                f"load into it: tidegate run {sync.name}; rows that are there already stay as they "
                "are",
            )
        self._refuse_owned(take_over=take_over)
        lake = self._lake(source)
        problems = find_problems(target, sync, source) if lake is None else lake.problems()
        problems += self._source_problems(source)
        if problems:
            raise UsageError(
                f"{sync.target} cannot be adopted: " + "; ".join(problems),
                "put that right and adopt again; nothing was recorded",
            )
        if lake is not None:
            rows = lake.count()
            extent = lake.extent(target, Watermarks(self._ledger))
        else:
            table = describe_table(target, sync.target.relation)
            assert table is not None
            rows = count_target(target, table)
            extent = self._extent(source, table)
        memory = self._sessions.memory(sync.pipeline)
        starting = WatermarkChoice(
            name=sync.name,
            connection=target,
            watermarks=Watermarks(self._ledger),
            source=source,
            horizon=read_horizon(self._connection, source.cursor, memory),
            extent=extent,
        )
        if not point.is_given:
            self._ask(source, extent, rows, starting)
        start = starting.choose(point)
        highest = None if extent is None else extent.highest
        self._refuse_doubling(source, highest, start.value)
        above, exact = self._count(source, start.value, None)
        warnings = [*start.warnings, *self._warnings(source, highest, start.value)]
        warnings += [] if lake is None else lake.warnings()
        return Adoption(
            sync=sync.name,
            target=str(sync.target),
            rows=rows,
            target_max=highest,
            watermark=start.value,
            cursor_type=source.ordered_by.type,
            rows_above=above,
            rows_above_are_exact=exact,
            warnings=tuple(warnings),
            reason=start.reason,
        )

    def _lake(self, source: PostgresSource) -> FilledLake | None:
        """The table, where it is one of a lake."""
        context, target = self._sessions.context, self._sync.target
        if not context.is_lake(target.connection):
            return None
        catalog = context.catalog(target.connection)
        return FilledLake(catalog, self._sync, source, read_table(catalog, target.relation))

    def _refuse_owned(self, *, take_over: bool) -> None:
        """Refuse a table that is being loaded, or that somebody has loaded with Tidegate."""
        sync = self._sync
        lock = read_lock(self._sessions, sync)
        if not lock.free:
            raise BusyError(
                f"{sync.target} is held by {lock.holder}",
                "wait until it has finished, then try again",
            )
        _refuse_taken(self._target, self._ledger, sync, take_over=take_over)
        if take_over:
            return
        try:
            refuse_other_plane(self._sessions, sync)
        except ControlMismatch as error:
            raise ControlMismatch(
                error.message, f"stop that one first, then: tidegate adopt {sync.name} --take-over"
            ) from None

    def _source_problems(self, source: PostgresSource) -> list[str]:
        """A first run would look at the whole key; after an adoption no run does so any more."""
        sync = self._sync
        if sync.transform is not None or sync.duplicates == "newest" or not source.key:
            return []
        try:
            refuse_duplicates(source, self._connection, sync.name)
        except DeclarationError as error:
            return [f"{error.message} ({error.hint})"]
        return []

    def _extent(self, source: PostgresSource, table: Table) -> Extent | None:
        column = table.column(source.ordered_by.name)
        kind = None if column is None else CursorType.of(column.wire)
        wanted = source.ordered_by.type
        if (
            kind is None
            or kind is CursorType.XID8
            or (kind is not wanted and not (kind.is_integer and wanted.is_integer))
        ):
            return None
        return read_extent(self._target, table, source.ordered_by.name, kind)

    def _count(self, source: PostgresSource, low: str | None, high: str | None) -> tuple[int, bool]:
        return count_rows(
            self._connection, source, source.condition(Batch(BatchKind.RANGE, low, high))
        )

    def _ask(
        self, source: PostgresSource, extent: Extent | None, rows: int, starting: WatermarkChoice
    ) -> None:
        """Say what each answer would mean."""
        name, cursor = self._sync.name, source.ordered_by.name
        question = f"where should {name} go on from? {self._sync.target} holds {rows:,} rows"
        at = "--at VALUE: rows up to VALUE count as loaded, the next run loads those above it"
        if extent is None or extent.highest is None:
            raise UsageError(f"{question}, and none tells its {cursor}", at)
        beyond = _words(*self._count(source, extent.highest, None))
        question += (
            f", the highest {cursor} is {extent.highest}, and the source has {beyond} above it"
        )
        if not source.key:
            raise UsageError(question, at)
        start = starting.choose(StartingPoint(from_target_max=True))
        again = _words(*self._count(source, start.value, None))
        raise UsageError(
            question,
            f"--from-target-max: from {start.value} on, {again}, so that those with the highest "
            f"value are read again; {at}",
        )

    def _warnings(self, source: PostgresSource, highest: str | None, start: str) -> list[str]:
        found: list[str] = []
        kind, cursor = source.ordered_by.type, source.ordered_by.name
        watermarks = Watermarks(self._ledger)
        if highest is not None:
            newest = self._newest(source)
            if newest is None or watermarks.compare(self._target, highest, newest, kind)[0] > 0:
                found.append(
                    f"the target's highest {cursor} ({highest}) lies above the source's "
                    f"({newest or 'none'}): rows were deleted there, or its clock or time zone is "
                    "another"
                )
            if watermarks.compare(self._target, start, highest, kind)[0] > 0:
                skipped, exact = self._count(source, highest, start)
                if skipped:
                    found.append(
                        f"{_words(skipped, exact)} of the source lie between the target's highest "
                        f"{cursor} ({highest}) and {start}; they are not loaded"
                    )
        if self._sync.transform is not None:
            found.append("the target's columns are checked when the transformation runs")
        return found

    def _newest(self, source: PostgresSource) -> str | None:
        row = self._connection.execute(
            sql.SQL("SELECT max({})::text FROM {}").format(
                source.cursor_identifier, source.relation
            )
        ).fetchone()
        return row[0] if row else None

    def _refuse_doubling(self, source: PostgresSource, highest: str | None, start: str) -> None:
        """Without a key nothing absorbs rows that are there already."""
        if source.key or highest is None:
            return
        kind = source.ordered_by.type
        if Watermarks(self._ledger).compare(self._target, start, highest, kind)[0] < 0:
            raise UsageError(
                f"{self._sync.target} holds rows up to {highest}, and {self._sync.name} has no key "
                f"to know them by: those above {start} would be doubled",
                f"delete them from the target first, or give a value from {highest} on",
            )


def _refuse_taken(
    connection: Connection, ledger: Ledger, sync: Sync, *, take_over: bool = False
) -> None:
    """Refuse a table that this sync or another has in its ledger already."""
    relation = str(sync.target.relation)
    current = Watermarks(ledger).get(connection, sync.pipeline, relation)
    if current.version > 0:
        raise UsageError(
            f"{sync.name} has a watermark already ({current.value or 'at the start'}, "
            f"{current.rows_synced:,} rows), so there is nothing to adopt",
            f"to go on from elsewhere: tidegate watermark set {sync.name} or tidegate watermark "
            f"rewind {sync.name}; to load everything again: tidegate run {sync.name} "
            f"--full-refresh; to forget it all first: tidegate remove {sync.name}",
        )
    if not take_over:
        Watermarks(ledger).refuse_shared(connection, sync.pipeline, relation)


def _words(rows: int, exact: bool) -> str:
    return f"{'' if exact else 'about '}{rows:,} rows"
