"""Removing files that no snapshot knows: noted first, looked at again, then deleted in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from tidegate.control.orphan_files import GoneFile, OrphanFiles
from tidegate.errors import DestinationError, StaleAttempt
from tidegate.failpoints import reach
from tidegate.lake import procedures
from tidegate.lake.consistent import read_consistently
from tidegate.lake.known_files import known_files
from tidegate.lake.metadata import file_io, open_table
from tidegate.lake.plain_files import PlainFiles, plain_path
from tidegate.ledger.staged_folders import StagedFolders
from tidegate.model.maintenance import Action, ActionOptions, Amount, Effect, RemoveOrphanFiles
from tidegate.pipeline.action_work import Result, Step, Work

if TYPE_CHECKING:
    from pyiceberg.table import Table

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

    work: Work
    orphans: OrphanFiles
    before: datetime
    """younger files may belong to somebody who is at work"""

    def run(self) -> Result:
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

    def _result(self) -> Result:
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
        return Result(told, tuple(notes))


def _batches(paths: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(paths)
    while some := list(islice(rest, size)):
        yield some


def remove_orphan_files(work: Work, options: ActionOptions) -> Step:
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

    def do() -> Result:
        with work.context.plane.connect() as control:
            orphans = OrphanFiles(work.context.plane, control, job_id)
            return OrphanRemoval(work, orphans, before).run()

    def actual(result: Result) -> Effect:
        was = predicted.before
        files = was.files - (result.told["deleted"] - counted.deleted)
        size = was.bytes - (result.told["deleted_bytes"] - counted.deleted_bytes)
        return replace(predicted, after=Amount(files, size))

    return Step(predicted, do, actual)


def _listed(work: Work) -> datetime | None:
    """What the files of a complete list are older than, where an earlier attempt has made one."""
    plan = work.attempt.stored_plan
    found = None if plan is None else plan.get("orphans_before")
    return None if found is None else datetime.fromisoformat(found)
