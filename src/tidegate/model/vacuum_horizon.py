"""What holds back vacuum in the control database, and when that is worth a warning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

# Since when a slot or a hidden session holds its xmin is not recorded; then transactions count.
MANY_TRANSACTIONS = 10_000
MANY_DEAD_ROWS = 10_000
DEAD_PER_LIVE_ROW = 10
INACTIVE = "inactive"


class HolderKind(StrEnum):
    """What it is that vacuum waits for."""

    SESSION = "session"
    STANDBY = "standby"
    PREPARED = "prepared"
    SLOT = "slot"


@dataclass(frozen=True, slots=True)
class VacuumHolder:
    """One that holds back vacuum; `name` is that of a slot or of a prepared transaction."""

    kind: HolderKind
    only_catalogs: bool
    pid: int | None
    role: str | None
    application: str | None
    client: str | None
    state: str | None
    name: str | None
    since: datetime | None
    seconds: float | None
    transactions: int
    job_id: UUID | None = None
    job_name: str | None = None

    @property
    def is_ours(self) -> bool:
        return self.kind is HolderKind.SESSION and (self.application or "").startswith("tidegate")

    def is_late(self, warning_seconds: float) -> bool:
        """Whether it has held on for too long."""
        if self.seconds is not None:
            return self.seconds >= warning_seconds
        if self.kind is HolderKind.SLOT and self.state == INACTIVE and not self.only_catalogs:
            return self.transactions > 0  # its standby is gone, and nobody else moves it on
        return self.transactions >= MANY_TRANSACTIONS


def find_late(holders: Iterable[VacuumHolder], warning_seconds: float) -> VacuumHolder | None:
    """The oldest holder, if it is late; one whose age is not known may be passed over.

    Whoever comes after a holder that is not late took its snapshot later, however long its
    transaction is open.
    """
    for holder in holders:
        if holder.is_late(warning_seconds):
            return holder
        if holder.seconds is not None:
            return None
    return None


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Dead and live rows of the job queue."""

    dead: int
    live: int

    @property
    def is_crowded(self) -> bool:
        """Whether the dead are so many that claims grow slow."""
        return self.dead > MANY_DEAD_ROWS and self.dead > DEAD_PER_LIVE_ROW * self.live


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to tell a person, and what to do about it."""

    found: str
    fix: str


@dataclass(frozen=True, slots=True)
class VacuumHorizon:
    """The holders, oldest first; `grant` is what this role lacks to see how old they are."""

    holders: tuple[VacuumHolder, ...] = ()
    catalog_holders: tuple[VacuumHolder, ...] = ()
    queue: QueueRows | None = None
    held: Remark | None = None
    catalogs_held: Remark | None = None
    queue_crowded: Remark | None = None
    grant: str | None = None
