"""The events of a project in numbers."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from tidegate.errors import TidegateError
from tidegate.insight.events import read_status
from tidegate.insight.metrics import Metric
from tidegate.insight.slots import quick_source
from tidegate.pipeline.context import Context
from tidegate.pipeline.events import has_events


def measure_events(context: Context) -> Iterator[Metric]:
    """What waits, what failed, and how the views stand; nothing in a project without events."""
    if not has_events(context):
        return
    unread = Metric("tidegate_events_unreadable", "Whether the events could not be looked at.")
    try:
        found = read_status(context, quick_source(context))
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
