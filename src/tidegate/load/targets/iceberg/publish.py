"""Publishing into a lake: stage upon a branch, move main to it, record it; or start again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tidegate.core.batch import Published
from tidegate.core.errors import (
    CommitUnknown,
    ConnectionFailed,
    DestinationError,
    RemovalRefused,
    WatermarkMoved,
)
from tidegate.core.failpoints import reach
from tidegate.core.watermark import SUMMARY
from tidegate.iceberg import statements
from tidegate.iceberg.session import IcebergSession
from tidegate.iceberg.table import STAGED_ID, IcebergTable, PublishEvidence, branch_name
from tidegate.ledger.iceberg import Intent, Intents, StagedFolders
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.target import Publication
from tidegate.load.targets.iceberg.commit import IcebergCommit
from tidegate.load.targets.iceberg.recovery import (
    IcebergTableState,
    find_load,
    intent_of,
    record_published,
    unknown_outcome,
)
from tidegate.load.targets.postgres.apply import AppliedRows

_RACES = 3
_DIRECT_TRIES = 10
_RESOLVE_SECONDS = 60.0
_IDLE_SECONDS = 30.0
# How Iceberg, or our trigger in its catalog, says that somebody else has committed first.
_CONFLICTS = (
    "CommitFailedException",
    "another commit came first",
    "Found conflicting",
)


class LostRace(Exception):
    """Main has moved since the rows were staged upon it."""


@dataclass(frozen=True, slots=True)
class IcebergPublish:
    """One attempt at one load, in a session of its own."""

    holding: IcebergTableState
    session: IcebergSession
    publication: Publication

    @property
    def _branch(self) -> str:
        return branch_name(self.publication.fence.attempt_id)

    def run(self) -> Published:
        """Whoever loses a race starts again; who loses many goes behind what others commit."""
        for race in range(_RACES + _DIRECT_TRIES):
            try:
                return self._publish(late=race >= _RACES)
            except LostRace:
                continue
        raise DestinationError(
            f"{self.holding.relation} is changed by others so often that the rows could not be "
            "put in",
            "run again when less is written to it",
        )

    def _publish(self, *, late: bool) -> Published:
        holding, publication = self.holding, self.publication
        self._commit(statements.create_branch(holding.catalog, holding.relation, self._branch))
        reach("branch.created")
        table = holding.read_existing()
        base = table.refs.get(self._branch)
        if base is None or table.main not in (None, base):
            # What main was when the branch was made is not what is looked at now.
            raise LostRace
        if self._is_in(table):
            self._drop()
            return Published(publication.rows, 0, already=True)
        self._check_watermark()
        holding.check_counts(table.location, publication.writes)
        rows = IcebergCommit(
            self.session,
            holding.relation,
            publication.shape,
            publication.rules,
            table.location,
            publication.writes,
            adopt=self._adopt,
        )
        marks = marks_of(publication)
        self.session.mark(marks)
        if late and not publication.only_adds:
            return self._publish_directly(rows, table, marks)
        try:
            rows.check_removal(table, self._branch, publication.batch)
            applied = rows.apply(table, self._branch, publication.batch, marks)
        except RemovalRefused:
            self._drop()
            raise
        except Exception as error:
            raise self._lost(error) from error
        reach("branch.staged")
        staged = holding.read_existing()
        head = staged.refs.get(self._branch)
        if head == base:
            # Nothing was to be written, so there is nothing to be moved to.
            self._record(intent_of(publication, applied=applied))
        elif head is None or staged.snapshots[head].parent_id != base:
            # The branch holds more, or less, than the one commit of this load.
            raise LostRace
        else:
            intent = intent_of(publication, base, head, applied)
            self._note(intent)
            reach("intent.noted")
            move = statements.fast_forward(holding.catalog, holding.relation, self._branch)
            if late:
                move = statements.pick_snapshot(holding.catalog, holding.relation, head)
            self._move_main(move, intent)
        reach("publish.committed")
        self._drop()
        reach("branch.dropped")
        return Published(publication.rows, applied.changed)

    def _publish_directly(
        self, rows: IcebergCommit, table: IcebergTable, marks: dict[str, str]
    ) -> Published:
        """One commit on main; Iceberg sees to it that no other came between reading and writing."""
        publication = self.publication
        try:
            rows.check_removal(table, None, publication.batch)
        except RemovalRefused:
            self._drop()
            raise
        intent = intent_of(publication, table.main)
        self._note(intent)
        reach("intent.noted")
        done = AppliedRows(publication.rows, first=False)

        def apply() -> None:
            nonlocal done
            done = rows.apply(table, None, publication.batch, marks)

        self._fenced(apply, intent)
        reach("publish.committed")
        self._drop()
        return Published(publication.rows, done.changed)

    def _move_main(self, statement: str, intent: Intent) -> None:
        self._fenced(lambda: self.session.run(statement), intent)

    def _fenced(self, commit: Callable[[], object], intent: Intent) -> None:
        """Change main under the fence, and record it."""
        if self.holding.catalog.is_embedded:
            # The catalog's trigger holds the fence; a lock of ours would only block it.
            self._settled(commit, intent)
            self._record(intent)
            return
        publication, moved = self.publication, False
        try:
            with self.holding.open() as connection, connection.transaction():
                self.holding.hold_fence(
                    connection, publication.fence, publication.remaining_seconds()
                )
                self._settled(commit, intent)
                moved = True
                record_published(connection, self.holding.ledger, self.holding.relation, intent)
        except psycopg.Error:
            if not moved:
                raise
            self._record(intent)

    def _settled(self, commit: Callable[[], object], intent: Intent) -> None:
        try:
            commit()
        except Exception as error:
            # Refused, or not: only the table itself can tell.
            seen = self._see(intent)
            if seen is PublishEvidence.UNKNOWN and not intent.repeatable:
                raise unknown_outcome(
                    self.holding.relation, self.holding.catalog.name, intent
                ) from error
            if seen is not PublishEvidence.PUBLISHED:
                self.holding.check_fence(self.publication.fence)
                raise LostRace from error
        reach("branch.forwarded")

    def _see(self, intent: Intent) -> PublishEvidence:
        holding = self.holding
        deadline = time.monotonic() + _RESOLVE_SECONDS
        while True:
            try:
                table = holding.read_existing()
                return find_load(
                    holding.catalog, table, intent.update_id, intent.base, intent.snapshot
                )
            except (ConnectionFailed, psycopg.OperationalError) as error:
                if time.monotonic() > deadline:
                    raise CommitUnknown(
                        f"the catalog was lost while publishing {intent.update_id} into "
                        f"{holding.relation}, and did not come back",
                        "run again: the table will tell whether the load is in",
                    ) from error
            time.sleep(0.2)

    def _commit(self, statement: str) -> None:
        try:
            self.session.run(statement)
        except Exception as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> Exception:
        """What became of a commit to our own branch."""
        self.holding.check_fence(self.publication.fence)
        return LostRace() if any(text in str(error) for text in _CONFLICTS) else error

    def _is_in(self, table: IcebergTable) -> bool:
        """Whether an attempt before us has published this; what it did not record is recorded."""
        holding, publication = self.holding, self.publication
        with holding.open() as connection, connection.transaction():
            holding.fences.lock(connection, publication.fence)
            holding.healing.settle(connection, table, keep=publication.fence.attempt_id)
            marked = Markers(holding.ledger).exists(
                connection, publication.update_id, holding.relation
            )
            if not marked and table.holds(publication.update_id):
                record_published(
                    connection, holding.ledger, holding.relation, intent_of(publication)
                )
                marked = True
        return marked

    def _check_watermark(self) -> None:
        holding, publication = self.holding, self.publication
        before = publication.watermark
        if before is None:
            return
        with holding.open() as connection, suppress(_Undo), connection.transaction():
            now = Watermarks(holding.ledger).get(connection, before.pipeline, before.table)
            if (now.generation, now.version) != (before.generation, before.version):
                raise WatermarkMoved(
                    f"the watermark of {before.pipeline} moved while this load was under way",
                    "it is planned again from where it stands now",
                )
            # Whether it may move at all is told before the rows are in, not after.
            record_published(connection, holding.ledger, holding.relation, intent_of(publication))
            raise _Undo

    def _note(self, intent: Intent) -> None:
        holding = self.holding
        with holding.open() as connection, connection.transaction():
            holding.fences.lock(connection, self.publication.fence)
            Intents(holding.ledger).note(connection, str(holding.relation), intent)

    def _record(self, intent: Intent) -> None:
        """Write down what main holds, until it is known to be written: twice does no harm."""
        holding, publication = self.holding, self.publication
        deadline = time.monotonic() + _RESOLVE_SECONDS
        while True:
            try:
                with holding.open() as connection, connection.transaction():
                    idle_seconds = min(publication.remaining_seconds(), _IDLE_SECONDS)
                    holding.hold_fence(connection, publication.fence, idle_seconds)
                    record_published(connection, holding.ledger, holding.relation, intent)
                return
            except (psycopg.Error, ConnectionFailed) as error:
                if time.monotonic() > deadline:
                    raise CommitUnknown(
                        f"{intent.update_id} is in {holding.relation}, but the database of its "
                        "ledger did not come back to record it",
                        "run again: what the table holds is recorded first",
                    ) from error
            time.sleep(0.2)

    def _adopt(self, folders: Collection[str]) -> None:
        with self.holding.open() as connection:
            StagedFolders(self.holding.ledger).adopt(connection, folders)

    def _drop(self) -> None:
        drop_branch(self.holding, self.session, self.publication.fence.attempt_id)


class _Undo(Exception):
    """Takes a trial back."""


def drop_branch(holding: IcebergTableState, session: IcebergSession, attempt_id: str) -> None:
    """A branch that stays is swept later."""
    branch = branch_name(attempt_id)
    with suppress(Exception):
        session.run(statements.drop_branch(holding.catalog, holding.relation, branch))


def marks_of(publication: Publication) -> dict[str, str]:
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
            "version": before.version,
            "kind": publication.batch.kind.value,
            "rows": publication.rows,
        }
        if after.position is not None:
            found["position"] = json.dumps(list(after.position))
    marks = {f"{SUMMARY}{key}": str(value) for key, value in found.items()}
    return {**marks, STAGED_ID: publication.update_id}
