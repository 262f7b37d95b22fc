"""Orphan files found, noted, estimated."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidegate.core.relation import Endpoint, Relation
from tidegate.core.table_actions import Amount
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.manifests import known_files, normal_path
from tidegate.iceberg.metadata import read_consistently
from tidegate.iceberg.table import lake_resource
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.queue import Jobs
from tidegate.ledger.iceberg import StagedFolders
from tidegate.load.context import Context
from tidegate.maintenance.facts import TableFacts
from tidegate.postgres.connection import Connection

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that is there; its path starts as the table's location does."""

    path: str
    bytes: int
    modified_at: datetime | None


def list_files(table: Table) -> Iterator[ListedFile]:
    """All files of a table's folder, one folder at a time; hidden ones are left aside."""
    from pyarrow.fs import FileSelector

    io: Any = table.io
    location = table.metadata.location.rstrip("/")
    scheme, netloc, plain = io.parse_location(location, io.properties)
    files = io.fs_by_scheme(scheme, netloc)
    shown = _shown(table.metadata)
    folders = [plain]
    while folders:
        for one in files.get_file_info(FileSelector(folders.pop(), allow_not_found=True)):
            if one.base_name.startswith(_HIDDEN) and not one.base_name.startswith(shown):
                continue
            if one.is_file:
                yield ListedFile(location + one.path[len(plain) :], one.size, one.mtime)
            else:
                folders.append(one.path)


def _shown(metadata: TableMetadata) -> tuple[str, ...]:
    """Folders of partitions that look hidden but are not."""
    names = {field.name for spec in metadata.partition_specs for field in spec.fields}
    return tuple(f"{name}=" for name in sorted(names) if name.startswith(_HIDDEN))


@dataclass(frozen=True, slots=True)
class Orphans:
    """What is there in all, and what of it the table does not know."""

    listed: Amount
    files: tuple[ListedFile, ...]

    @property
    def amount(self) -> Amount:
        return Amount(len(self.files), sum(one.bytes for one in self.files))


def find_orphans(catalog: Catalog, relation: Relation, before: datetime) -> Orphans | None:
    """Files that were last written before a moment and that no snapshot knows; None: no table."""
    found = read_consistently(catalog, relation, lambda table: _candidates(table, before))
    if found is None:
        return None
    listed, candidates = found

    def unknown(table: Table) -> Orphans:
        left = dict(candidates)
        for path in known_files(table):
            left.pop(normal_path(path), None)
        return Orphans(listed, tuple(left.values()))

    # Looked up after the listing: what was committed meanwhile is known.
    return read_consistently(catalog, relation, unknown)


def _candidates(table: Table, before: datetime) -> tuple[Amount, dict[str, ListedFile]]:
    files = size = 0
    found: dict[str, ListedFile] = {}
    for one in list_files(table):
        files += 1
        size += one.bytes
        if one.modified_at is not None and one.modified_at < before:
            found[normal_path(one.path)] = one
    return Amount(files, size), found


_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(?=/)")
_NAMED_BY_HOST = ("hdfs", "viewfs")
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A file that is there."""

    path: str
    bytes: int
    modified_at: datetime | None


def plain_path(location: str) -> str:
    """A path without what leads to it: scheme and host, or bucket."""
    found = _PREFIX.match(location)
    return location[found.end() :] if found else location


class PlainFiles:
    """Looks at and deletes files in the place where a table lies."""

    def __init__(self, io: Any, location: str) -> None:
        found = _PREFIX.match(location)
        scheme, host = (found[1], found[2] or "") if found else ("file", "")
        self._files = io.fs_by_scheme(scheme, host)
        self._host = "" if scheme in _NAMED_BY_HOST else host

    def look(self, paths: Sequence[str]) -> list[PlainFile]:
        """Those that are there."""
        # Not through the FileIO, which takes a # in a name for the end of it.
        found = self._files.get_file_info([f"{self._host}{path}" for path in paths])
        return [
            PlainFile(path, one.size or 0, one.mtime)
            for path, one in zip(paths, found, strict=True)
            if one.is_file
        ]

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        """Delete them; what could not be, with the reason."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            reasons = pool.map(self._delete, paths)
            return {path: why for path, why in zip(paths, reasons, strict=True) if why}

    def _delete(self, path: str) -> str | None:
        try:
            self._files.delete_file(f"{self._host}{path}")
        except FileNotFoundError:
            return None
        except OSError as error:
            return type(error).__name__
        return None


@dataclass(frozen=True, slots=True)
class GoneFile:
    """A file that is deleted; one that was gone before has no size."""

    path: str
    bytes: int | None = None
    modified_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OrphanCounts:
    """What became of the candidates of a job."""

    found: int
    deleted: int
    deleted_bytes: int
    kept: int


@dataclass(frozen=True, slots=True)
class OrphanFiles:
    """The candidates of one job, on a control session."""

    plane: ControlDatabase
    connection: Connection
    job_id: UUID

    def limit(self, age_seconds: float, margin_seconds: float) -> datetime:
        """What a file must be older than, by the database's clock and what runs now."""
        row = self._run("orphans_before", age=age_seconds, margin=margin_seconds).fetchone()
        assert row is not None
        found: datetime = row[0]
        return found

    def note(self, attempt_id: str, paths: Sequence[str]) -> bool:
        """Keep candidates; False when the attempt is stale."""
        noted = self._run("note_orphans", attempt_id=attempt_id, paths=list(paths))
        return noted.fetchone() is not None

    def keep(self, paths: Collection[str], why: str) -> int:
        return int(self._run("keep_orphans", paths=list(paths), why=why).rowcount)

    def keep_below(self, folder: str, why: str) -> int:
        return int(self._run("keep_orphans_below", folder=folder, why=why).rowcount)

    def next(self, after: str, limit: int) -> list[str]:
        """Some of those that are still to be deleted."""
        return [path for (path,) in self._run("next_orphans", after=after, limit=limit)]

    def mark_deleted(self, gone: Sequence[GoneFile]) -> None:
        self._run(
            "mark_orphans_deleted",
            paths=[one.path for one in gone],
            bytes=[one.bytes for one in gone],
            modified=[one.modified_at for one in gone],
        )

    def counts(self) -> OrphanCounts:
        row = self._run("count_orphans").fetchone()
        assert row is not None
        return OrphanCounts(*map(int, row))

    def reasons(self) -> dict[str, int]:
        """Why files stay, and how many for each reason."""
        return dict(self._run("kept_orphans"))

    def ended(self, attempt_ids: Collection[str]) -> set[str]:
        """Which attempts are known to have ended."""
        rows = self._run("ended_attempts", attempt_ids=list(attempt_ids))
        return {attempt_id for (attempt_id,) in rows}

    def _run(self, name: str, **values: Any) -> Any:
        return self.connection.execute(
            self.plane.statement("maintenance/orphan_files", name),
            {"job_id": self.job_id, **values},
        )


@dataclass(frozen=True, slots=True)
class OrphanEstimate:
    """What is probable, from what is noted of attempts; no file was listed for it."""

    since: datetime | None
    """when orphans were last removed; None if never"""
    dead_attempts: int = 0
    noted_folders: int = 0
    """folders that dead attempts have staged files in, and nobody has removed yet"""
    files: int = 0
    bytes: int = 0

    @classmethod
    def of(
        cls,
        since: datetime | None,
        *,
        dead_attempts: int,
        noted_folders: int,
        files_per_load: float,
        bytes_per_file: float,
    ) -> OrphanEstimate:
        """Each attempt that died may have left as many files as a load has."""
        lost = max(dead_attempts, noted_folders)
        files = round(lost * max(files_per_load, 1.0))
        return cls(since, dead_attempts, noted_folders, files, round(files * bytes_per_file))

    def document(self) -> dict[str, Any]:
        return {
            "since": None if self.since is None else self.since.isoformat(),
            "dead_attempts": self.dead_attempts,
            "noted_folders": self.noted_folders,
            "files": self.files,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """How many attempts at a resource went wrong since its orphans were last removed."""

    since: datetime | None
    attempts: int


def count_failed_attempts(
    plane: ControlDatabase, connection: Connection, resources: Collection[str]
) -> dict[str, FailedAttempts]:
    """For each resource; one statement, however many there are."""
    rows = connection.execute(
        plane.statement("jobs/job_attempts", "count_died"), {"resources": list(resources)}
    )
    return {resource: FailedAttempts(since, attempts) for resource, since, attempts in rows}


def estimate_orphans(
    context: Context, control: Connection, tables: Mapping[Endpoint, TableFacts]
) -> dict[Endpoint, OrphanEstimate]:
    """For many tables at once; no file is listed."""
    identities = {one: context.catalog(one).identity for one in {t.connection for t in tables}}
    resources = {
        target: lake_resource(identities[target.connection], target.relation) for target in tables
    }
    died = count_failed_attempts(context.plane, control, set(resources.values()))
    noted = _noted(context, control, identities)
    found = {}
    for target, facts in tables.items():
        dead = died.get(resources[target], FailedAttempts(None, 0))
        found[target] = OrphanEstimate.of(
            dead.since,
            dead_attempts=dead.attempts,
            noted_folders=noted.get(target, 0),
            files_per_load=facts.added_files_per_commit,
            bytes_per_file=facts.added_bytes_per_file,
        )
    return found


def _noted(
    context: Context, control: Connection, connections: Collection[str]
) -> dict[Endpoint, int]:
    """Folders that attempts have staged files in which are not at work any more."""
    live = Jobs(context.plane).live_attempts(control)
    found: dict[Endpoint, int] = {}
    for name in connections:
        ledger = context.ledger(name)
        with ledger.connect() as connection:
            for table, attempt_id in StagedFolders(ledger).unadopted(connection):
                if attempt_id not in live:
                    target = Endpoint.parse(f"{name}:{table}")
                    found[target] = found.get(target, 0) + 1
    return found
