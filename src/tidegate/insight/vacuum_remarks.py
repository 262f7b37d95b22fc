"""What to say about whoever holds back vacuum, and the statement that ends it."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from tidegate.model.vacuum_horizon import INACTIVE, HolderKind, QueueRows, Remark, VacuumHolder
from tidegate.pipeline.privileges import quoted


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
