"""A project in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg

from tidegate.admin.status import SyncLine
from tidegate.core.errors import TidegateError
from tidegate.events.project_events import has_events
from tidegate.events.status import read_event_status
from tidegate.jobs.sweeper import Sweeps
from tidegate.load.context import Context
from tidegate.load.sources.cdc.slot_registry import quick_source, read_slots
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.table_report import list_health
from tidegate.maintenance.tables import CatalogView, cache, list_tables
from tidegate.postgres.connection import Connection

Labels = tuple[str, ...]


@dataclass(slots=True)
class Metric:
    """One figure, with its labels and a value for each combination of theirs."""

    name: str
    help: str
    labels: Labels = ()
    values: dict[Labels, float] = field(default_factory=dict)


def measure(context: Context, control: Connection) -> Iterator[Metric]:
    """Everything that is cheap to know."""
    yield from _jobs(context, control)
    yield from _lakes(context, control)
    project = context.settings.project.name
    draining = context.plane.draining(control) is not None
    yield Metric("tidegate_draining", "Whether no new jobs are taken in.", (), {(): draining})
    swept = Sweeps(context.plane).last(control, project)
    if swept is not None:
        yield Metric(
            "tidegate_sweeper_age_seconds",
            "How long ago the jobs of dead workers were last looked for.",
            (),
            {(): swept.age_seconds},
        )


def measure_syncs(lines: list[SyncLine], now: float) -> Iterator[Metric]:
    """How long ago each sync last ran, and whether that went well."""
    ages = Metric("tidegate_sync_last_run_age_seconds", "How long ago a sync last ran.", ("sync",))
    failed = Metric("tidegate_sync_failed", "Whether the latest run of a sync failed.", ("sync",))
    late = Metric(
        "tidegate_sync_late_rows", "Rows that the latest run found below the watermark.", ("sync",)
    )
    farthest = Metric(
        "tidegate_sync_late_farthest",
        "How far below it, in seconds or in steps of an integer cursor.",
        ("sync",),
    )
    for one in lines:
        if one.last_run_at is not None:
            ages.values[(one.sync,)] = max(0.0, now - one.last_run_at.timestamp())
            failed.values[(one.sync,)] = one.state.value == "failed"
            late.values[(one.sync,)] = one.late_rows
            farthest.values[(one.sync,)] = one.late_farthest
    yield from (ages, failed, late, farthest)


def _jobs(context: Context, control: Connection) -> Iterator[Metric]:
    plane, given = context.plane, {"project": context.settings.project.name}
    jobs = Metric("tidegate_jobs", "Jobs that are remembered.", ("kind", "status"))
    for kind, status, count in control.execute(
        plane.statement("admin/metrics", "count_jobs"), given
    ):
        jobs.values[kind, status] = count
    yield jobs
    ready = Metric("tidegate_queue_depth", "Jobs that could start now.", ("kind",))
    later = Metric("tidegate_queue_later", "Jobs that wait for a later time.", ("kind",))
    running = Metric("tidegate_jobs_running", "Jobs that are claimed.", ("kind",))
    over = Metric("tidegate_leases_over", "Claims whose lease has run out.", ("kind",))
    oldest = Metric(
        "tidegate_queue_oldest_seconds",
        "How long the oldest job that could start has waited.",
        ("kind",),
    )
    for row in control.execute(plane.statement("admin/metrics", "measure_queue"), given):
        for metric, value in zip((ready, later, running, over, oldest), row[1:], strict=True):
            metric.values[(row[0],)] = value
    yield from (ready, later, running, over, oldest)


_FACTS = (
    ("data_files", "Data files of a table."),
    ("data_bytes", "Bytes in the data files of a table."),
    ("small_files", "Data files that could be put together."),
    ("snapshots", "Snapshots of a table."),
    ("manifests", "Manifests of a table."),
    ("delete_files", "Files of deletes of a table."),
    ("records", "Rows in the data files of a table."),
)


def _lakes(context: Context, control: Connection) -> Iterator[Metric]:
    """The first thousand tables, as the cache has them."""
    listing = list_tables(context, control)
    facts = [Metric(f"tidegate_table_{name}", text, ("table",)) for name, text in _FACTS]
    issues = Metric(
        "tidegate_table_issues", "What is not well with a table.", ("table", "severity")
    )
    for one in list_health(context, control, listing.tables):
        label = str(one.table.target)
        if one.table.facts is not None:
            for metric, value in zip(facts, _figures(one.table.facts), strict=True):
                metric.values[(label,)] = value
        if one.health is not None:
            for severity in ("warning", "critical"):
                issues.values[label, severity] = sum(
                    issue.severity == severity for issue in one.health.issues
                )
    yield from (*facts, issues)
    yield from _catalogs(listing.catalogs, cache(context).clock(control).timestamp())


def _figures(facts: TableFacts) -> tuple[float, ...]:
    return (
        facts.data.files,
        facts.data.bytes,
        facts.small.files,
        facts.snapshots,
        facts.manifests.files,
        facts.position_deletes.files + facts.equality_deletes.files,
        facts.records,
    )


def _catalogs(catalogs: tuple[CatalogView, ...], now: float) -> Iterator[Metric]:
    age = Metric(
        "tidegate_table_cache_age_seconds",
        "How long ago all tables of a lake were looked at.",
        ("catalog",),
    )
    error = Metric(
        "tidegate_table_cache_error", "Whether the last look at a lake failed.", ("catalog",)
    )
    for one in catalogs:
        error.values[(one.catalog,)] = one.error is not None
        if one.refreshed_at is not None:
            age.values[(one.catalog,)] = max(0.0, now - one.refreshed_at.timestamp())
    yield age
    yield error


def measure_slots(context: Context, control: Connection) -> Iterator[Metric]:
    """What every slot keeps of its server's log, and how far each of its readers is behind."""
    where = ("slot", "connection")
    retained = Metric(
        "tidegate_slot_retained_bytes", "How much of its log a source keeps for a slot.", where
    )
    lost = Metric("tidegate_slot_lost", "Whether a slot is gone or was given up.", where)
    away = Metric("tidegate_slot_unreachable", "Whether its source did not answer.", where)
    over = Metric("tidegate_slot_over_limit", "Whether it keeps more than max_retained.", where)
    behind = Metric(
        "tidegate_sync_behind_bytes",
        "How much of its source's log a sync has not read yet.",
        ("sync",),
    )
    age = Metric(
        "tidegate_sync_read_age_seconds",
        "How long ago a sync saw all that its slot had.",
        ("sync",),
    )
    for one in read_slots(context, control, quick_source(context)):
        labels = (one.slot, one.connection)
        away.values[labels] = one.unreachable is not None
        if one.unreachable is None:
            lost.values[labels] = one.is_lost
            kept = one.retained_bytes or 0
            retained.values[labels] = kept
            over.values[labels] = kept >= context.settings.cdc.max_retained
            for reader in one.readers:
                behind.values[(reader.sync,)] = reader.behind_bytes
                if reader.seconds is not None:
                    age.values[(reader.sync,)] = reader.seconds
    yield from (retained, lost, away, over, behind, age)


def measure_events(context: Context) -> Iterator[Metric]:
    """What waits, what failed, and how the views stand; nothing in a project without events."""
    if not has_events(context):
        return
    unread = Metric("tidegate_events_unreadable", "Whether the events could not be looked at.")
    try:
        found = read_event_status(context, quick_source(context))
    except (TidegateError, psycopg.Error):
        unread.values[()] = True
        yield unread
        return
    unread.values[()] = False
    yield unread
    yield Metric("tidegate_events_pending", "Events that wait.", (), {(): found.pending})
    yield Metric(
        "tidegate_events_lag_seconds",
        "How long the oldest event that waits has waited.",
        (),
        {(): found.lag_seconds or 0.0},
    )
    yield Metric("tidegate_events_failed", "Events that failed.", (), {(): found.failed})
    behind = Metric(
        "tidegate_event_view_behind", "Whether a view does not show every fact.", ("view",)
    )
    failing = Metric("tidegate_event_view_failed", "Whether a view cannot be filled.", ("view",))
    for one in found.views:
        behind.values[(one.view,)] = not one.is_current
        failing.values[(one.view,)] = one.error is not None
    yield from (behind, failing)
