"""Record what an earlier attempt published."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import DestinationError, FenceLost, LedgerBehind, StagingLost
from tidegate.core.identity import sync_of
from tidegate.core.log import log
from tidegate.core.relation import Relation
from tidegate.core.watermark import CursorType, LoadMark, Watermark
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import file_io, lake_table, open_table, read_table
from tidegate.iceberg.staged_files import count_rows
from tidegate.iceberg.table import MAIN, IcebergTable, PublishEvidence
from tidegate.ledger.fences import Fence, Fences, publisher_name
from tidegate.ledger.iceberg import Intent, Intents
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.target import Publication
from tidegate.load.targets.postgres.apply import AppliedRows
from tidegate.postgres.connection import Connection

if TYPE_CHECKING:
    from pyiceberg.table import Table


def find_load(
    catalog: Catalog, found: IcebergTable, update_id: str, base: int | None, snapshot: int | None
) -> PublishEvidence:
    """Whether a load is in, that was staged upon `base` and as `snapshot`, where that is known."""
    seen = found.see(update_id, base)
    if seen is not PublishEvidence.UNKNOWN:
        return seen
    table = open_table(catalog, found.relation)
    if table is None:
        return PublishEvidence.UNPUBLISHED
    seen = _trace(table, found.relation, update_id, base)
    if seen is PublishEvidence.UNKNOWN and snapshot is not None and _carries(table, snapshot):
        return PublishEvidence.PUBLISHED
    return seen


def has_rows(catalog: Catalog, relation: Relation, ref: str = MAIN) -> bool:
    """Whether a branch has any row, its deletes applied."""
    table = open_table(catalog, relation)
    if table is None or ref not in table.metadata.refs:
        return False
    try:
        return len(table.scan(limit=1).use_ref(ref).to_arrow()) > 0
    except ValueError:
        # Deletes by value, which other engines write; what they leave only Spark can tell.
        return True


def _trace(table: Table, relation: Relation, update_id: str, base: int | None) -> PublishEvidence:
    """Go back through what the table was after each commit: when the load got in, it was main."""
    for file in [entry.metadata_file for entry in reversed(table.metadata.metadata_log)]:
        try:
            was = _read(table, relation, file)
        except FileNotFoundError:
            break
        head = next(was.ancestors(), None)
        if head is not None and head.update_id == update_id:
            return PublishEvidence.PUBLISHED
        if head is None or head.snapshot_id == base:
            return PublishEvidence.UNPUBLISHED
    return PublishEvidence.UNKNOWN


def _read(table: Table, relation: Relation, file: str) -> IcebergTable:
    from pyiceberg.serializers import FromInputFile

    return lake_table(relation, FromInputFile.table_metadata(table.io.new_input(file)))


def _carries(table: Table, snapshot_id: int) -> bool:
    """Whether main has a file that a snapshot brought: it remembers that until it is rewritten."""
    picked = table.snapshot_by_id(snapshot_id)
    brought = () if picked is None else _files(table, picked)
    paths = {path for added_by, path in brought if added_by == snapshot_id}
    return any(
        added_by == snapshot_id or path in paths
        for added_by, path in _files(table, table.current_snapshot())
    )


def _files(table: Table, snapshot: Any) -> Iterator[tuple[int | None, str]]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.snapshot_id, entry.data_file.file_path


_FOUND = "found in the table"


def move_of(publication: Publication, applied: AppliedRows | None = None) -> dict[str, Any] | None:
    """How a publish moves the watermark, for whoever has to record it in its place."""
    before = publication.watermark
    if before is None:
        return None
    after = before.after(publication.batch, publication.rows, publication.update_id)
    synced = after.rows_synced
    if applied is not None and applied.emptied and not (applied.first and before.rows_synced):
        # Deletes took the last row: none is recorded, lest the next load finds them missing.
        synced = 0
    kind = publication.cursor_type
    return {
        "pipeline": before.pipeline,
        "generation": before.generation,
        "version": before.version,
        "value": after.value,
        "position": None if after.position is None else list(after.position),
        "rows": publication.rows,
        "rows_synced": synced,
        "cursor_type": None if kind is None else kind.value,
        "moved_by": publication.moved_by,
        "kind": publication.batch.kind.value,
        "declaration": None if publication.declaration is None else dict(publication.declaration),
    }


def intent_of(
    publication: Publication,
    base: int | None = None,
    snapshot: int | None = None,
    applied: AppliedRows | None = None,
) -> Intent:
    """What an attempt is about to publish, or has."""
    fence = publication.fence
    return Intent(
        publication.update_id,
        fence.attempt_id,
        fence.token,
        base,
        snapshot,
        move_of(publication, applied),
        repeatable=not publication.only_adds,
    )


def find_unrecorded(
    table: IcebergTable,
    watermark: Watermark,
    is_marked: Callable[[str], bool],
    target: str,
    name: str,
) -> list[LoadMark]:
    """Loads of a sync that main holds and its ledger knows nothing of, oldest first.

    So it is where the ledger was restored from a backup and the catalog was not. What main holds
    is what the ledger said once: it is believed where it goes on from what is recorded, or where
    a new generation has begun since. LedgerBehind where it does not.
    """
    if watermark.version == 0:
        # Nothing was loaded, or all was forgotten on purpose.
        return []
    found: list[LoadMark] = []
    for load in table.loads(watermark.pipeline):
        if is_marked(load.update_id):
            break
        if load.version is None and load.generation >= watermark.generation:
            raise _behind(watermark, load, target, name)
        if load.place >= (watermark.generation, watermark.version):
            found.append(load)
    found.reverse()
    places = [load.place for load in found]
    if not found or places[0][0] > watermark.generation:
        follows = True
    else:
        follows = (found[0].version, found[0].start) == (watermark.version, watermark.value)
    if not follows or places != sorted(set(places)):
        raise _behind(watermark, found[-1], target, name)
    return found


def _behind(watermark: Watermark, newest: LoadMark, target: str, name: str) -> LedgerBehind:
    touch = f"tidegate marker touch {target} {newest.update_id}"
    return LedgerBehind(
        f"{target} holds loads of {name} up to {newest.value or 'its start'} that the ledger does "
        f"not know of, which stands at {watermark.value or 'the start'}: it was restored from a "
        "backup, or changed since, and how they follow each other cannot be told",
        f"to load everything again: {touch}; then: tidegate run {name} --full-refresh; or to go "
        f"on after them: {touch}; then: tidegate watermark set {name} "
        f"{shlex.quote(newest.value or 'VALUE')} --reason restored",
    )


@dataclass(frozen=True, slots=True)
class IntentRecovery:
    """Settles the intents of one table."""

    catalog: Catalog
    ledger: Ledger
    relation: Relation

    def see(self, table: IcebergTable | None, intent: Intent) -> PublishEvidence:
        """Whether what was intended has come about."""
        if table is None:
            return PublishEvidence.UNPUBLISHED
        return find_load(self.catalog, table, intent.update_id, intent.base, intent.snapshot)

    def catch_up(self, connection: Connection, table: IcebergTable, project: str) -> None:
        """Record what main holds and a ledger that is older than it does not know of."""
        markers, watermarks = Markers(self.ledger), Watermarks(self.ledger)
        target = f"{self.catalog.name}:{self.relation}"
        for pipeline in {mark.pipeline for mark in table.loads()}:
            watermark = watermarks.get(connection, pipeline, str(self.relation))
            found = find_unrecorded(
                table,
                watermark,
                lambda update_id: markers.exists(connection, update_id, self.relation),
                target,
                sync_of(project, pipeline),
            )
            for load in found:
                markers.touch(connection, load.update_id, self.relation)
            if found:
                after = watermarks.recover(connection, watermark, found, moved_by=_FOUND)
                log.warning(
                    "ledger_caught_up",
                    table=target,
                    pipeline=pipeline,
                    loads=len(found),
                    recorded=watermark.value,
                    found=after.value,
                    meaning="the ledger is older than the table: it was restored from a backup",
                )

    def settle(
        self, connection: Connection, table: IcebergTable | None, keep: str | None = None
    ) -> None:
        """Record what turned out to be in; give up the rest, except that of the attempt `keep`."""
        intents, name = Intents(self.ledger), str(self.relation)
        for intent in intents.of_table(connection, name):
            if Markers(self.ledger).exists(connection, intent.update_id, self.relation):
                intents.settle(connection, name, intent.update_id)
                continue
            if intent.abandoned and table is not None:
                # Its branch was dropped, so it is in only if it can be seen there.
                seen = table.see(intent.update_id, intent.base)
            else:
                seen = self.see(table, intent)
            if seen is PublishEvidence.PUBLISHED:
                record_published(connection, self.ledger, self.relation, intent)
                log.info("intent_healed", table=name, update_id=intent.update_id)
            elif intent.abandoned:
                continue
            elif seen is PublishEvidence.UNKNOWN and not intent.repeatable:
                raise unknown_outcome(self.relation, self.catalog.name, intent)
            elif intent.attempt_id != keep:
                intents.abandon(connection, name, intent)


def record_published(
    connection: Connection, ledger: Ledger, relation: Relation, intent: Intent
) -> None:
    """Marker and watermark of a load that is in, in the caller's transaction under the fence."""
    name = str(relation)
    if Markers(ledger).touch(connection, intent.update_id, relation) and intent.move is not None:
        _move(connection, ledger, name, intent, intent.move)
    Intents(ledger).settle(connection, name, intent.update_id)


def _move(
    connection: Connection, ledger: Ledger, table: str, intent: Intent, move: Mapping[str, Any]
) -> None:
    """Only from where the load started: a person may have moved the watermark since."""
    watermarks = Watermarks(ledger)
    now = watermarks.get(connection, move["pipeline"], table)
    if (now.generation, now.version) != (move["generation"], move["version"]):
        log.warning("watermark_not_moved", pipeline=move["pipeline"], update_id=intent.update_id)
        return
    position = None if move["position"] is None else tuple(move["position"])
    after = Watermark(
        now.pipeline,
        table,
        move["value"],
        generation=now.generation,
        version=now.version + 1,
        rows_synced=move["rows_synced"],
        position=position,
        update_id=intent.update_id,
    )
    watermarks.move(
        connection,
        now,
        after,
        cursor_type=None if move["cursor_type"] is None else CursorType(move["cursor_type"]),
        fence=intent.fence,
        attempt_id=intent.attempt_id,
        moved_by=move["moved_by"],
        reason=f"load {move['kind']}",
        declaration=move["declaration"],
        rows=move["rows"],
    )


def unknown_outcome(relation: Relation, connection_name: str, intent: Intent) -> DestinationError:
    """Nobody can tell whether the rows are in, and they must not be in twice."""
    target = f"{connection_name}:{relation}"
    return DestinationError(
        f"whether the load {intent.update_id} is in {target} cannot be told: the snapshots and "
        "the metadata that would say so have expired",
        "look whether its rows are there; if they are: "
        f"tidegate marker touch {target} {intent.update_id}; if not: "
        f"tidegate marker forget {target} {intent.update_id}",
    )


@dataclass(frozen=True, slots=True)
class IcebergTableState:
    """A table in its catalog, and the rows in the control database that belong to it."""

    catalog: Catalog
    relation: Relation
    ledger: Ledger
    open: Callable[[], AbstractContextManager[Connection]]
    """short sessions of the database that holds the ledger"""
    lock_timeout_seconds: float

    @property
    def fences(self) -> Fences:
        return Fences(self.ledger)

    @property
    def healing(self) -> IntentRecovery:
        return IntentRecovery(self.catalog, self.ledger, self.relation)

    def read(self) -> IcebergTable | None:
        """The table as it is now."""
        return read_table(self.catalog, self.relation)

    def read_existing(self) -> IcebergTable:
        """The table, where it has to be there."""
        table = self.read()
        if table is None:
            raise StagingLost(f"{self.relation} was dropped while it was being loaded")
        return table

    def check_counts(self, location: str, writes: Sequence[StagedWrite]) -> None:
        """Whether all that was staged is still there."""
        io = file_io(self.catalog, location)
        for write in writes:
            left = count_rows(io, location, write)
            if left != write.rows:
                raise StagingLost(
                    f"{write.rows} rows were staged for {self.relation}, but {left} are left",
                    "they are staged again",
                )

    def check_fence(self, fence: Fence) -> None:
        """Whether this attempt still holds the table."""
        with self.open() as connection:
            if self.fences.current(connection, fence.resource) != fence:
                raise FenceLost(
                    f"a newer attempt has taken {fence.resource}",
                    "this attempt publishes nothing; the newer one carries on",
                )

    def hold_fence(self, connection: Connection, fence: Fence, idle_seconds: float) -> None:
        """Hold the fence in the caller's transaction; FenceLost when it is not ours.

        A newer attempt that waits for it finds this session by its name, and may end it.
        """
        for name, value in (
            ("lock_timeout", f"{max(1, int(self.lock_timeout_seconds * 1000))}ms"),
            ("idle_in_transaction_session_timeout", f"{int(max(1.0, idle_seconds) * 1000)}ms"),
            ("application_name", publisher_name(fence.attempt_id)),
        ):
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        self.fences.lock(connection, fence)
