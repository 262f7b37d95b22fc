"""Changing a target to fit its rows: short locks that give way to readers, then another try."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.destinations import append
from tidegate.destinations.changes import alter
from tidegate.errors import BusyError, DestinationError
from tidegate.failpoints import reach
from tidegate.ledger.fences import Fence, Fences, publisher_name
from tidegate.model.column import Table
from tidegate.model.relation import Relation
from tidegate.model.shape import Shape
from tidegate.postgres.catalog import partition_oids
from tidegate.postgres.connect import Connection, dependents, first_line, session_lost
from tidegate.postgres.identifiers import qualified

# Longer than deadlock_timeout: only a waiter that old makes autovacuum step aside.
LOCK_SECONDS = 2.0
# Once the lock is there, readers wait for as long as the change takes.
_CHANGE_SECONDS = 5.0
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)
_GAVE_WAY = (pg.LockNotAvailable, pg.QueryCanceled, pg.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class View:
    """The view of a table of versions, to be made anew with these columns."""

    shape: Shape
    columns: tuple[str, ...]
    dropped_first: bool
    """columns of a view can be added, but neither changed nor taken away"""


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a target needs before it can take the rows; `table` is how it is afterwards."""

    relation: Relation
    table: Table
    actions: tuple[sql.Composed, ...] = ()
    view: View | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        return bool(self.actions) or self.view is not None

    def statements(self) -> list[sql.Composed]:
        """The changes in order, apart from the rights on a view."""
        found: list[sql.Composed] = []
        if self.view is not None and self.view.dropped_first:
            found.append(sql.SQL("DROP VIEW {}").format(qualified(self.relation)))
        if self.actions:
            found.append(alter(self.table.relation, *self.actions))
        if self.view is not None:
            found.append(append.view_statement(self.relation, self.view.shape, self.view.columns))
        return found


@dataclass(frozen=True, slots=True)
class Evolver:
    """Runs evolutions under the fence of an attempt, where there is one."""

    connect: Callable[[str], Connection]
    fences: Fences
    fence: Fence | None
    lock_seconds: float = LOCK_SECONDS

    def evolve(self, evolution: Evolution) -> None:
        """Change the target in a transaction of its own; BusyError when readers never let us."""
        # A newer attempt may end this session by its name, as it ends a publisher.
        name = publisher_name(self.fence.attempt_id) if self.fence else "tidegate"
        with self.connect(name) as connection:
            connection.autocommit = True
            for pause in (*_PAUSES_SECONDS, None):
                try:
                    self._change(connection, evolution)
                    reach("evolve.done")
                    return
                except _GAVE_WAY as error:
                    if pause is None:
                        raise self._busy(connection, evolution) from error
                except psycopg.Error as error:
                    if session_lost(error):
                        raise
                    raise _refusal(connection, evolution, error) from error
                time.sleep(pause)

    def _change(self, connection: Connection, evolution: Evolution) -> None:
        with connection.transaction():
            _bound(connection, "lock_timeout", self.lock_seconds)
            # Many partitions are many locks, and those that are there already keep readers out.
            _bound(connection, "statement_timeout", self.lock_seconds)
            _bound(connection, "idle_in_transaction_session_timeout", _CHANGE_SECONDS)
            if self.fence is not None:
                self.fences.lock(connection, self.fence)
            # A view before its table, in the order in which its readers lock them.
            connection.execute(
                sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(
                    qualified(evolution.relation)
                )
            )
            _bound(connection, "statement_timeout", _CHANGE_SECONDS)
            kept = [] if evolution.view is None else _trimmings(connection, evolution.relation)
            for statement in (*evolution.statements(), *kept):
                connection.execute(statement)
            reach("evolve.changed")

    def _busy(self, connection: Connection, evolution: Evolution) -> BusyError:
        holders = _holders(connection, evolution.table)
        return BusyError(
            f"{evolution.relation} must be changed to fit its rows, but other sessions keep it "
            f"locked: {'; '.join(holders) or 'they are gone now'}",
            "nothing was loaded and nobody was kept waiting; run again when they are done",
        )


def _bound(connection: Connection, name: str, seconds: float) -> None:
    connection.execute(
        "SELECT set_config(%s, %s, true)", (name, f"{max(1, int(seconds * 1000))}ms")
    )


def _trimmings(connection: Connection, view: Relation) -> list[sql.Composed]:
    """What a view has besides its definition and would lose: rights, options, its comment."""
    row = connection.execute(
        "SELECT c.oid, coalesce(c.reloptions, '{}'), obj_description(c.oid, 'pg_class')"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (view.schema, view.name),
    ).fetchone()
    assert row is not None
    oid, options, comment = row
    rights = connection.execute(
        "SELECT a.privilege_type, r.rolname, a.is_grantable"
        " FROM pg_class c, aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee"
        " WHERE c.oid = %s AND a.grantee <> c.relowner",
        (oid,),
    ).fetchall()
    found = [
        sql.SQL("GRANT {} ON {} TO {}{}").format(
            sql.SQL(privilege),
            qualified(view),
            sql.SQL("PUBLIC") if role is None else sql.Identifier(role),
            sql.SQL(" WITH GRANT OPTION" if grantable else ""),
        )
        for privilege, role, grantable in rights
    ]
    for name, _, value in (option.partition("=") for option in options):
        found.append(
            sql.SQL("ALTER VIEW {} SET ({} = {})").format(
                qualified(view), sql.Identifier(name), sql.Literal(value)
            )
        )
    if comment is not None:
        found.append(
            sql.SQL("COMMENT ON VIEW {} IS {}").format(qualified(view), sql.Literal(comment))
        )
    return found


def _holders(connection: Connection, table: Table) -> list[str]:
    """Who holds a lock on the table, or on a part of it; without the text of their statements."""
    rows = connection.execute(
        "SELECT DISTINCT a.pid, a.usename, a.application_name, a.state, a.xact_start"
        " FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.relation = ANY (%s) ORDER BY a.xact_start LIMIT 5",
        ([table.oid, *partition_oids(connection, table.oid)],),
    )
    return [
        f"process {pid} of {user or 'a hidden user'}"
        + (f" ({application})" if application else "")
        + (f", {state}" if state else "")
        + (f", in a transaction since {since:%Y-%m-%d %H:%M:%S%z}" if since else "")
        for pid, user, application, state, since in rows
    ]


def _refusal(
    connection: Connection, evolution: Evolution, error: psycopg.Error
) -> DestinationError:
    more = dependents(error)
    detail = f" ({more})" if more else ""
    wanted = "; ".join(part.as_string(connection) for part in evolution.statements())
    who = (
        "as its owner, run"
        if isinstance(error, pg.InsufficientPrivilege)
        else "remove what stands in the way, or change it by hand"
    )
    return DestinationError(
        f"{evolution.relation} cannot be changed to fit its rows: {first_line(error)}{detail}",
        f"{who}: {wanted}",
    )
