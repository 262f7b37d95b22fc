"""How many files attempts that died have probably left behind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


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
