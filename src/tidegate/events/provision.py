"""Phase 1, and the plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import TidegateError
from tidegate.core.failpoints import reach
from tidegate.core.log import log
from tidegate.core.relation import Relation
from tidegate.events.project_events import ProjectEvents, find_events
from tidegate.events.tables import ensure_tables, missing_tables
from tidegate.load.context import Context
from tidegate.load.plan import EventPlan, ProjectPlan, Refusal
from tidegate.postgres.connection import Connection, begin_read_only, first_line, translate
from tidegate.postgres.queries import OwnSQL, qualified, statement

# Of a larger backlog the second phase finds the months that are missing.
_MOST_EVENTS = 500_000
_DETACH_TIMEOUT = "5s"


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What the first phase did."""

    made: list[date] = field(default_factory=list)
    detached: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    """tables, columns and functions that were missing"""


def provision(
    context: Context,
    events: ProjectEvents,
    connection: Connection,
    *,
    months: Collection[date] = (),
) -> Provisioned:
    """Make what is missing, each month committed by itself; any number of processes may.

    `months` are those that a batch was found to need; without any, partitions that are kept no
    more are detached as well. With nothing to do this takes two round trips.
    """
    tables = ensure_tables(connection, events)
    try:
        plan = _read(connection, events, months)
        leaving = [one for one in plan if one.part is not None]
        # A month that is on its way out comes back only after it has left.
        needed = {one.month for one in plan if one.part is None}
        detached = [
            one.part
            for one in leaving
            if (not months or one.month in needed) and _detach(connection, events, one)
            if one.part is not None
        ]
        made = [one.month for one in plan if one.part is None if _make(connection, events, one)]
    except psycopg.Error as error:
        raise translate(error, "making partitions of the facts") from error
    reach("event.provisioned")
    return Provisioned(made, detached, tables)


def months_to_make(connection: Connection, events: ProjectEvents) -> list[date]:
    """The months that a run would make now; the tables must be there."""
    return [one.month for one in _read(connection, events, ()) if one.part is None]


@dataclass(frozen=True, slots=True)
class _Step:
    """A month to be made, or a partition to be detached."""

    month: date
    part: str | None
    leaving: bool
    """it was being detached when somebody was killed"""


def _read(connection: Connection, events: ProjectEvents, months: Collection[date]) -> list[_Step]:
    limits = events.limits
    text = statement(
        "events/months",
        "read_months",
        raw=qualified(events.raw),
        schema=sql.Identifier(events.ledger_schema),
    )
    rows = connection.execute(
        text,
        {
            "facts": _name(events.model.facts),
            "path": [str(one) for one in events.model.partition_field.path.steps],
            "months": sorted(one.replace(day=1) for one in months),
            "most": 0 if months else _MOST_EVENTS,
            "max_bytes": limits.max_bytes,
            "max_age": timedelta(seconds=limits.max_age_seconds),
            "max_ahead": timedelta(seconds=limits.max_ahead_seconds),
            "keep": events.settings.keep_months,
            "ahead": events.settings.months_ahead,
        },
    )
    return [_Step(*row) for row in rows]


def _make(connection: Connection, events: ProjectEvents, step: _Step) -> bool:
    facts = events.model.facts
    row = connection.execute(
        statement("events/months", "create_month", schema=sql.Identifier(facts.schema)),
        {"month": step.month, "facts": _name(facts)},
    ).fetchone()
    return bool(row and row[1])


def _detach(connection: Connection, events: ProjectEvents, step: _Step) -> bool:
    """Take a partition out without keeping readers waiting; its table stays.

    Readers that began before are waited for, a while; the next run goes on from there.
    """
    facts = events.model.facts
    assert step.part is not None
    how = sql.SQL("FINALIZE" if step.leaving else "CONCURRENTLY")
    part = qualified(Relation(facts.schema, step.part))
    connection.execute(f"SET lock_timeout = '{_DETACH_TIMEOUT}'")
    try:
        connection.execute(
            sql.SQL("ALTER TABLE {} DETACH PARTITION {} {}").format(qualified(facts), part, how)
        )
    except (pg.LockNotAvailable, pg.ObjectNotInPrerequisiteState, pg.UndefinedTable) as error:
        # Another reads it, or is at it too.
        log.warning("partition_not_detached", partition=step.part, error=first_line(error))
        return False
    finally:
        connection.execute("RESET lock_timeout")
    return True


def _name(relation: Relation) -> str:
    return qualified(relation).as_string(None)


EVENTS = "events"


def plan_events(context: Context, plan: ProjectPlan) -> ProjectPlan:
    """The plan of the syncs with that of the events, or with why they are refused."""
    try:
        events = find_events(context)
        try:
            with context.databases.connect(events.connection) as connection:
                begin_read_only(connection)
                return replace(plan, events=_plan(connection, events))
        except psycopg.Error as error:
            raise translate(error, "planning the events") from error
    except TidegateError as error:
        refusal = Refusal(EVENTS, type(error).__name__, error.message, error.hint, error.exit_code)
        return replace(plan, refusals=(*plan.refusals, refusal))


def _plan(connection: Connection, events: ProjectEvents) -> EventPlan:
    model = events.model
    missing = missing_tables(connection, events)
    return EventPlan(
        raw=f"{events.connection}:{events.raw}",
        facts=str(model.facts),
        partition_column=model.partition_column,
        hashed=model.hashed,
        dimensions=tuple(str(one.table) for one in model.dimensions),
        views=tuple(str(one.name) for one in model.views),
        missing=tuple(missing),
        months=()
        if missing
        else tuple(f"{one:%Y-%m}" for one in months_to_make(connection, events)),
        waiting=0 if str(events.raw) in missing else _waiting(connection, events),
        schedule=events.settings.schedule,
        warnings=() if missing else tuple(_wrong_views(connection, events)),
    )


def _waiting(connection: Connection, events: ProjectEvents) -> int:
    row = connection.execute(
        statement("events/status", "read_backlog", raw=qualified(events.raw)),
        {"most": 1_000_000},
    ).fetchone()
    return int(row[0]) if row else 0


def _wrong_views(connection: Connection, events: ProjectEvents) -> list[str]:
    """Views whose query Postgres would not take; only it knows."""
    found = []
    for view in events.model.views:
        try:
            with connection.transaction():
                connection.execute(
                    sql.SQL("EXPLAIN SELECT {} FROM (\n{}\n) AS v").format(
                        sql.SQL(", ").join(map(sql.Identifier, view.unique)), OwnSQL(view.query)
                    )
                )
        except psycopg.Error as error:
            found.append(f"view {view.name}: {first_line(error)}")
    return found
