"""The files that a job may delete: noted before the first is, and why others stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection


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

    plane: ControlPlane
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
            self.plane.statement("orphan_files", name), {"job_id": self.job_id, **values}
        )
