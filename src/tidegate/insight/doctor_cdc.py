"""What syncs by changes need of their sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import psycopg

from tidegate.control.slots import Slots
from tidegate.errors import TidegateError
from tidegate.insight.control_session import has_jobs
from tidegate.insight.doctor_postgres import in_short
from tidegate.model.check import Check, fail, ok, warn
from tidegate.model.sync import Sync
from tidegate.pipeline.cdc_obstacles import (
    STANDBY,
    read_server,
    server_obstacles,
    table_obstacles,
    toast_obstacles,
)
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import resolve_source
from tidegate.pipeline.slot_remarks import slot_remark
from tidegate.postgres.connect import Connection, first_line
from tidegate.postgres.databases import label
from tidegate.sources.slots import list_slots


def check_changes(context: Context, syncs: Iterable[Sync]) -> list[Check]:
    """Look at every source of which a sync reads the changes, and at its slots."""
    by_source: dict[str, list[Sync]] = {}
    for sync in syncs:
        if sync.changes == "cdc" and not sync.lake_source:
            by_source.setdefault(sync.source.connection, []).append(sync)
    checks: list[Check] = []
    for name, found in by_source.items():
        try:
            with context.databases.connect(name, "tidegate doctor") as connection:
                checks += _check_source(context, name, connection, found)
        except TidegateError:
            continue  # the database itself was looked at before
        except psycopg.Error as error:
            fix = "see the server's log; try: tidegate doctor again"
            checks.append(fail(f"{label(name)}: changes", first_line(error), fix))
    return checks


def _check_source(
    context: Context, name: str, connection: Connection, syncs: list[Sync]
) -> Iterator[Check]:
    title = f"{label(name)}: changes"
    known = _known(context, name)
    there = list_slots(connection, known)
    obstacles = list(server_obstacles(connection, slots=1 if there else 2, senders=1))
    yield from (fail(title, one.message, one.fix) for one in obstacles)
    if STANDBY in obstacles:
        return
    if not obstacles:
        facts = read_server(connection)
        yield ok(title, f"can be read; {facts.free_slots} slots are free")
        if facts.keep_limit == "-1":
            yield warn(
                f"{title}: limit",
                "max_slot_wal_keep_size is -1: a slot that nobody reads keeps the log until the "
                "server's disk is full",
                "set it to what the disk can spare, such as 50GB; a slot that is given up costs a "
                "new copy of its tables, a full disk the whole server",
            )
    for state in there:
        remark = slot_remark(context.settings.cdc, state, ())
        if remark is not None:
            level = fail if remark.severe else warn
            yield level(f"{title}: {state.name}", remark.found, remark.fix)
    missing = set(known) - {one.name for one in there}
    for slot in sorted(missing):
        fix = "copy its tables again: tidegate run NAME --full-refresh"
        yield fail(f"{title}: {slot}", "the slot is gone", fix)
    yield from in_short(title, [_check_table(title, connection, sync) for sync in syncs])


def _check_table(title: str, connection: Connection, sync: Sync) -> Check:
    name = f"{title}: {sync.source.relation}"
    try:
        source = resolve_source(connection, sync)
    except TidegateError as error:
        return fail(name, error.message, error.hint or "correct the declaration")
    columns = [column.name for column in source.columns]
    found = [
        *table_obstacles(connection, source.table, source.key, columns),
        *toast_obstacles(connection, source.table, transformed=sync.transform is not None),
    ]
    if found:
        return fail(name, found[0].message, found[0].fix)
    return ok(name, "tells which row was changed")


def _known(context: Context, connection_name: str) -> list[str]:
    """The slots that we have made there; none where nothing ever ran."""
    try:
        with context.plane.connect() as control:
            if not has_jobs(context.plane, control):
                return []
            found = Slots(context.plane).of_project(control, context.settings.project.name)
    except (TidegateError, psycopg.Error):
        return []
    return [one.slot for one in found if one.connection == connection_name]
