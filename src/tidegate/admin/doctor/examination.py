"""All checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tidegate.admin.doctor.databases import check_databases, in_short
from tidegate.admin.doctor.finding import Finding, FindingLevel, fail, ok, warn
from tidegate.admin.doctor.iceberg import check_engine, check_lakes
from tidegate.admin.doctor.machine import check_machine
from tidegate.config import Settings, SparkSettings, find_project, load_settings
from tidegate.config.sync import Sync
from tidegate.core.errors import SettingsError, TidegateError
from tidegate.core.units import counted
from tidegate.events.project_events import has_events
from tidegate.events.provision import plan_events
from tidegate.events.status import EventStatus, read_event_status
from tidegate.jobs.context import has_jobs
from tidegate.load.context import Context
from tidegate.load.plan import ProjectPlan
from tidegate.load.sources.cdc.requirements import (
    STANDBY,
    read_server,
    server_obstacles,
    table_obstacles,
    toast_obstacles,
)
from tidegate.load.sources.cdc.slot import list_slots
from tidegate.load.sources.cdc.slot_registry import Slots, slot_remark
from tidegate.load.sources.resolve import resolve_source
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.databases import label


def check_changes(context: Context, syncs: Iterable[Sync]) -> list[Finding]:
    """Look at every source of which a sync reads the changes, and at its slots."""
    by_source: dict[str, list[Sync]] = {}
    for sync in syncs:
        if sync.changes == "cdc" and not sync.lake_source:
            by_source.setdefault(sync.source.connection, []).append(sync)
    checks: list[Finding] = []
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
) -> Iterator[Finding]:
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


def _check_table(title: str, connection: Connection, sync: Sync) -> Finding:
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


TITLE = "events"
_LATE_SECONDS = 3600.0


def check_events(context: Context) -> list[Finding]:
    """The model, its tables, what waits, and the views; nothing where there are no events."""
    if not has_events(context):
        return []
    plan = plan_events(context, ProjectPlan((), ()))
    if plan.events is None:
        (refusal,) = plan.refusals
        return [fail(TITLE, refusal.message, refusal.hint or "correct the model of the events")]
    checks = [warn(TITLE, one, "correct its query in the model") for one in plan.events.warnings]
    try:
        status = read_event_status(context)
    except (TidegateError, psycopg.Error) as error:
        said = error.message if isinstance(error, TidegateError) else first_line(error)
        return [*checks, fail(TITLE, said, "see the server's log; try: tidegate doctor again")]
    if not status.is_provisioned:
        return [
            *checks,
            ok(TITLE, "the model is valid; the first tidegate event run makes the tables"),
        ]
    return [*checks, *_remarks(status)]


def _remarks(status: EventStatus) -> list[Finding]:
    found = [
        warn(TITLE, f"view {one.view}: {one.error}", "correct it, then: tidegate event run")
        for one in status.views
        if one.error is not None
    ]
    if status.lag_seconds is not None and status.lag_seconds > _LATE_SECONDS:
        found.append(
            warn(
                TITLE,
                f"an event has waited for {status.lag_seconds / 3600:.1f} hours",
                "is a scheduler there, and a worker? try: tidegate event run",
            )
        )
    waiting, failed = counted(status.pending, "event"), f"{status.failed:,}"
    return found or [ok(TITLE, f"the tables fit the model; {waiting} waiting, {failed} failed")]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Every check, and the project they are about, if there is one here."""

    project: str | None
    checks: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        return all(check.level is not FindingLevel.FAIL for check in self.checks)


def run_checks(
    folder: Path,
    *,
    load: Callable[[Path], Settings] = load_settings,
    declared: Callable[[Settings], Iterable[Sync]],
    environment: Mapping[str, str] | None = None,
) -> DoctorReport:
    """Check the machine and, in a project, its settings, declarations and databases."""
    try:
        root = find_project(folder)
    except SettingsError:
        return DoctorReport(
            None, tuple(check_machine(SparkSettings(), {"here": folder.resolve()}, environment))
        )
    try:
        settings = load(root)
    except TidegateError as error:
        machine = check_machine(SparkSettings(), {"project folder": root}, environment)
        broken = fail("settings", error.message, error.hint or "correct tidegate.toml")
        return DoctorReport(None, (*machine, broken))
    folders = {"project folder": root, "state": settings.state_directory}
    checks = check_machine(settings.spark, folders, environment)
    checks.append(ok("settings", f"valid ({root / 'tidegate.toml'})"))
    syncs: list[Sync] = []
    try:
        syncs = list(declared(settings))
        refused = [sync for sync in syncs if sync.refused is not None]
        syncs = [sync for sync in syncs if sync.refused is None]
        checks += [_refused(sync) for sync in refused]
        checks.append(ok("declarations", f"{len(syncs)} syncs"))
    except TidegateError as error:
        checks.append(fail("declarations", error.message, error.hint or "correct the declaration"))
    context = Context(settings)
    checks += check_databases(context, syncs)
    checks += check_changes(context, syncs)
    checks += check_events(context)
    checks += check_lakes(context, syncs)
    checks += check_engine(context)
    return DoctorReport(settings.project.name, tuple(checks))


def _refused(sync: Sync) -> Finding:
    assert sync.refused is not None
    fix = sync.refused.hint or "correct the declaration"
    return fail(f"declarations: {sync.name}", sync.refused.message, fix)
