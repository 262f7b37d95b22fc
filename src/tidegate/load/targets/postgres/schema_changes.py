"""ALTER TABLE with short locks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import BusyError, DestinationError, DriftRefused
from tidegate.core.failpoints import reach
from tidegate.core.relation import Column, Relation, Table
from tidegate.core.shape import Shape
from tidegate.ledger.fences import Fence, Fences, publisher_name
from tidegate.postgres.catalog import partition_oids
from tidegate.postgres.connection import Connection, dependents, first_line, session_lost
from tidegate.postgres.queries import qualified


@dataclass(frozen=True, slots=True)
class Added:
    """A column more; without NOT NULL, since the rows that are there have no value for it."""

    name: str
    type: str

    @property
    def action(self) -> sql.Composed:
        return sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(
            sql.Identifier(self.name), sql.SQL(self.type)
        )

    def applied_to(self, table: Table) -> Table:
        column = Column(self.name, self.type, self.type, via_text=False, not_null=False)
        return replace(table, columns=(*table.columns, column))


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column of a wider type."""

    name: str
    type: str

    @property
    def action(self) -> sql.Composed:
        return sql.SQL("ALTER COLUMN {} TYPE {}").format(
            sql.Identifier(self.name), sql.SQL(self.type)
        )

    def applied_to(self, table: Table) -> Table:
        return _with(table, self.name, type=self.type)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A column that may be NULL from now on."""

    name: str

    @property
    def action(self) -> sql.Composed:
        return sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(self.name))

    def applied_to(self, table: Table) -> Table:
        return _with(table, self.name, not_null=False)


Change = Added | Retyped | Relaxed


def alter(relation: Relation, *actions: sql.Composable) -> sql.Composed:
    """One ALTER TABLE, so that rows are written anew once at most."""
    return sql.SQL("ALTER TABLE {} {}").format(qualified(relation), sql.SQL(", ").join(actions))


def _with(table: Table, name: str, **values: object) -> Table:
    return replace(
        table,
        columns=tuple(
            replace(column, **values) if column.name == name else column  # type: ignore[arg-type]
            for column in table.columns
        ),
    )


# Longer than deadlock_timeout: only a waiter that old makes autovacuum step aside.
LOCK_SECONDS = 2.0
# Once the lock is there, readers wait for as long as the change takes.
_CHANGE_SECONDS = 5.0
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)
_GAVE_WAY = (pg.LockNotAvailable, pg.QueryCanceled, pg.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class DependentView:
    """The view of a table of versions, to be made anew."""

    statement: sql.Composed
    dropped_first: bool
    """columns of a view can be added, but neither changed nor taken away"""


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a target needs before it can take the rows; `table` is how it is afterwards."""

    relation: Relation
    table: Table
    actions: tuple[sql.Composed, ...] = ()
    view: DependentView | None = None
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
            found.append(self.view.statement)
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


_LOOK_MILLISECONDS = 5000
_LENGTH = re.compile(r"\([0-9, -]+\)")
# Postgres casts these without being asked, and digits get lost.
_LOSSY = {
    ("integer", "real"),
    ("bigint", "real"),
    ("bigint", "double precision"),
    ("numeric", "real"),
    ("numeric", "double precision"),
}
_ZONED = {"timestamp with time zone", "time with time zone"}
_UNZONED = {"date", "timestamp without time zone", "time without time zone"}
# Growing these changes the catalog alone; every other change of type writes all rows anew.
_GROWS_IN_PLACE = {
    "character varying",
    "bit varying",
    "numeric",
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
    "time with time zone",
}


def accepts(connection: Connection, existing: str, incoming: str) -> bool:
    """Whether values of one type go into a column of another without loss."""
    if existing == incoming:
        return True
    base, incoming_base = _base(existing), _base(incoming)
    if base == incoming_base:
        return "(" not in existing or _holds(_digits(existing), _digits(incoming))
    if "(" in existing or (incoming_base, base) in _LOSSY or needs_zone(existing, incoming):
        return False
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_cast WHERE castsource = to_regtype(%s)"
        " AND casttarget = to_regtype(%s) AND castcontext = 'i')",
        (incoming, existing),
    ).fetchone()
    return bool(row and row[0])


def widens(connection: Connection, existing: str, incoming: str) -> bool:
    """Whether a column may take the incoming type and keep every value that it has."""
    return accepts(connection, incoming, existing)


def needs_zone(left: str, right: str) -> bool:
    """Whether what values of the one type are in the other depends on a time zone, which nobody
    declared."""
    pair = {_base(left), _base(right)}
    return bool(pair & _ZONED) and bool(pair & _UNZONED)


def converted(name: str, existing: str, wanted: str) -> sql.Composed:
    """A column in another type, as a person would write it who knows the zone."""
    value: sql.Composable = sql.Identifier(name)
    if needs_zone(existing, wanted):
        moment = sql.SQL("::timestamp") if existing == "date" else sql.SQL("")
        value = sql.SQL("({}{} AT TIME ZONE '…')").format(value, moment)
    return sql.SQL("{}::{}").format(value, sql.SQL(wanted))


def retyping(
    connection: Connection, relation: Relation, existing: Column, wanted: str
) -> sql.Composed:
    """What ALTER TABLE takes to give a column another type by hand.

    Where the types know no cast, or a value does not fit, no value stays.
    """
    name, kind = sql.Identifier(existing.name), sql.SQL(wanted)
    retype = sql.SQL("ALTER COLUMN {} TYPE {} USING {}")
    value = converted(existing.name, existing.type, wanted)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SELECT NULL::{}::{}").format(sql.SQL(existing.type), kind))
            if not needs_zone(existing.type, wanted):
                connection.execute(f"SET LOCAL statement_timeout = {_LOOK_MILLISECONDS}")
                look = sql.SQL("SELECT pg_catalog.max(({})::text) FROM {}")
                connection.execute(look.format(value, qualified(relation)))
    except pg.QueryCanceled:
        pass  # too large to be looked at for the sake of a message
    except (pg.CannotCoerce, pg.DataError):
        relax = sql.SQL("ALTER COLUMN {} DROP NOT NULL, ").format(name)
        return (relax if existing.not_null else sql.Composed([])) + retype.format(
            name, kind, sql.SQL("NULL")
        )
    return retype.format(name, kind, value)


def rewrites(existing: str, incoming: str) -> bool:
    """Whether widening writes every row anew, and keeps readers out meanwhile."""
    base, incoming_base = _base(existing), _base(incoming)
    if base != incoming_base:
        return (base, incoming_base) != ("character varying", "text")
    if base not in _GROWS_IN_PLACE:
        return True
    if base == "numeric" and "(" in incoming:
        return _digits(existing)[1:] != _digits(incoming)[1:]
    return False


def _base(type_name: str) -> str:
    return _LENGTH.sub("", type_name)


def _holds(existing: list[int], incoming: list[int]) -> bool:
    """Whether a length, or a precision with its scale, is no tighter than another."""
    if len(existing) != len(incoming):
        return False
    if len(existing) == 2:
        whole = existing[0] - existing[1] >= incoming[0] - incoming[1]
        return whole and existing[1] >= incoming[1]
    return existing >= incoming


def _digits(type_name: str) -> list[int]:
    inside = type_name.partition("(")[2].partition(")")[0]
    return [int(part) for part in inside.split(",") if part.strip().isdigit()]


_SHOWN = 3


def refuse_unknown_values(
    connection: Connection, relation: Relation, rows: sql.Composable, shape: Shape
) -> None:
    """Refuse staged values that the enums of a shape, fitted to the target, do not have.

    They are not added: where a value stands in the order of its type is for a person to say.
    """
    texts = [column for column in shape.columns if column.staged_type == "text"]
    known = _labels(connection, [column.target_type for column in texts])
    for column in texts:
        if column.target_type not in known:
            continue
        unknown = connection.execute(
            sql.SQL(
                "SELECT DISTINCT {name} FROM ({rows}) s WHERE {name} <> ALL ({labels}::text[])"
                " ORDER BY 1 LIMIT {limit}"
            ).format(
                name=sql.Identifier(column.name),
                rows=rows,
                labels=sql.Literal(known[column.target_type]),
                limit=sql.Literal(_SHOWN),
            )
        ).fetchall()
        if unknown:
            add = "; ".join(
                sql.SQL("ALTER TYPE {} ADD VALUE {}")
                .format(sql.SQL(column.target_type), sql.Literal(value))
                .as_string(connection)
                for (value,) in unknown
            )
            raise DriftRefused(
                f"column {column.name} of the rows for {relation} holds values that type "
                f"{column.target_type} does not have: {', '.join(value for (value,) in unknown)}",
                f"nothing was loaded: add them in their place and run again: {add}",
            )


def _labels(connection: Connection, types: list[str]) -> dict[str, list[str]]:
    """The values of each type that is an enum."""
    rows = connection.execute(
        "SELECT name, array_agg(enumlabel::text) FROM unnest(%s::text[]) AS name"
        " JOIN pg_enum ON enumtypid = to_regtype(name) GROUP BY name",
        (list(dict.fromkeys(types)),),
    )
    return dict(rows.fetchall())
