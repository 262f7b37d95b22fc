"""A declaration that changed under its name: what was loaded before means something else now."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.errors import DeclarationError, SourceReplaced, TidegateError
from tidegate.core.relation import Endpoint
from tidegate.core.watermark import CursorType, Horizon, Watermark
from tidegate.iceberg.metadata import read_table
from tidegate.jobs.job import SYNC
from tidegate.jobs.job_records import JobRecords
from tidegate.ledger.fences import Fence
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.sources.cdc import first_copy
from tidegate.load.sources.horizon import CursorColumn
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.target import Target
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connection import Connection
from tidegate.postgres.databases import label
from tidegate.postgres.server_identity import Fate, Server

_INTEGERS = {CursorType.SMALLINT.value, CursorType.INTEGER.value, CursorType.BIGINT.value}


def declaration(sync: Sync, source: PostgresSource, columns: Any) -> dict[str, Any]:
    """What is remembered with the watermark; of it, columns may drift and the rest may not."""
    found = {
        "columns": columns,
        "source": sync.source_name,
        "cursor": None if source.cursor is None else source.cursor.name,
        "key": list(source.key),
    }
    return found if sync.changes == "cursor" else {**found, "changes": sync.changes}


def unmoved_declaration(
    watermark: Watermark, sync: Sync, source: PostgresSource, columns: Any
) -> dict[str, Any]:
    """The same for a load that leaves the watermark where it is: what else is remembered with it,
    of a slot or of transactions, stays."""
    return {**(watermark.declaration or {}), **declaration(sync, source, columns)}


def refuse_changed_declaration(watermark: Watermark, source: PostgresSource, sync: Sync) -> None:
    """Refuse to go on from a watermark that another source, cursor or key left."""
    if watermark.version == 0:
        return
    refuse_other_source(watermark, declaration(sync, source, None), sync)
    if source.cursor is None or watermark.value is None:
        return
    old, new = watermark.cursor_type, source.cursor.type.value
    if old not in (None, new) and not {old, new} <= _INTEGERS:
        raise DeclarationError(
            f"sync {sync.name}: the watermark {watermark.value} is a {old}, but cursor "
            f"{source.cursor.name} is a {new}",
            f"to start again with this cursor: tidegate run {sync.name} --full-refresh",
        )


def refuse_other_source(watermark: Watermark, now: Mapping[str, Any], sync: Sync) -> None:
    """Refuse a sync that is not declared as it was when it loaded what is there."""
    if watermark.version == 0:
        return
    before = watermark.declaration or {}
    # What was loaded before there was a choice was found by its cursor.
    assumed = "cdc" if "cdc" in before else "cursor"
    changes = {"changes": before.get("changes", assumed)} if "source" in before else {}
    before, now = {**before, **changes}, {"changes": "cursor", **now}
    for name in ("source", "changes", "cursor", "key"):
        if name in before and before[name] != now[name]:
            raise DeclarationError(
                f"sync {sync.name}: its {name} was {_words(before[name])} and is now "
                f"{_words(now[name])}, but rows are loaded up to {watermark.value or 'now'} under "
                "the old one",
                _way_out(sync),
            )


def read_history(context: Context, connection_name: str, timeline: int) -> str | None:
    """The history of a timeline of a source; None where its server does not tell it."""
    with suppress(TidegateError):
        conninfo = context.databases.conninfo(connection_name)
        return first_copy.read_history(conninfo, label(connection_name), timeline)
    return None


def check_server(
    context: Context, connection: Connection, watermark: Watermark, sync: Sync
) -> list[str]:
    """Refuse a source that is not the server, or not the database, that rows were loaded from, or
    that has lost some of them; returns what to know of one that has failed over."""
    before = _server_of(watermark)
    if before is None:
        return []
    now = read_server(connection)
    source, name = sync.source.connection, sync.name
    fate, left = before.fate(now, partial(read_history, context, source))
    again = f"to load everything again: tidegate run {name} --full-refresh"
    loaded = f"rows are loaded up to {watermark.value or 'the start'}"
    if fate in (Fate.OTHER_SERVER, Fate.OTHER_DATABASE):
        was, is_now = (
            (f"server {before.system}", f"server {now.system}")
            if fate is Fate.OTHER_SERVER
            else (f"database {before.database} of its server", f"database {now.database}")
        )
        raise SourceReplaced(
            f"sync {name}: connection {source} was {was} (system identifier or oid) and is now "
            f"{is_now}, and {loaded} from the other one",
            f"correct the connection; or {again}; or, if this one has every row of the other, to "
            f"go on from there: tidegate watermark set {name} '{watermark.value or 'VALUE'}' "
            "--reason …",
        )
    if fate in (Fate.SET_BACK, Fate.BRANCHED):
        seen = f"its log was at {before.lsn} of timeline {before.timeline}"
        place = f"at {now.lsn} of timeline {now.timeline}" + (
            f", which left the other at {left}" if left else ""
        )
        raise SourceReplaced(
            f"sync {name}: {sync.source} was restored to an earlier time, or another server took "
            f"over that had not got everything: {seen} and is now {place}. {loaded.capitalize()}; "
            "some of them may be gone there, and their cursors may be given out again",
            f"{again}; or go back to a value from before that time, and compare: tidegate "
            f"watermark rewind {name} VALUE --reason …; tidegate verify {name} --repair",
        )
    if fate is Fate.FOLLOWED:
        return [
            f"{source} has failed over or was restored (timeline {before.timeline}, now "
            f"{now.timeline}) and has all that was loaded from it"
        ]
    if fate is Fate.UNTOLD:
        return [
            f"{source} has failed over or was restored (timeline {before.timeline}, now "
            f"{now.timeline}), and does not tell whether it has all that was loaded from it (the "
            f"role needs REPLICATION for that): compare with tidegate verify {name}"
        ]
    return []


def identity_remarks(connection: Connection, cursor: CursorColumn | None) -> list[str]:
    """What to know where a role may not see which server it is connected to."""
    if cursor is None or read_server(connection).system:
        return []
    role = connection.info.user
    return [
        f"role {role} may not see which server this is, so another one behind the same address "
        f"would not be noticed (GRANT EXECUTE ON FUNCTION pg_control_system() TO {role})"
    ]


def is_same_server(watermark: Watermark, now: Server) -> bool:
    """Whether what is known of the source beside the watermark is known of this very server, as
    far as that was recorded."""
    recorded = watermark.declaration or {}
    before = recorded.get("server") or recorded.get("server_before")
    return before is None or Server.from_json(before).fate(now, lambda _: None)[0] is Fate.SAME


def _server_of(watermark: Watermark) -> Server | None:
    found = (watermark.declaration or {}).get("server")
    if found is None or (watermark.value is None and watermark.position is None):
        return None
    return Server.from_json(found)


def horizon_remarks(
    connection: Connection,
    cursor: CursorColumn | None,
    watermark: Watermark | None,
    horizon: Horizon | None,
) -> list[str]:
    """What to know where the source lies behind the watermark."""
    if cursor is None or horizon is None or horizon.high is None:
        return []
    if watermark is None or watermark.value is None or horizon.lag_seconds is not None:
        # What a standby has replayed may lie below what it was known to have; that is no fault.
        return []
    kind = sql.SQL(cursor.type.value)
    row = connection.execute(
        sql.SQL("SELECT %s::{} < %s::{}").format(kind, kind), (horizon.high, watermark.value)
    ).fetchone()
    if not (row and row[0]):
        return []
    why = (
        "its newest rows were deleted, it was restored from a backup, or the watermark was set "
        "above it"
        if cursor.type.is_number
        else "its clock was set back, it was restored from a backup, less of its transactions can "
        "be seen than before, or the watermark was set above it"
    )
    return [
        f"the source may be read up to {horizon.high} now, which lies below the watermark "
        f"{watermark.value}: {why}; rows that come below the watermark are not loaded, see "
        "tidegate verify"
    ]


def refuse_changed_target(
    context: Context, control: Connection | None, sync: Sync, *, take_over: bool = False
) -> None:
    """Refuse a sync that has loaded another table under its name, or whose table another has."""
    if not take_over:
        refuse_shared(context, sync)
    found = _tables_before(context, control, sync)
    if found:
        raise DeclarationError(
            f"sync {sync.name}: its target was {found[0]} and is now {sync.target}",
            f"give the new one another name, or forget the old one with: tidegate remove "
            f"{sync.name} (the rows of {found[0]} stay)",
        )


def refuse_shared(context: Context, sync: Sync) -> None:
    """Refuse a sync whose target another sync, of this project or another, has loaded."""
    name, relation = sync.target.connection, sync.target.relation
    with context.databases.lease(name) as connection:
        Watermarks(context.ledger(name)).refuse_shared(connection, sync.pipeline, str(relation))
    if not context.is_lake(name) or context.catalog(name).is_embedded:
        return
    # The ledger is in the control database; of those that another keeps the table itself tells.
    table = read_table(context.catalog(name), relation)
    loader = None if table is None else table.loader
    if loader not in (None, sync.pipeline):
        raise DeclarationError(
            f"the last load of {sync.target} is of {loader}, and {sync.pipeline} would take its "
            "rows for its own",
            f"choose another target; or, if {loader} was removed or renamed: tidegate run "
            f"{sync.name} --take-over",
        )


def take_table(destination: Target, sync: Sync, fence: Fence) -> None:
    """Make the target this sync's own: what other syncs have recorded of it is forgotten, and
    their rows stay."""
    watermarks, table = Watermarks(destination.ledger), str(destination.relation)
    with destination.fenced_transaction(fence, f"taking {sync.target} over") as connection:
        for other in watermarks.other_pipelines(connection, sync.pipeline, table):
            Markers(destination.ledger).forget_pipeline(connection, other, destination.relation)
            watermarks.forget(connection, other, table)


def _tables_before(context: Context, control: Connection | None, sync: Sync) -> list[str]:
    """Other targets whose ledger still holds a watermark of this sync."""
    endpoints = {sync.target.connection: str(sync.target.relation)}
    if control is not None:
        records = JobRecords(context.plane)
        last = records.last_target(control, sync.project, SYNC, sync.name)
        if last is not None:
            endpoints.setdefault(Endpoint.parse(last).connection, "")
    found: list[str] = []
    for name, table in endpoints.items():
        if name not in context.settings.connections:
            continue
        try:
            with context.databases.lease(name) as connection:
                watermarks = Watermarks(context.ledger(name))
                others = watermarks.other_tables(connection, sync.pipeline, table)
        except TidegateError:
            # Another database that does not answer must not keep this one from being loaded.
            if name == sync.target.connection:
                raise
            continue
        found += [f"{name}:{other}" for other in others]
    return found


def _way_out(sync: Sync) -> str:
    if sync.group is not None:
        return (
            f"to load everything again as it is now: tidegate run {sync.name} --full-refresh; to "
            f"choose for this table alone, declare it on its own with source = "
            f'"{sync.source_name}", and group {sync.group} leaves it out'
        )
    return (
        f"to load everything again as declared now: tidegate run {sync.name} --full-refresh; to "
        "keep both, give the new one another name"
    )


def _words(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(value)})" if value else "none"
    return str(value) if value is not None else "none"
