"""A Postgres destination: exists, stage, check, publish, discard, watermark."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import Rules
from tidegate.core.batch import BatchKind, Published, StagedWrite, remember
from tidegate.core.errors import (
    KEY_IN_LOG,
    CommitUnknown,
    ConnectionFailed,
    DeclarationError,
    DestinationError,
    StagingLost,
)
from tidegate.core.failpoints import reach
from tidegate.core.identity import resource_name, staging_table
from tidegate.core.relation import Relation
from tidegate.core.shape import LoadedShape, Shape, record_columns
from tidegate.core.watermark import Watermark
from tidegate.ledger.fences import Fence, Fences, publisher_name
from tidegate.ledger.ledger import Ledger, Staging
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.modes import MODES
from tidegate.load.target import Publication, refuse_deletes, refuse_outside
from tidegate.load.targets.postgres import statements as deletes
from tidegate.load.targets.postgres import statements as merge
from tidegate.load.targets.postgres.apply import Application, AppliedRows, LateRows
from tidegate.load.targets.postgres.drift import find_evolution
from tidegate.load.targets.postgres.rejected_rows import passing_rows, set_aside
from tidegate.load.targets.postgres.schema_changes import (
    LOCK_SECONDS,
    Evolution,
    Evolver,
    refuse_unknown_values,
)
from tidegate.load.targets.postgres.table import (
    check_existing,
    check_present,
    ensure_target,
    fit_shape,
    physical_table,
)
from tidegate.postgres.catalog import database_identity, describe_table, is_empty
from tidegate.postgres.connection import Connection, first_line, session_lost, translate
from tidegate.postgres.queries import OwnSQL, column_list, qualified

# A publisher never idles inside its transaction, so a stopped one is ended this soon.
_IDLE_SECONDS = 30.0
_RESOLVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """One table in one database, with the ledger beside it."""

    connect: Callable[[str], Connection]
    relation: Relation
    ledger: Ledger
    control_id: UUID
    lock_timeout_seconds: float = 10.0
    publish_timeout_seconds: float = 3600.0
    lease: Callable[[], AbstractContextManager[Connection]] | None = None
    """sessions for short work, where a new one each time would cost too much"""
    project: str = ""
    """its name, so that messages can name a sync as its user does"""

    @property
    def fences(self) -> Fences:
        return Fences(self.ledger)

    def open(self) -> AbstractContextManager[Connection]:
        return self.lease() if self.lease is not None else self.connect("tidegate")

    def identify(self) -> str:
        """What a job on this table locks, however many names lead to it."""
        with self.open() as connection:
            return resource_name(database_identity(connection), self.relation)

    def fenced_transaction(self, fence: Fence, doing: str) -> AbstractContextManager[Connection]:
        return self.fences.transaction(
            self.open, fence, doing, lock_timeout_seconds=self.lock_timeout_seconds
        )

    @property
    def iceberg_catalog(self) -> str | None:
        return None

    def heal(self, fence: Fence) -> None:
        """Nothing is ever half done here: rows, marker and watermark are one commit."""

    def exists(self, update_id: str) -> bool:
        """Whether a load is in."""
        with self.open() as connection:
            return Markers(self.ledger).exists(connection, update_id, self.relation)

    def watermark(self, pipeline: str) -> Watermark:
        with self.open() as connection:
            return Watermarks(self.ledger).get(connection, pipeline, str(self.relation))

    def raise_fence(self, fence: Fence) -> None:
        self.ledger.ensure()
        self.fences.raise_(fence, lock_timeout_seconds=min(2.0, self.lock_timeout_seconds))

    def check_present(self, watermark: Watermark) -> None:
        """Refuse to go on from a watermark whose rows are not there any more."""
        with self.open() as connection:
            check_present(connection, self.relation, watermark, self.project)

    def holds_rows(self) -> bool:
        """Whether the target is there and has any row."""
        with self.open() as connection:
            found = describe_table(connection, self.relation) is not None
            return found and not is_empty(connection, qualified(self.relation))

    def prepare(
        self,
        shape: Shape,
        watermark: Watermark | None,
        rules: Rules,
        *,
        fence: Fence | None = None,
        source_names: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Make, evolve or check the target, before anything is staged; returns what to know."""
        notes: tuple[str, ...] = ()
        with self.open() as connection:
            if watermark is None:
                # A load of somebody's own DataFrame: nothing is known of an earlier shape.
                ensure_target(connection, self.relation, shape, rules)
                return notes
            mode = MODES[rules.mode]
            if not mode.loads_whole:
                adds = mode.doubles(shape.key)
                check_present(connection, self.relation, watermark, self.project, adds=adds)
            loaded = LoadedShape.recorded(watermark.declaration, source_names)
            evolution = find_evolution(connection, self.relation, shape, rules, loaded)
            if evolution is not None:
                notes = evolution.notes
                if evolution.is_needed:
                    check_existing(connection, self.relation, shape, rules, evolution.table)
                    self._evolve(evolution, fence)
            # Together: a target of ours whose columns nobody remembers could not follow its source.
            with connection.transaction():
                ensure_target(connection, self.relation, shape, rules)
                Watermarks(self.ledger).ensure(
                    connection,
                    watermark.pipeline,
                    str(self.relation),
                    watermark.cursor_type,
                    {"columns": record_columns(shape)},
                )
        return notes

    def _evolve(self, evolution: Evolution, fence: Fence | None) -> None:
        seconds = min(LOCK_SECONDS, self.lock_timeout_seconds)
        Evolver(self.connect, self.fences, fence, seconds).evolve(evolution)

    def check(
        self, shape: Shape, writes: Sequence[StagedWrite], fence: Fence, rules: Rules
    ) -> None:
        """Verify what was staged: all there, known to its enums, no key missing, none twice."""
        if not writes:
            return
        with self.open() as connection:
            self._check_counts(connection, writes, fence)
            rows = merge.staged_rows(self._tables(writes, fence), shape, cast=False)
            fitted = fit_shape(connection, physical_table(self.relation, shape, rules), shape)
            kept = deletes.kept_rows(rows, shape)
            refuse_unknown_values(connection, self.relation, kept, fitted)
            if rules.replaces_part:
                typed = merge.staged_rows(self._tables(writes, fence), fitted, cast=True)
                found = connection.execute(
                    merge.outside_statement(typed, rules.within, fitted)
                ).fetchone()
                refuse_outside(self.relation, found[0] if found else 0, rules)
            if not shape.key:
                return
            missing = connection.execute(merge.null_key_statement(rows, shape)).fetchone()
            if missing and missing[0]:
                raise DestinationError(
                    f"{missing[0]} rows for {self.relation} have no value in their key "
                    f"({', '.join(shape.key)})",
                    "choose a key that every row has",
                )
            # Two rows with one key are two versions where all versions are kept.
            tolerated = MODES[rules.mode].tolerates_repeats(rules.duplicates)
            if tolerated or not shape.may_repeat_keys:
                return
            twice = connection.execute(merge.duplicate_key_statement(rows, shape)).fetchone()
            if twice:
                raise DeclarationError(
                    f"the key ({', '.join(shape.key)}) of {self.relation} is not unique: "
                    f"one occurs {twice[1]} times in one batch",
                    'choose a unique key, or set duplicates = "newest" to keep the newest row; '
                    + KEY_IN_LOG,
                    detail=f"the key {twice[0]} occurs {twice[1]} times",
                )

    def publish(self, publication: Publication) -> Published:
        """Rows, marker and watermark in one commit; a lost answer is resolved, never assumed."""
        full = publication.batch.kind is BatchKind.FULL
        refuse_deletes(self.relation, publication.shape, publication.rules, full=full)
        deadline = time.monotonic() + _RESOLVE_SECONDS
        while True:
            try:
                return self._publish_once(publication)
            except psycopg.Error as error:
                if not session_lost(error):
                    raise translate(error, f"publishing into {self.relation}") from error
                cause: Exception = error
            except ConnectionFailed as error:
                cause = error
            if time.monotonic() > deadline:
                raise CommitUnknown(
                    f"the connection was lost while publishing {publication.update_id} into "
                    f"{self.relation}, and the database did not come back",
                    "run again: the marker will tell whether the load is in",
                ) from cause
            time.sleep(0.2)

    def discard(self, attempt_id: str, *, ended: bool = False) -> int:
        """Drop what an attempt staged."""
        with self.open() as connection:
            return Staging(self.ledger).discard(connection, self.control_id, attempt_id)

    def sweep(self, live_attempts: Callable[[], set[str]]) -> int:
        """Drop what this control plane's dead attempts staged."""
        with self.open() as connection:
            return Staging(self.ledger).sweep(connection, self.control_id, live_attempts)

    def _publish_once(self, publication: Publication) -> Published:
        fence = publication.fence
        with self.connect(publisher_name(fence.attempt_id)) as connection:
            connection.autocommit = True
            with connection.transaction():
                self._bound(connection, publication.remaining_seconds())
                # 1. alone, first, and held to the end
                self.fences.lock(connection, fence)
                reach("publish.fenced")
                markers = Markers(self.ledger)
                if markers.exists(connection, publication.update_id, self.relation):
                    # An earlier COMMIT of ours whose answer was lost.
                    return Published(merge.total_rows(publication.writes), 0, already=True)
                # 2. crash recovery empties unlogged tables
                self._check_counts(connection, publication.writes, fence)
                # 3.
                markers.touch(connection, publication.update_id, self.relation)
                reach("publish.marked")
                # 4.
                _run_all(connection, publication.rules.before_sql, "before_sql", self.relation)
                rows = merge.total_rows(publication.writes)
                applied, rejected = self._apply(connection, publication, rows)
                _run_all(connection, publication.rules.after_sql, "after_sql", self.relation)
                reach("publish.applied")
                # 5.
                if publication.watermark is not None:
                    self._move(
                        connection, publication, publication.watermark, rows - rejected, applied
                    )
                reach("publish.moved")
            reach("publish.committed")
            if applied.first:
                # Without statistics the next merge would be planned for an empty table.
                table = physical_table(self.relation, publication.shape, publication.rules)
                shape = publication.shape
                cursor = (shape.cursor,) if shape.cursor is not None else ()
                names = tuple(dict.fromkeys((*shape.key, *cursor))) or shape.names[:1]
                # Of all columns it would take longer than the load where rows are wide.
                connection.execute(
                    sql.SQL("ANALYZE {} ({})").format(qualified(table), column_list(names))
                )
            return Published(
                rows, applied.changed, rejected=rejected, late=applied.late, notes=applied.notes
            )

    def _move(
        self,
        connection: Connection,
        publication: Publication,
        before: Watermark,
        rows: int,
        applied: AppliedRows,
    ) -> None:
        after = before.after(publication.batch, rows, publication.update_id)
        if applied.emptied and not (applied.first and before.rows_synced):
            # Deletes took the last row: none is recorded, lest the next load finds them missing.
            after = replace(after, rows_synced=0)
        Watermarks(self.ledger).move(
            connection,
            before,
            after,
            rows=rows,
            cursor_type=publication.cursor_type,
            fence=publication.fence.token,
            attempt_id=publication.fence.attempt_id,
            moved_by=publication.moved_by,
            reason=f"load {publication.batch.kind.value}",
            declaration=remember(
                before.declaration, publication.declaration, applied.late, datetime.now(UTC)
            ),
        )

    def _bound(self, connection: Connection, remaining_seconds: float) -> None:
        """Nothing here may outlast its welcome: a stopped publisher must not block others."""
        idle = max(1.0, min(remaining_seconds, _IDLE_SECONDS))
        for name, value in (
            ("lock_timeout", self.lock_timeout_seconds),
            ("statement_timeout", self.publish_timeout_seconds),
            ("idle_in_transaction_session_timeout", idle),
            ("client_connection_check_interval", 1.0),
        ):
            connection.execute(
                "SELECT set_config(%s, %s, true)", (name, f"{max(1, int(value * 1000))}ms")
            )
        connection.execute("SET LOCAL synchronous_commit = on")

    def _apply(
        self, connection: Connection, publication: Publication, total: int
    ) -> tuple[AppliedRows, int]:
        """Put the rows in; those that fail their checks are set aside and counted."""
        rules, writes = publication.rules, publication.writes
        table = physical_table(self.relation, publication.shape, rules)
        shape = fit_shape(connection, table, publication.shape)
        full = publication.batch.kind is BatchKind.FULL
        rows: sql.Composable | None = None
        rejected = 0
        if writes:
            rows = merge.staged_rows(self._tables(writes, publication.fence), shape, cast=True)
            if MODES[rules.mode].folds(shape, rules):
                rows = merge.newest_rows(rows, shape)
            if rules.checks:
                rejected = set_aside(
                    connection,
                    self.relation,
                    rows,
                    shape,
                    rules,
                    publication.update_id,
                    total - deletes.count_gone(connection, rows, shape),
                    full=full,
                )
                rows = passing_rows(rows, shape, rules)
        application = Application(
            relation=self.relation,
            rows=rows,
            shape=shape,
            rules=rules,
            update_id=publication.update_id,
            full=full,
            late_rows=_late_rows(publication),
        )
        return application.apply(connection), rejected

    def _check_counts(
        self, connection: Connection, writes: Sequence[StagedWrite], fence: Fence
    ) -> None:
        for write, table in zip(writes, self._tables(writes, fence), strict=True):
            try:
                row = connection.execute(merge.count_statement(table)).fetchone()
            except pg.UndefinedTable:
                row = None
            found = row[0] if row else 0
            if found != write.rows:
                raise StagingLost(
                    f"{write.rows} rows were staged for {self.relation}, {found} are left "
                    "(the database server restarted?)",
                    "they are staged again",
                )

    def _tables(self, writes: Sequence[StagedWrite], fence: Fence) -> list[sql.Identifier]:
        return [
            sql.Identifier(
                self.ledger.schema,
                staging_table(self.control_id, fence.attempt_id, write.write_id),
            )
            for write in writes
        ]


def _late_rows(publication: Publication) -> LateRows | None:
    """What late rows are measured by, where a load looks back for them."""
    before, cursor = publication.watermark, publication.shape.cursor
    is_lookback = publication.batch.kind is BatchKind.LOOKBACK
    if not is_lookback or before is None or before.value is None:
        return None
    if cursor is None or publication.cursor_type is None:
        return None
    return LateRows(cursor, publication.cursor_type, before.value)


def _run_all(
    connection: Connection, statements: Sequence[str], what: str, relation: Relation
) -> None:
    """Run the user's own statements inside the load's transaction."""
    for text in statements:
        try:
            # Asking for binary results, so that one text must be one statement.
            connection.execute(OwnSQL(text), binary=True)
        except psycopg.Error as error:
            if session_lost(error):
                raise
            raise DestinationError(
                f"{what} of {relation} failed: {first_line(error)}",
                "nothing of this load was published; correct the statement and run again",
            ) from error
