"""What keeps vacuum from cleaning the queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tidegate.jobs.control_database import ControlDatabase
from tidegate.ledger.fences import publisher_name
from tidegate.postgres.catalog import quoted
from tidegate.postgres.connection import Connection

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


def remark_on_holder(holder: VacuumHolder, grant: str | None = None) -> Remark:
    """Who it is, since when, and how to end it; `grant` is what hides the time, if anything."""
    what = "vacuum of the system catalogs" if holder.only_catalogs else "vacuum"
    ending = "" if holder.transactions == 1 else "s"
    held = f"holds back {what}, {holder.transactions:,} transaction{ending} by now"
    hidden = holder.kind is HolderKind.SESSION and holder.since is None and grant is not None
    since = ""
    if holder.since is not None:
        word = "unused" if holder.kind is HolderKind.SLOT else "open"
        since = f", {word} since {holder.since:%Y-%m-%d %H:%M:%S}"
    elif hidden:
        since = "; since when cannot be told"
    fix = _fix(holder)
    return Remark(f"{describe(holder)} {held}{since}", f"{fix}; to see: {grant}" if hidden else fix)


def remark_on_queue(
    queue: QueueRows, schema: str, holders: Sequence[VacuumHolder], grant: str | None = None
) -> Remark:
    """How many dead rows there are, and what they wait for."""
    found = f"the job queue has {queue.dead:,} dead rows and {queue.live:,} live ones"
    vacuum = f"VACUUM {quoted(schema)}.job_queue"
    if not holders:
        return Remark(found, f"{vacuum}; if they come back, see that autovacuum is on")
    held = remark_on_holder(holders[0], grant)
    return Remark(f"{found}; {held.found}", f"{held.fix}; then: {vacuum}")


def describe(holder: VacuumHolder) -> str:
    """Name a holder in a few words, without what it is doing: a query may hold secrets."""
    name = _literal(holder.name or "")
    if holder.kind is HolderKind.SLOT:
        return f"replication slot {name} ({holder.state})"
    if holder.kind is HolderKind.PREPARED:
        return f"prepared transaction {name} of {_name(holder.role)}"
    application = f" ({holder.application})" if holder.application else ""
    place = f" from {holder.client}" if holder.client else ""
    if holder.kind is HolderKind.STANDBY:
        return f"standby{application}{place}, whose feedback comes through process {holder.pid},"
    whose = "Tidegate's own process" if holder.is_ours else "process"
    job = f", job {holder.job_id} ({holder.job_name})" if holder.job_id else ""
    state = f", {holder.state}," if holder.state else ""
    return f"{whose} {holder.pid} of {_name(holder.role)}{application}{place}{job}{state}"


def _fix(holder: VacuumHolder) -> str:
    name = _literal(holder.name or "")
    if holder.kind is HolderKind.PREPARED:
        return f"end it in that database: COMMIT PREPARED {name} or ROLLBACK PREPARED {name}"
    if holder.kind is HolderKind.SLOT and holder.state == INACTIVE:
        return f"if nobody will come back for it: SELECT pg_drop_replication_slot({name})"
    if holder.only_catalogs:
        return "let whoever reads that slot catch up"
    if holder.kind in (HolderKind.SLOT, HolderKind.STANDBY):
        return "end the long transactions on the standby, or set hot_standby_feedback = off there"
    end = f"SELECT pg_terminate_backend({holder.pid})"
    return f"it ends with its run; if that hangs: {end}" if holder.is_ours else f"end it: {end}"


def _literal(text: str) -> str:
    """A text as one would type it; what a terminal would obey is spelled out."""
    if text.isprintable():
        return sql.Literal(text).as_string(None).strip()
    escaped = "".join(
        one if one.isprintable() and one not in "'\\" else f"\\U{ord(one):08x}" for one in text
    )
    return f"E'{escaped}'"


def _name(name: str | None) -> str:
    if name is None:
        return "an unknown role"
    return quoted("".join(one if one.isprintable() else "?" for one in name))


_SHOWN = 10
_PUBLISHER = publisher_name("")


def read_vacuum_horizon(
    connection: Connection, plane: ControlDatabase, warning_seconds: float
) -> VacuumHorizon:
    """Look once, over one session of the control database; nothing is written or waited for."""
    queue = _queue(connection, plane)
    found = _holders(connection, plane)
    holders = [holder for holder in found if not holder.only_catalogs][:_SHOWN]
    catalog_holders = [holder for holder in found if holder.only_catalogs][:_SHOWN]
    if queue is not None:
        holders = [_with_job(connection, plane, holder) for holder in holders]
    grant = _missing_grant(connection, plane)
    late = find_late(holders, warning_seconds)
    late_slot = find_late(catalog_holders, warning_seconds)
    crowded = queue is not None and queue.is_crowded
    return VacuumHorizon(
        tuple(holders),
        tuple(catalog_holders),
        queue,
        remark_on_holder(late, grant) if late else None,
        remark_on_holder(late_slot, grant) if late_slot else None,
        remark_on_queue(queue, plane.schema, holders, grant) if queue and crowded else None,
        grant,
    )


def _holders(connection: Connection, plane: ControlDatabase) -> list[VacuumHolder]:
    rows = connection.execute(plane.statement("admin/vacuum_horizon", "list_holders"))
    return [VacuumHolder(HolderKind(row[0]), *row[1:]) for row in rows]


def _missing_grant(connection: Connection, plane: ControlDatabase) -> str | None:
    row = connection.execute(plane.statement("admin/vacuum_horizon", "see_all_sessions")).fetchone()
    if row and row[0]:
        return None
    return f"GRANT pg_read_all_stats TO {quoted(connection.info.user)}"


def _queue(connection: Connection, plane: ControlDatabase) -> QueueRows | None:
    row = connection.execute(
        plane.statement("admin/vacuum_horizon", "count_queue_rows"), {"schema": plane.schema}
    ).fetchone()
    return QueueRows(*row) if row else None


def _with_job(connection: Connection, plane: ControlDatabase, holder: VacuumHolder) -> VacuumHolder:
    """A publishing session carries its attempt in its name; other sessions of ours do not."""
    application = holder.application or ""
    if not holder.is_ours or not application.startswith(_PUBLISHER):
        return holder
    try:
        row = connection.execute(
            plane.statement("admin/vacuum_horizon", "get_job_of_attempt"),
            {"attempt_id": application.removeprefix(_PUBLISHER)},
        ).fetchone()
    except pg.InsufficientPrivilege:
        return holder
    return replace(holder, job_id=row[0], job_name=row[1]) if row else holder
