"""Phase 3: materialized views."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import DestinationError, TidegateError, ViewsFailed
from tidegate.core.failpoints import reach
from tidegate.core.relation import Relation
from tidegate.events.model import EventView
from tidegate.events.project_events import ProjectEvents
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection, first_line, session_lost, translate
from tidegate.postgres.queries import OwnSQL, column_list, qualified, statement

_PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SUFFIX = "__next"


@dataclass(frozen=True, slots=True)
class ViewState:
    """A view as it was found."""

    view: EventView
    kind: str | None
    populated: bool | None
    has_key: bool
    definition: str | None
    changes: int | None
    refreshed_at: datetime | None
    failed_at: datetime | None
    rows: int | None

    @property
    def exists(self) -> bool:
        return self.kind is not None

    @property
    def is_current(self) -> bool:
        """It shows what the model says, as far as it is filled."""
        return (
            self.kind == "m"
            and bool(self.populated)
            and self.definition == definition_of(self.view)
        )


def definition_of(view: EventView) -> str:
    """What tells two definitions of a view apart."""
    text = json.dumps([view.query, list(view.unique)])
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_foreign(standing: ViewState) -> None:
    """Refuse a relation that stands under the view's name and is not ours."""
    name = standing.view.name
    if standing.exists and (standing.kind != "m" or standing.definition is None):
        raise DestinationError(
            f"{name} is there already and was not made by Tidegate",
            "drop or rename it, or give the view another name in the model",
        )


def create_view(connection: Connection, view: EventView, name: Relation | None = None) -> None:
    """Make a view and fill it; nobody sees it before it is full and has its key."""
    made = name or view.name
    connection.execute(
        sql.SQL("CREATE MATERIALIZED VIEW {} AS\n{}\n").format(
            qualified(made), OwnSQL(view.query.strip().rstrip(";"))
        )
    )
    create_key(connection, view, made)


def create_key(connection: Connection, view: EventView, name: Relation | None = None) -> None:
    """The unique index by which a refresh finds what has changed."""
    made = name or view.name
    connection.execute(
        sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(qualified(made), column_list(view.unique))
    )


def refresh_view(connection: Connection, view: EventView, *, beside_readers: bool) -> None:
    how = sql.SQL("CONCURRENTLY " if beside_readers else "")
    connection.execute(sql.SQL("REFRESH MATERIALIZED VIEW {}{}").format(how, qualified(view.name)))


def fill_next(connection: Connection, view: EventView) -> Relation:
    """The new definition, made and filled under another name, while the old one is read."""
    made = next_name(view.name)
    with connection.transaction():
        # What is left of one who was killed.
        connection.execute(sql.SQL("DROP MATERIALIZED VIEW IF EXISTS {}").format(qualified(made)))
        create_view(connection, view, made)
    return made


def swap(connection: Connection, view: EventView, made: Relation) -> None:
    """Put the new view in the place of the old; the caller's transaction holds both.

    Readers are kept waiting for half a second at most; whoever reads for longer is not cut off.
    """
    row = connection.execute(
        statement("events/views", "read_rights"),
        {"schema": view.name.schema, "name": view.name.name},
    ).fetchone()
    assert row is not None
    comment, rights = row
    for pause in (*_PAUSES_SECONDS, None):
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '500ms'")
                connection.execute(
                    sql.SQL("DROP MATERIALIZED VIEW {}").format(qualified(view.name))
                )
            break
        except pg.LockNotAvailable:
            if pause is None:
                raise
            time.sleep(pause)
    name = qualified(view.name)
    connection.execute(
        sql.SQL("ALTER MATERIALIZED VIEW {} RENAME TO {}").format(
            qualified(made), sql.Identifier(view.name.name)
        )
    )
    for right in rights:
        before, _, after = right.partition("%s")
        connection.execute(sql.SQL("GRANT {}{}{}").format(sql.SQL(before), name, sql.SQL(after)))
    if comment is not None:
        connection.execute(
            sql.SQL("COMMENT ON MATERIALIZED VIEW {} IS {}").format(name, sql.Literal(comment))
        )


def next_name(name: Relation) -> Relation:
    kept = name.name.encode()[: 63 - len(_SUFFIX)].decode(errors="ignore")
    return Relation(name.schema, kept + _SUFFIX)


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
    events: ProjectEvents,
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


def read_views(connection: Connection, events: ProjectEvents) -> list[ViewState]:
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
    return [ViewState(view, *row[1:]) for view, row in zip(views, rows, strict=True)]


def read_changes(connection: Connection, events: ProjectEvents) -> int:
    row = connection.execute(
        statement("events/views", "get_changes", schema=sql.Identifier(events.ledger_schema))
    ).fetchone()
    return int(row[0]) if row else 0


def _see_to(
    connection: Connection, events: ProjectEvents, standing: ViewState, *, force: bool
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
    connection: Connection, events: ProjectEvents, standing: ViewState, changes: int, started: float
) -> int:
    view = standing.view
    replaced = standing.exists and standing.definition != definition_of(view)
    made = fill_next(connection, view) if replaced else None
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        if made is not None:
            swap(connection, view, made)
        elif not standing.exists:
            create_view(connection, view)
        else:
            if not standing.has_key:
                create_key(connection, view)
            # What was never filled has no readers, and cannot be compared.
            refresh_view(connection, view, beside_readers=bool(standing.populated))
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
    events: ProjectEvents,
    standing: ViewState,
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


def _log(events: ProjectEvents, name: str) -> sql.Composed:
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
