"""An Iceberg destination: rows are staged as files, and published by moving main."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tidegate.destinations.lake_healing import Healing, move_of, record
from tidegate.destinations.lake_rows import LakeRows
from tidegate.destinations.lake_target import check_present, ensure_target
from tidegate.destinations.publication import Publication
from tidegate.errors import (
    CommitUnknown,
    ConnectionFailed,
    DeclarationError,
    DestinationError,
    FenceLost,
    LoadError,
    StagingLost,
    TidegateError,
    WatermarkMoved,
)
from tidegate.failpoints import reach
from tidegate.lake import statements
from tidegate.lake.catalog import Catalog
from tidegate.lake.files import (
    LakeColumn,
    LakePlace,
    count_rows,
    delete_folder,
    new_folder,
)
from tidegate.lake.metadata import file_io, read_table
from tidegate.lake.session import LakeSession, lake_session
from tidegate.ledger.fences import Fence, Fences
from tidegate.ledger.intents import Intent, Intents
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.markers import Markers
from tidegate.ledger.staged_folders import StagedFolder, StagedFolders
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.drift import record_columns
from tidegate.model.lake import LakeTable, Seen, branch_name, lake_resource
from tidegate.model.layout import Layout
from tidegate.model.load import Published, StagedWrite
from tidegate.model.relation import Relation
from tidegate.model.rules import Duplicates, Mode, Rules
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import Connection
from tidegate.spark.outcome import spark_reason
from tidegate.spark.session import SparkSessions

_RACES = 3
_DIRECT_TRIES = 10
_RESOLVE_SECONDS = 60.0
_IDLE_SECONDS = 30.0


class LostRace(Exception):
    """Main has moved since the rows were staged upon it."""


@dataclass(frozen=True, slots=True)
class LakeDestination:
    """One table of a lake, with its ledger in the control database."""

    catalog: Catalog
    relation: Relation
    ledger: Ledger
    control_id: UUID
    sessions: SparkSessions
    lease: Callable[[], AbstractContextManager[Connection]]
    lock_timeout_seconds: float = 10.0
    project: str = ""
    layout: Layout = field(default_factory=Layout)

    @property
    def fences(self) -> Fences:
        return Fences(self.ledger)

    @property
    def _table_name(self) -> str:
        return str(self.relation)

    @property
    def _healing(self) -> Healing:
        return Healing(self.ledger, self.relation)

    def open(self) -> AbstractContextManager[Connection]:
        return self.lease()

    def identify(self) -> str:
        return lake_resource(self.catalog.identity, self.relation)

    def read(self) -> LakeTable | None:
        """The table as it is now."""
        return read_table(self.catalog, self.relation)

    def exists(self, update_id: str) -> bool:
        """Whether a load is in: recorded, or about to be and in main."""
        with self.open() as connection:
            if Markers(self.ledger).exists(connection, update_id, self.relation):
                return True
            intents = Intents(self.ledger).of_table(connection, self._table_name)
        if not any(intent.update_id == update_id for intent in intents):
            return False
        table = self.read()
        return table is not None and table.holds(update_id)

    def watermark(self, pipeline: str) -> Watermark:
        with self.open() as connection:
            return Watermarks(self.ledger).get(connection, pipeline, self._table_name)

    def raise_fence(self, fence: Fence) -> None:
        self.ledger.ensure()
        self.fences.raise_(fence, lock_timeout_seconds=min(2.0, self.lock_timeout_seconds))

    def heal(self, fence: Fence) -> None:
        """Settle what earlier attempts were about to publish, before anything is read."""
        with self.open() as connection:
            waiting = [
                intent
                for intent in Intents(self.ledger).of_table(connection, self._table_name)
                if not intent.abandoned
            ]
        if not waiting:
            return
        table = self.read()
        lost = [
            intent
            for intent in waiting
            if table is None or table.see(intent.update_id, intent.base) is not Seen.PUBLISHED
        ]
        if table is not None and any(branch_name(one.attempt_id) in table.refs for one in lost):
            # Without its branch an attempt that is not quite dead cannot move main any more.
            with lake_session(self.sessions, self.catalog, fence.attempt_id) as session:
                for intent in lost:
                    self._drop(session, intent.attempt_id)
            table = self.read()
        with self.open() as connection, connection.transaction():
            self.fences.lock(connection, fence)
            self._healing.settle(connection, table)

    def check_present(self, watermark: Watermark) -> None:
        if watermark.rows_synced:
            check_present(self.read(), self.relation, watermark, self.project)

    def holds_rows(self) -> bool:
        table = self.read()
        return table is not None and table.rows() > 0

    def prepare(
        self,
        shape: Shape,
        watermark: Watermark | None,
        rules: Rules,
        *,
        fence: Fence | None = None,
        source_names: Collection[str] = (),
    ) -> tuple[str, ...]:
        table = self.read()
        if watermark is not None and rules.mode is not Mode.REPLACE and watermark.rows_synced:
            check_present(table, self.relation, watermark, self.project)
        notes = ensure_target(
            table,
            lambda: lake_session(
                self.sessions, self.catalog, None if fence is None else fence.attempt_id
            ),
            self.relation,
            shape,
            rules,
            self.layout,
        )
        if watermark is not None:
            with self.open() as connection:
                Watermarks(self.ledger).ensure(
                    connection,
                    watermark.pipeline,
                    self._table_name,
                    watermark.cursor_type,
                    {"columns": record_columns(shape)},
                )
        return notes

    def place(self, shape: Shape, attempt_id: str) -> LakePlace:
        """A folder for the files of one load, noted before the first is written."""
        table = self._read()
        folder = new_folder(attempt_id)
        with self.open() as connection:
            StagedFolders(self.ledger).note(
                connection, self._table_name, StagedFolder(folder, attempt_id, table.location)
            )
        columns = []
        for column in shape.columns:
            known = table.field(column.name)
            field_id = None if known is None else known.field_id
            columns.append(LakeColumn(column.name, column.staged_type, field_id))
        return LakePlace(
            location=table.location,
            folder=folder,
            io=tuple(self.catalog.options.items()),
            attempt_id=attempt_id,
            columns=tuple(columns),
        )

    def check(
        self, shape: Shape, writes: Sequence[StagedWrite], fence: Fence, rules: Rules
    ) -> None:
        if not writes:
            return
        location = self._read().location
        self._check_counts(location, writes)
        tolerated = rules.duplicates is Duplicates.NEWEST
        if not shape.key or shape.key_is_unique:
            return
        with lake_session(self.sessions, self.catalog, fence.attempt_id) as session:
            rows = LakeRows(session, self.relation, shape, rules, location, tuple(writes)).view()
            (missing,) = session.run(statements.count_keyless(rows, shape))[0]
            if missing:
                raise DestinationError(
                    f"{missing} rows for {self.relation} have no value in their key "
                    f"({', '.join(shape.key)})",
                    "choose a key that every row has",
                )
            twice = [] if tolerated else session.run(statements.find_duplicate(rows, shape))
        if twice:
            raise DeclarationError(
                f"the key ({', '.join(shape.key)}) of {self.relation} is not unique: "
                f"{twice[0][0]} occurs {twice[0][1]} times in one batch",
                'choose a unique key, or set duplicates = "newest" to keep the newest row',
            )

    def publish(self, publication: Publication) -> Published:
        """Stage upon a branch and move main to it; whoever loses a race starts again there."""
        attempt_id = publication.fence.attempt_id
        try:
            with lake_session(self.sessions, self.catalog, attempt_id) as session:
                for race in range(_RACES + _DIRECT_TRIES):
                    try:
                        return self._publish_once(session, publication, direct=race >= _RACES)
                    except LostRace:
                        continue
        except TidegateError:
            raise
        except Exception as error:
            self._check_fence(publication.fence)
            raise LoadError(
                f"publishing into {self.relation}: {spark_reason(error)}",
                "run again; nothing was published",
            ) from error
        raise DestinationError(
            f"{self.relation} is changed by others so often that the rows could not be put in",
            "run again when less is written to it",
        )

    def discard(self, attempt_id: str) -> int:
        with self.open() as connection:
            folders = StagedFolders(self.ledger).of_attempt(connection, attempt_id)
        if not folders:
            return 0
        removed = 0
        for folder in folders:
            if not folder.adopted:
                io = file_io(self.catalog, folder.location)
                removed += delete_folder(io, folder.location, folder.folder)
        table = self.read()
        if table is not None and branch_name(attempt_id) in table.refs:
            with lake_session(self.sessions, self.catalog) as session:
                self._drop(session, attempt_id)
        with self.open() as connection:
            StagedFolders(self.ledger).forget(connection, attempt_id)
        return removed

    def sweep(self, live_attempts: Callable[[], set[str]]) -> int:
        with self.open() as connection:
            found = StagedFolders(self.ledger).attempts(connection, self._table_name)
        if not found:
            return 0
        live = live_attempts()
        return sum(self.discard(attempt_id) for attempt_id in found if attempt_id not in live)

    def _read(self) -> LakeTable:
        table = self.read()
        if table is None:
            raise StagingLost(f"{self.relation} was dropped while it was being loaded")
        return table

    def _check_counts(self, location: str, writes: Sequence[StagedWrite]) -> None:
        io = file_io(self.catalog, location)
        for write in writes:
            left = count_rows(io, location, write)
            if left != write.rows:
                raise StagingLost(
                    f"{write.rows} rows were staged for {self.relation}, but {left} are left",
                    "they are staged again",
                )

    def _publish_once(
        self, session: LakeSession, publication: Publication, *, direct: bool
    ) -> Published:
        fence, update_id = publication.fence, publication.update_id
        branch = None if direct else branch_name(fence.attempt_id)
        if branch is not None:
            session.run(statements.create_branch(self.catalog, self.relation, branch))
            reach("branch.created")
        table = self._read()
        base = table.main if branch is None else table.refs.get(branch)
        if self._is_in(publication, table):
            self._drop(session, fence.attempt_id)
            return Published(publication.rows, 0, already=True)
        self._check_watermark(publication)
        self._check_counts(table.location, publication.writes)
        rows = LakeRows(
            session,
            self.relation,
            publication.shape,
            publication.rules,
            table.location,
            publication.writes,
            adopt=self._adopt,
        )
        marks = _marks(publication)
        session.mark(marks)
        move = move_of(publication)
        if branch is None:
            return self._publish_direct(session, publication, rows, table, marks)
        changed = rows.apply(table, branch, publication.batch, marks)
        reach("branch.staged")
        head = self._read().refs.get(branch)
        if head == base:
            # Nothing was to be written, so there is nothing to be moved to.
            self._record(publication)
        else:
            intent = Intent(update_id, fence.attempt_id, fence.token, base, head, move)
            self._note(fence, intent)
            reach("intent.noted")
            self._forward(session, publication, branch, base)
        reach("publish.committed")
        self._drop(session, fence.attempt_id)
        reach("branch.dropped")
        return Published(publication.rows, changed)

    def _publish_direct(
        self,
        session: LakeSession,
        publication: Publication,
        rows: LakeRows,
        table: LakeTable,
        marks: dict[str, str],
    ) -> Published:
        """One commit on main, which Iceberg itself puts behind what others have committed."""
        fence = publication.fence
        intent = Intent(
            publication.update_id, fence.attempt_id, fence.token, table.main, None,
            move_of(publication),
        )  # fmt: skip
        self._note(fence, intent)
        reach("intent.noted")
        try:
            changed = rows.apply(table, None, publication.batch, marks)
        except Exception as error:
            self._check_fence(fence)
            if self._see(publication.update_id, table.main) is not Seen.PUBLISHED:
                raise LostRace from error
            changed = publication.rows
        reach("branch.forwarded")
        self._record(publication)
        reach("publish.committed")
        return Published(publication.rows, changed)

    def _forward(
        self, session: LakeSession, publication: Publication, branch: str, base: int | None
    ) -> None:
        """Move main to the branch, under the fence, and record it."""
        statement = statements.fast_forward(self.catalog, self.relation, branch)
        if self.catalog.is_embedded:
            # The catalog's trigger holds the fence; a lock of ours would only block it.
            self._move_main(session, publication, statement, base)
            self._record(publication)
            return
        with self.open() as connection, connection.transaction():
            self._bound(connection, publication.remaining_seconds())
            self.fences.lock(connection, publication.fence)
            self._move_main(session, publication, statement, base)
            record(connection, self.ledger, self.relation, publication)

    def _move_main(
        self, session: LakeSession, publication: Publication, statement: str, base: int | None
    ) -> None:
        try:
            session.run(statement)
        except Exception as error:
            # Refused, or not: only the table itself can tell.
            if self._see(publication.update_id, base) is not Seen.PUBLISHED:
                self._check_fence(publication.fence)
                raise LostRace from error
        reach("branch.forwarded")

    def _see(self, update_id: str, base: int | None) -> Seen:
        deadline = time.monotonic() + _RESOLVE_SECONDS
        while True:
            try:
                return self._read().see(update_id, base)
            except ConnectionFailed as error:
                if time.monotonic() > deadline:
                    raise CommitUnknown(
                        f"the catalog was lost while publishing {update_id} into {self.relation}, "
                        "and did not come back",
                        "run again: the table will tell whether the load is in",
                    ) from error
            time.sleep(0.2)

    def _is_in(self, publication: Publication, table: LakeTable) -> bool:
        """Whether an attempt before us has published this; what it did not record is recorded."""
        with self.open() as connection, connection.transaction():
            self.fences.lock(connection, publication.fence)
            self._healing.settle(connection, table, keep=publication.fence.attempt_id)
            marked = Markers(self.ledger).exists(connection, publication.update_id, self.relation)
            if not marked and table.holds(publication.update_id):
                record(connection, self.ledger, self.relation, publication)
                marked = True
        return marked

    def _check_watermark(self, publication: Publication) -> None:
        before = publication.watermark
        if before is None:
            return
        now = self.watermark(before.pipeline)
        if (now.generation, now.version) != (before.generation, before.version):
            raise WatermarkMoved(
                f"the watermark of {before.pipeline} moved while this load was under way",
                "it is planned again from where it stands now",
            )
        with self.open() as connection, suppress(_Undo), connection.transaction():
            # Whether it may move at all is told before the rows are in, not after.
            record(connection, self.ledger, self.relation, publication)
            raise _Undo

    def _note(self, fence: Fence, intent: Intent) -> None:
        with self.open() as connection, connection.transaction():
            self.fences.lock(connection, fence)
            Intents(self.ledger).note(connection, self._table_name, intent)

    def _record(self, publication: Publication) -> None:
        with self.open() as connection, connection.transaction():
            self._bound(connection, publication.remaining_seconds())
            self.fences.lock(connection, publication.fence)
            record(connection, self.ledger, self.relation, publication)

    def _check_fence(self, fence: Fence) -> None:
        with self.open() as connection:
            if self.fences.current(connection, fence.resource) != fence:
                raise FenceLost(
                    f"a newer attempt has taken {fence.resource}",
                    "this attempt publishes nothing; the newer one carries on",
                )

    def _adopt(self, folders: Collection[str]) -> None:
        with self.open() as connection:
            StagedFolders(self.ledger).adopt(connection, folders)

    def _drop(self, session: LakeSession, attempt_id: str) -> None:
        """A branch that stays is swept later."""
        with suppress(Exception):
            session.run(
                statements.drop_branch(self.catalog, self.relation, branch_name(attempt_id))
            )

    def _bound(self, connection: Connection, remaining_seconds: float) -> None:
        idle = max(1.0, min(remaining_seconds, _IDLE_SECONDS))
        for name, value in (
            ("lock_timeout", self.lock_timeout_seconds),
            ("idle_in_transaction_session_timeout", idle),
        ):
            connection.execute(
                "SELECT set_config(%s, %s, true)", (name, f"{max(1, int(value * 1000))}ms")
            )


class _Undo(Exception):
    """Takes a trial back."""


def _marks(publication: Publication) -> dict[str, str]:
    """What the snapshot says of the load."""
    fence, before = publication.fence, publication.watermark
    found: dict[str, Any] = {
        "update-id": publication.update_id,
        "fence": fence.token,
        "attempt-id": fence.attempt_id,
    }
    if before is not None:
        after = before.after(publication.batch, publication.rows, publication.update_id)
        found |= {
            "pipeline": before.pipeline,
            "generation": before.generation,
            "from": "" if before.value is None else before.value,
            "to": "" if after.value is None else after.value,
        }
    return {key: str(value) for key, value in found.items()}
