"""The five actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tidegate.config.sync import Sync
from tidegate.core.errors import DestinationError, StaleAttempt
from tidegate.core.failpoints import reach
from tidegate.core.table_actions import (
    Action,
    ActionOptions,
    Amount,
    Effect,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewritePositionDeleteFiles,
)
from tidegate.iceberg.manifests import known_files
from tidegate.iceberg.metadata import (
    file_io,
    lake_table,
    open_table,
    read_consistently,
    read_metadata,
)
from tidegate.jobs.job import SYNC
from tidegate.jobs.job_records import JobRecords
from tidegate.ledger.iceberg import Intents, StagedFolders
from tidegate.load.context import Context
from tidegate.load.modes import MODES
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.maintenance import procedures
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.orphan_files import GoneFile, OrphanFiles, PlainFiles, plain_path
from tidegate.maintenance.prediction import expired_snapshots
from tidegate.maintenance.procedures import ActionContext, ActionResult, ActionStep

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class NeededSnapshots:
    """What may be forgotten, where it is less than was asked for, and who needs the rest."""

    options: ExpireSnapshots
    older_than: datetime
    notes: tuple[str, ...] = ()


def bound_expiry(
    context: Context, destination: IcebergTarget, options: ExpireSnapshots, now: datetime
) -> NeededSnapshots:
    """Forget none of what syncs and unsettled loads still need, nor what came after it.

    DestinationError where a branch of the table wants that forgotten whatever is said here.
    """
    wanted = now - timedelta(seconds=options.older_than_seconds)
    metadata = read_metadata(destination.catalog, destination.relation)
    if metadata is None:
        return NeededSnapshots(options, wanted)
    at = {one.snapshot_id: one.timestamp_ms for one in metadata.snapshots}
    by = {one: who for one, who in _needs(context, destination) if one in at}
    kept = _with_later(destination, metadata, by)
    if not kept:
        return NeededSnapshots(options, wanted)
    # Clocks differ: what came after a snapshot may say that it is older.
    oldest = datetime.fromtimestamp(min(at[one] for one in kept) / 1000, UTC)
    limit = min(wanted, oldest)
    bounded = replace(options, older_than_seconds=(now - limit).total_seconds())
    names = ", ".join(sorted(set(by.values())))
    if kept & expired_snapshots(metadata, bounded, now, ()):
        raise DestinationError(
            f"snapshots of {destination.relation} would be forgotten that {names} still needs: a "
            "branch of the table says itself how long they are kept",
            "run that first, or take the rule from the branch: ALTER TABLE … REPLACE BRANCH main",
        )
    if not kept & expired_snapshots(metadata, options, now, ()):
        return NeededSnapshots(bounded, limit)
    since = f"{limit:%Y-%m-%d %H:%M:%S}"
    return NeededSnapshots(
        bounded, limit, (f"snapshots from {since} on are kept: {names} needs them",)
    )


def _with_later(
    destination: IcebergTarget, metadata: TableMetadata, needed: Mapping[int, str]
) -> frozenset[int]:
    table = lake_table(destination.relation, metadata)
    later = {after.snapshot_id for one in needed for after in table.since(one) or ()}
    return frozenset({*needed, *later})


def _needs(context: Context, destination: IcebergTarget) -> Iterator[tuple[int, str]]:
    with destination.open() as connection:
        for intent in Intents(destination.ledger).of_table(connection, str(destination.relation)):
            for snapshot in (intent.base, intent.snapshot):
                if snapshot is not None and not intent.abandoned:
                    yield snapshot, f"load {intent.update_id}"
    for sync in _readers(context, destination):
        stands = context.destination(sync.target).watermark(sync.pipeline).value
        # Where it stands, and what a load of it that is under way goes up to.
        for value in (stands, *_planned(context, sync)):
            if value is not None and value.isdigit():
                yield int(value), f"sync {sync.name}"


def _planned(context: Context, sync: Sync) -> Iterator[str | None]:
    with context.plane.connect() as control:
        records = JobRecords(context.plane)
        for plan in records.unfinished_plans(control, sync.project, SYNC, sync.name):
            yield plan.get("batch", {}).get("high")


def _readers(context: Context, destination: IcebergTarget) -> Iterator[Sync]:
    """The project's syncs that go on in this table from where they stand."""
    resource = destination.identify()
    for one in context.declared().values():
        if (
            isinstance(one, Sync)
            and one.lake_source
            and not MODES[one.mode].loads_whole
            and one.source.relation == destination.relation
            and context.destination(one.source).identify() == resource
        ):
            yield one


_FOR_EVER = ExpireSnapshots(older_than_seconds=1e9, retain_last=1_000_000_000)


def expire_snapshots(work: ActionContext, options: ActionOptions) -> ActionStep:
    assert isinstance(options, ExpireSnapshots)
    now, before = work.now(), work.facts()
    needed = bound_expiry(work.context, work.destination, options, now)
    predicted = work.predict(Action.EXPIRE_SNAPSHOTS, needed.options, now=now)
    statement = procedures.expire_snapshots(
        work.catalog, work.relation, needed.older_than, options.retain_last
    )

    def do() -> ActionResult:
        return ActionResult(work.call(statement), needed.notes)

    def actual(_: ActionResult) -> Effect:
        gone = before.snapshots - work.facts().snapshots
        return replace(predicted, after=_all_files(work), snapshots=gone)

    return ActionStep(predicted, do, actual)


def _all_files(work: ActionContext) -> Amount:
    """The files of all snapshots there are."""
    return work.predict(Action.EXPIRE_SNAPSHOTS, _FOR_EVER).before


MARGIN_SECONDS = 300.0
_NOTED = 5_000
_DELETED = 500
_KNOWN = "the table knows it"
_STAGED = "staged by an attempt that may be at work"
_YOUNG = "changed since it was found"
_ELSEWHERE = "not below the table"
_STUCK = "cannot be deleted: "


@dataclass(slots=True)
class OrphanRemoval:
    """The removal for one job; an attempt after this one goes on with the same list."""

    work: ActionContext
    orphans: OrphanFiles
    before: datetime
    """younger files may belong to somebody who is at work"""

    def run(self) -> ActionResult:
        if _listed(self.work) is None:
            self._list()
        reach("orphans.listed")
        self._keep_staged()
        self._delete()
        reach("orphans.deleted")
        return self._result()

    def _list(self) -> None:
        work, before = self.work, self.before
        statement = procedures.find_orphan_files(work.catalog, work.relation, before)
        fence = work.attempt.fence
        with work.engine.session(work.catalog, fence.attempt_id) as session:
            rows = session.run(statement)
            paths = (plain_path(str(row["orphan_file_location"])) for row in rows)
            for some in _batches(paths, _NOTED):
                work.attempt.check_alive()
                if not self.orphans.note(fence.attempt_id, some):
                    raise StaleAttempt(f"the attempt {fence.attempt_id} was replaced by another")
        work.attempt.store_plan({"orphans_before": before.isoformat()})

    def _keep_staged(self) -> None:
        """Attempts of ours say where they stage; only the dead have left theirs behind."""
        destination = self.work.destination
        with destination.open() as connection:
            folders = StagedFolders(destination.ledger).of_table(
                connection, str(destination.relation)
            )
        ended = self.orphans.ended({one.attempt_id for one in folders})
        for one in folders:
            if one.attempt_id not in ended:
                below = f"{plain_path(one.location).rstrip('/')}/data/{one.folder}/"
                self.orphans.keep_below(below, _STAGED)

    def _delete(self) -> None:
        work = self.work
        after, checked = "", None
        while some := self.orphans.next(after, _DELETED):
            work.attempt.check_alive()
            table = open_table(work.catalog, work.relation)
            if table is None:
                raise DestinationError(f"{work.relation} was dropped meanwhile")
            if table.metadata_location != checked:
                # Somebody has committed since the list was made, or the last batch deleted.
                checked = read_consistently(work.catalog, work.relation, self._keep_known)
                continue
            work.destination.holding.check_fence(work.attempt.fence)
            self._delete_some(table.metadata.location, some)
            after = some[-1]

    def _keep_known(self, table: Table) -> str:
        """Whatever the table knows stays; tells the metadata by which it was known."""
        for some in _batches(known_files(table), _NOTED):
            self.work.attempt.check_alive()
            self.orphans.keep([plain_path(one) for one in some], _KNOWN)
        return table.metadata_location

    def _delete_some(self, location: str, some: list[str]) -> None:
        files = PlainFiles(file_io(self.work.catalog, location), location)
        root = f"{plain_path(location).rstrip('/')}/"
        inside = [one for one in some if one.startswith(root)]
        self.orphans.keep(set(some).difference(inside), _ELSEWHERE)
        there = {one.path: one for one in files.look(inside)}
        young = {
            path
            for path, one in there.items()
            if one.modified_at is not None and one.modified_at >= self.before
        }
        self.orphans.keep(young, _YOUNG)
        wanted = [path for path in there if path not in young]
        stuck = files.delete(wanted)
        for path, why in stuck.items():
            self.orphans.keep([path], f"{_STUCK}{why}")
        gone = [
            GoneFile(path, there[path].bytes, there[path].modified_at)
            if path in there
            else GoneFile(path)
            for path in inside
            if path not in young and path not in stuck
        ]
        self.orphans.mark_deleted(gone)

    def _result(self) -> ActionResult:
        counts, reasons = self.orphans.counts(), self.orphans.reasons()
        stuck = {why: count for why, count in reasons.items() if why.startswith(_STUCK)}
        if stuck:
            words = ", ".join(f"{count} {why}" for why, count in stuck.items())
            raise DestinationError(
                f"{counts.deleted} orphan files were deleted, but others could not be: {words}",
                "see that this process may delete files of the table, and run it again",
            )
        notes = [f"{count} files stay: {why}" for why, count in reasons.items()]
        told = {
            "older_than": self.before.isoformat(),
            "found": counts.found,
            "deleted": counts.deleted,
            "deleted_bytes": counts.deleted_bytes,
        }
        return ActionResult(told, tuple(notes))


def _batches(paths: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(paths)
    while some := list(islice(rest, size)):
        yield some


def remove_orphan_files(work: ActionContext, options: ActionOptions) -> ActionStep:
    """A list from an attempt before this one is gone on with."""
    assert isinstance(options, RemoveOrphanFiles)
    job_id = work.attempt.claim.job_id
    with work.context.plane.connect() as control:
        orphans = OrphanFiles(work.context.plane, control, job_id)
        before = _listed(work) or orphans.limit(
            options.older_than_seconds + MARGIN_SECONDS, MARGIN_SECONDS
        )
        counted = orphans.counts()
    predicted = work.predict(Action.REMOVE_ORPHAN_FILES, options, orphans_before=before)

    def do() -> ActionResult:
        with work.context.plane.connect() as control:
            orphans = OrphanFiles(work.context.plane, control, job_id)
            return OrphanRemoval(work, orphans, before).run()

    def actual(result: ActionResult) -> Effect:
        was = predicted.before
        files = was.files - (result.told["deleted"] - counted.deleted)
        size = was.bytes - (result.told["deleted_bytes"] - counted.deleted_bytes)
        return replace(predicted, after=Amount(files, size))

    return ActionStep(predicted, do, actual)


def _listed(work: ActionContext) -> datetime | None:
    """What the files of a complete list are older than, where an earlier attempt has made one."""
    plan = work.attempt.stored_plan
    found = None if plan is None else plan.get("orphans_before")
    return None if found is None else datetime.fromisoformat(found)


_REWRITTEN = "rewritten_data_files_count"
_NO_DELETES = "the table has no position delete files"


def rewrite_data_files(work: ActionContext, options: ActionOptions) -> ActionStep:
    assert isinstance(options, RewriteDataFiles)
    facts = work.facts()
    deletes = facts.position_deletes.files + facts.equality_deletes.files
    statement = procedures.rewrite_data_files(
        work.catalog, work.relation, options, dangling=deletes > 0
    )
    predicted = work.predict(Action.REWRITE_DATA_FILES, options)
    return _rewriting(work, predicted, statement, lambda after: after.data)


def rewrite_position_delete_files(work: ActionContext, options: ActionOptions) -> ActionStep:
    assert isinstance(options, RewritePositionDeleteFiles)
    facts = work.facts()
    if not facts.position_deletes.files:
        nothing = Effect("delete files", Amount(), Amount())
        return ActionStep(nothing, lambda: ActionResult(skipped=_NO_DELETES), lambda _: nothing)
    # One that deletes nothing any more goes only when it is rewritten, alone or not.
    dangling = facts.dangling_delete_files > 0
    statement = procedures.rewrite_position_delete_files(
        work.catalog, work.relation, options, everything=dangling
    )
    expected = replace(options, min_input_files=1) if dangling else options
    predicted = work.predict(Action.REWRITE_POSITION_DELETE_FILES, expected)
    return _rewriting(work, predicted, statement, lambda after: after.position_deletes)


def rewrite_manifests(work: ActionContext, options: ActionOptions) -> ActionStep:
    statement = procedures.rewrite_manifests(work.catalog, work.relation)
    predicted = work.predict(Action.REWRITE_MANIFESTS, options)
    return _rewriting(work, predicted, statement, lambda after: after.manifests)


def _rewriting(
    work: ActionContext, predicted: Effect, statement: str, amount: Callable[[TableFacts], Amount]
) -> ActionStep:
    return ActionStep(
        predicted,
        partial(_call, work, statement),
        lambda result: replace(
            predicted, after=amount(work.facts()), rewritten=result.told.get(_REWRITTEN)
        ),
    )


def _call(work: ActionContext, statement: str) -> ActionResult:
    return ActionResult(work.call(statement))


ACTIONS: Mapping[Action, Callable[[ActionContext, ActionOptions], ActionStep]] = {
    Action.EXPIRE_SNAPSHOTS: expire_snapshots,
    Action.REMOVE_ORPHAN_FILES: remove_orphan_files,
    Action.REWRITE_DATA_FILES: rewrite_data_files,
    Action.REWRITE_POSITION_DELETE_FILES: rewrite_position_delete_files,
    Action.REWRITE_MANIFESTS: rewrite_manifests,
}
