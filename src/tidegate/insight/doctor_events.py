"""What the events of a project need: a model that can be read, and tables that fit it."""

from __future__ import annotations

import psycopg

from tidegate.errors import TidegateError
from tidegate.insight.events import EventStatus, read_status
from tidegate.model.check import Check, fail, ok, warn
from tidegate.model.figures import counted
from tidegate.model.plan import ProjectPlan
from tidegate.pipeline.context import Context
from tidegate.pipeline.event_plan import plan_events
from tidegate.pipeline.events import has_events
from tidegate.postgres.connect import first_line

TITLE = "events"
_LATE_SECONDS = 3600.0


def check_events(context: Context) -> list[Check]:
    """The model, its tables, what waits, and the views; nothing where there are no events."""
    if not has_events(context):
        return []
    plan = plan_events(context, ProjectPlan((), ()))
    if plan.events is None:
        (refusal,) = plan.refusals
        return [fail(TITLE, refusal.message, refusal.hint or "correct the model of the events")]
    checks = [warn(TITLE, one, "correct its query in the model") for one in plan.events.warnings]
    try:
        status = read_status(context)
    except (TidegateError, psycopg.Error) as error:
        said = error.message if isinstance(error, TidegateError) else first_line(error)
        return [*checks, fail(TITLE, said, "see the server's log; try: tidegate doctor again")]
    if not status.is_provisioned:
        return [
            *checks,
            ok(TITLE, "the model is valid; the first tidegate event run makes the tables"),
        ]
    return [*checks, *_remarks(status)]


def _remarks(status: EventStatus) -> list[Check]:
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
