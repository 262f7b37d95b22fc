"""An Iceberg destination: rows are staged as files, and published by moving main."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from uuid import UUID

from tidegate.config.sync import Duplicates, Layout, Rules
from tidegate.core.batch import BatchKind, Published, StagedWrite
from tidegate.core.errors import (
    KEY_IN_LOG,
    BusyError,
    DeclarationError,
    DestinationError,
    LoadError,
    TidegateError,
)
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape, record_columns
from tidegate.core.watermark import Watermark
from tidegate.iceberg import statements
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import file_io, read_table
from tidegate.iceberg.session import iceberg_session
from tidegate.iceberg.staged_files import LakeColumn, LakePlace, delete_folder, new_folder
from tidegate.iceberg.table import IcebergTable, branch_name, lake_resource
from tidegate.ledger.fences import Fence, Fences
from tidegate.ledger.iceberg import Intents, StagedFolder, StagedFolders
from tidegate.ledger.ledger import Ledger, Staging
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.modes import MODES
from tidegate.load.target import Publication, refuse_deletes, refuse_outside
from tidegate.load.targets.iceberg.commit import IcebergCommit
from tidegate.load.targets.iceberg.publish import IcebergPublish, drop_branch
from tidegate.load.targets.iceberg.recovery import IcebergTableState, has_rows
from tidegate.load.targets.iceberg.table import adds_unrecorded, ensure_target, missing_table
from tidegate.load.targets.postgres.table import unrecorded
from tidegate.postgres.connection import Connection
from tidegate.spark.session import SparkSessions
from tidegate.spark.task_outcome import spark_reason


@dataclass(frozen=True, slots=True)
class IcebergTarget:
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
    def holding(self) -> IcebergTableState:
        return IcebergTableState(
            self.catalog, self.relation, self.ledger, self.lease, self.lock_timeout_seconds
        )

    def open(self) -> AbstractContextManager[Connection]:
        return self.lease()

    def identify(self) -> str:
        return lake_resource(self.catalog.identity, self.relation)

    def read(self) -> IcebergTable | None:
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

    def fenced_transaction(self, fence: Fence, doing: str) -> AbstractContextManager[Connection]:
        return self.fences.transaction(
            self.open, fence, doing, lock_timeout_seconds=self.lock_timeout_seconds
        )

    @property
    def iceberg_catalog(self) -> str | None:
        return self.catalog.name

    def heal(self, fence: Fence) -> None:
        """Settle what earlier attempts were about to publish, before anything is read.

        And catch up where the ledger is older than the table: the embedded catalog lies beside it
        and is restored with it, another does not.
        """
        holding = self.holding
        with self.open() as connection:
            intents = Intents(self.ledger).of_table(connection, self._table_name)
        if not intents and self.catalog.is_embedded:
            return
        table = self.read()
        if not intents and (table is None or next(table.loads(), None) is None):
            return
        lost = {
            intent.attempt_id
            for intent in intents
            if table is None or not table.holds(intent.update_id)
        }
        if table is not None and any(branch_name(one) in table.refs for one in lost):
            # Without its branch an attempt that is not quite dead cannot move main any more.
            with iceberg_session(self.sessions, self.catalog, fence.attempt_id) as session:
                for attempt_id in lost:
                    drop_branch(holding, session, attempt_id)
            table = self.read()
            if table is not None and any(branch_name(one) in table.refs for one in lost):
                holding.check_fence(fence)
                raise BusyError(
                    f"what an earlier attempt staged for {self.relation} cannot be taken back",
                    "run again when less is written to the table",
                )
        with self.fenced_transaction(fence, f"recording loads of {self.relation}") as connection:
            holding.healing.settle(connection, table)
            if table is not None and not self.catalog.is_embedded:
                holding.healing.catch_up(connection, table, self.project)

    def _check_present(self, table: IcebergTable | None, watermark: Watermark) -> None:
        if not self._has_rows(table):
            raise missing_table(table, self.relation, watermark, self.project)

    def _has_rows(self, table: IcebergTable | None) -> bool:
        told = False if table is None else table.has_rows()
        return has_rows(self.catalog, self.relation) if told is None else told

    def check_present(self, watermark: Watermark) -> None:
        if watermark.rows_synced:
            self._check_present(self.read(), watermark)

    def holds_rows(self) -> bool:
        return self._has_rows(self.read())

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
        if watermark is not None and not MODES[rules.mode].loads_whole and watermark.rows_synced:
            self._check_present(table, watermark)
        first = watermark is not None and adds_unrecorded(rules.mode, watermark)
        if watermark is not None and first and self._has_rows(table):
            raise unrecorded(self.relation, watermark, self.project)
        notes = ensure_target(
            table,
            lambda: iceberg_session(
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
        table = self.holding.read_existing()
        folder = new_folder(attempt_id)
        with self.open() as connection:
            StagedFolders(self.ledger).note(
                connection, self._table_name, StagedFolder(folder, attempt_id, table.location)
            )
        numbers = {known.name: known.field_id for known in table.fields}
        if shape.deleted is not None:
            numbers.pop(shape.deleted, None)
        columns = [LakeColumn(name, kind, numbers.get(name)) for name, kind in shape.staged]
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
        location = self.holding.read_existing().location
        self.holding.check_counts(location, writes)
        tolerated = rules.duplicates is Duplicates.NEWEST
        if rules.replaces_part:
            self._refuse_outside(shape, writes, fence, rules, location)
        if not shape.may_repeat_keys:
            return
        with iceberg_session(self.sessions, self.catalog, fence.attempt_id) as session:
            rows = IcebergCommit(
                session, self.relation, shape, rules, location, tuple(writes)
            ).view()
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
                f"one occurs {twice[0][1]} times in one batch",
                'choose a unique key, or set duplicates = "newest" to keep the newest row; '
                + KEY_IN_LOG,
                detail=f"the key {twice[0][0]} occurs {twice[0][1]} times",
            )

    def _refuse_outside(
        self,
        shape: Shape,
        writes: Sequence[StagedWrite],
        fence: Fence,
        rules: Rules,
        location: str,
    ) -> None:
        with iceberg_session(self.sessions, self.catalog, fence.attempt_id) as session:
            rows = IcebergCommit(
                session, self.relation, shape, rules, location, tuple(writes)
            ).view()
            (outside,) = session.run(statements.count_outside(rows, shape, rules.within))[0]
        refuse_outside(self.relation, int(str(outside)), rules)

    def publish(self, publication: Publication) -> Published:
        full = publication.batch.kind is BatchKind.FULL
        refuse_deletes(self.relation, publication.shape, publication.rules, full=full)
        fence = publication.fence
        try:
            with iceberg_session(self.sessions, self.catalog, fence.attempt_id) as session:
                return IcebergPublish(self.holding, session, publication).run()
        except TidegateError:
            raise
        except Exception as error:
            self.holding.check_fence(fence)
            raise LoadError(
                f"publishing into {self.relation}: {spark_reason(error)}",
                "run again; should the rows have got in nevertheless, that is noticed first",
            ) from error

    def discard(self, attempt_id: str, *, ended: bool = False) -> int:
        with self.open() as connection:
            # Changes of a source are landed in tables before they become files.
            removed = Staging(self.ledger).discard(connection, self.control_id, attempt_id)
            folders = StagedFolders(self.ledger).of_attempt(connection, attempt_id)
        if not folders:
            return removed
        for folder in folders:
            if not folder.adopted:
                io = file_io(self.catalog, folder.location)
                removed += delete_folder(io, folder.location, folder.folder)
        table = self.read()
        if table is not None and branch_name(attempt_id) in table.refs:
            with iceberg_session(self.sessions, self.catalog) as session:
                drop_branch(self.holding, session, attempt_id)
        with self.open() as connection:
            StagedFolders(self.ledger).forget(connection, attempt_id, ended=ended)
        return removed

    def sweep(self, live_attempts: Callable[[], set[str]]) -> int:
        with self.open() as connection:
            removed = Staging(self.ledger).sweep(connection, self.control_id, live_attempts)
            found = StagedFolders(self.ledger).attempts(connection, self._table_name)
        if not found:
            return removed
        live = live_attempts()
        dead = [attempt_id for attempt_id in found if attempt_id not in live]
        return removed + sum(map(self.discard, dead))
