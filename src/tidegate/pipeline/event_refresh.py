"""The third phase: views are filled anew where facts have changed, while they are read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import TidegateError, ViewsFailed
from tidegate.failpoints import reach
from tidegate.pipeline import event_view
from tidegate.pipeline.context import Context
from tidegate.pipeline.event_view import Standing, definition_of, refuse_foreign
from tidegate.pipeline.events import Events
from tidegate.postgres.connect import Connection, first_line, session_lost, translate
from tidegate.postgres.identifiers import qualified, statement

# Only another who changes the view is waited for; whoever reads it is not.
_LOCK_TIMEOUT = "60s"
REFRESHED = "refreshed"
UNCHANGED = "unchanged"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RefreshEnd:
    """What became of one view."""

    view: str
    outcome: str
    seconds: float = 0.0
    rows: int | None = None
    error: str | None = None


def refresh(
    context: Context,
    events: Events,
    connection: Connection,
    *,
    force: bool = False,
    check_alive: Callable[[], None],
) -> list[RefreshEnd]:
    """Fill each view that does not show all changes; one that fails does not stop the others.

    What a view shows and what its log says of it are one commit.
    """
    ends = []
    for standing in read_views(connection, events):
        check_alive()
        ends.append(_see_to(connection, events, standing, force=force))
        reach("event.refreshed")
    return ends


def read_views(connection: Connection, events: Events) -> list[Standing]:
    """How the views stand, in one statement."""
    views, log = events.model.views, events.refresh_log
    if log is None:
        return []
    rows = connection.execute(
        statement("events/views", "read_views", log=qualified(log)),
        {
            "schemas": [one.name.schema for one in views],
            "names": [one.name.name for one in views],
            "keys": [str(one.name) for one in views],
        },
    )
    return [Standing(view, *row[1:]) for view, row in zip(views, rows, strict=True)]


def read_changes(connection: Connection, events: Events) -> int:
    row = connection.execute(
        statement("events/views", "get_changes", schema=sql.Identifier(events.ledger_schema))
    ).fetchone()
    return int(row[0]) if row else 0


def _see_to(
    connection: Connection, events: Events, standing: Standing, *, force: bool
) -> RefreshEnd:
    view, started = standing.view, time.monotonic()
    try:
        # Before the view is read: a change that comes later is seen to the next time.
        changes = read_changes(connection, events)
        refuse_foreign(standing)
        if standing.is_current and standing.changes == changes and not force:
            return RefreshEnd(str(view.name), UNCHANGED, rows=standing.rows)
        rows = _fill(connection, events, standing, changes, started)
    except (psycopg.Error, TidegateError) as error:
        if isinstance(error, psycopg.Error) and session_lost(error):
            raise translate(error, f"refreshing {view.name}") from error
        return _fail(connection, events, standing, error, time.monotonic() - started)
    return RefreshEnd(str(view.name), REFRESHED, time.monotonic() - started, rows)


def _fill(
    connection: Connection, events: Events, standing: Standing, changes: int, started: float
) -> int:
    view = standing.view
    replaced = standing.exists and standing.definition != definition_of(view)
    made = event_view.fill_next(connection, view) if replaced else None
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        if made is not None:
            event_view.swap(connection, view, made)
        elif not standing.exists:
            event_view.create_view(connection, view)
        else:
            if not standing.has_key:
                event_view.create_key(connection, view)
            # What was never filled has no readers, and cannot be compared.
            event_view.refresh_view(connection, view, beside_readers=bool(standing.populated))
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM {}").format(qualified(view.name))
        ).fetchone()
        assert row is not None
        rows = int(row[0])
        connection.execute(
            _log(events, "note_refresh"),
            {
                "view": str(view.name),
                "seconds": time.monotonic() - started,
                "rows": rows,
                "changes": changes,
                "definition": definition_of(view),
            },
        )
    return rows


def _fail(
    connection: Connection,
    events: Events,
    standing: Standing,
    error: psycopg.Error | TidegateError,
    seconds: float,
) -> RefreshEnd:
    name = str(standing.view.name)
    reason = error.message if isinstance(error, TidegateError) else _reason(error)
    connection.execute(_log(events, "note_failure"), {"view": name, "error": reason})
    return RefreshEnd(name, FAILED, seconds, standing.rows, reason)


def _reason(error: psycopg.Error) -> str:
    """The database's words, and what to make of those that do not say it."""
    said = first_line(error)
    if isinstance(error, pg.DependentObjectsStillExist):
        return f"its definition changed, and others depend on it: {error.diag.message_detail}"
    if isinstance(error, pg.LockNotAvailable):
        return f"another session keeps it locked ({said})"
    if isinstance(error, pg.UniqueViolation | pg.CardinalityViolation):
        return f"its rows are not unique by the columns that the model names ({said})"
    return said


def _log(events: Events, name: str) -> sql.Composed:
    log = events.refresh_log
    assert log is not None
    return statement("events/views", name, log=qualified(log))


def refuse_failed(ends: list[RefreshEnd]) -> None:
    """ViewsFailed when a view could not be filled, after the others were."""
    failed = [one for one in ends if one.outcome == FAILED]
    if failed:
        told = "; ".join(f"{one.view}: {one.error}" for one in failed)
        raise ViewsFailed(
            f"{len(failed)} of {len(ends)} views could not be refreshed: {told}",
            "correct their queries or what is said above; the other views are up to date",
        )
