"""Taking Tidegate out of a project's databases: what it made goes, target tables never do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.admin.inventory import (
    LEDGER_TABLES,
    InstalledObject,
    InstalledSchema,
    Owner,
    Role,
    find_control,
    find_ledger,
    list_objects,
    list_states,
    own_observed,
    own_states,
    read_ownership,
)
from tidegate.admin.remove import StagedFileCleanup
from tidegate.core.errors import BusyError, DestinationError, TidegateError, UsageError
from tidegate.core.identity import DatabaseIdentity, sync_of
from tidegate.core.relation import Relation
from tidegate.jobs.context import bound_transaction
from tidegate.jobs.job import Holder, JobStatus
from tidegate.jobs.reclaim import LostAttempts
from tidegate.jobs.worker_records import read_workers
from tidegate.load.context import Context
from tidegate.load.sources.cdc.slot_registry import Slots
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connection import Connection, first_line, translate
from tidegate.postgres.databases import CONTROL
from tidegate.postgres.queries import qualified, statement

_DROPS = ("view", "table", "staging table", "sequence", "type")


@dataclass(frozen=True, slots=True)
class Installation:
    """What was found in the databases of a project, and which could not be searched."""

    owner: Owner
    premises: tuple[InstalledSchema, ...]
    unreachable: dict[str, str]


def find_installation(
    context: Context, connections: Iterable[str] = (), *, shared: bool = False
) -> Installation:
    """Look into the given connections, or into all; the control database comes last."""
    wanted = list(dict.fromkeys(connections))
    for name in wanted:
        context.settings.connection(name)
    with context.plane.connect() as connection:
        owner = _owner(context, connection)
    found: list[InstalledSchema] = []
    unreachable: dict[str, str] = {}
    seen: set[tuple[DatabaseIdentity, str]] = set()
    for name in (name for name in wanted or context.settings.connections if name != CONTROL):
        try:
            with context.databases.connect(name) as connection:
                # The control database may hold the ledgers of several lakes.
                place = database_identity(connection), context.ledger(name).schema
                if place in seen:
                    continue
                seen.add(place)
                ledger = find_ledger(context, connection, name, owner, shared=shared)
                found += [] if ledger is None else [ledger]
        except (TidegateError, psycopg.Error) as error:
            problem = _translated(error, f"looking into {name}")
            if wanted:
                raise problem from None
            unreachable[name] = problem.message
    if not wanted or CONTROL in wanted:
        with context.plane.connect() as connection:
            control = find_control(context, connection, owner, shared=shared)
            found += [] if control is None else [control]
    return Installation(owner, tuple(found), unreachable)


def uninstall(context: Context, installation: Installation, *, shared: bool = False) -> None:
    """Remove what was found, a transaction a database, while no job can start.

    Killed in between, it can be repeated: the control schema goes last.
    """
    ledgers = [one for one in installation.premises if one.role is Role.LEDGER]
    control = [one for one in installation.premises if one.role is Role.CONTROL]
    done: list[str] = []
    try:
        with _no_job(context, None if shared else installation.owner.project) as session:
            # Read again: a project may have moved in since the list was shown.
            owner = _owner(context, session)
            for ledger in ledgers:
                _remove_ledger(context, ledger, owner, shared=shared)
                done.append(ledger.connection)
            for one in control:
                _remove_control(context, session, one, owner, shared=shared)
    except (TidegateError, psycopg.Error) as error:
        problem = _translated(error, "removing what Tidegate made")
        if done:
            problem.message += f" (already removed from: {', '.join(done)})"
        raise problem from None


def _owner(context: Context, connection: Connection) -> Owner:
    exists = context.plane.version(connection) > 0
    control_id = context.plane.identity(connection) if exists else None
    return Owner(read_ownership(context, connection), control_id)


@contextmanager
def _no_job(context: Context, project: str | None) -> Iterator[Connection]:
    """Keep jobs from being submitted or claimed; refuse while one of the project is at work."""
    plane = context.plane
    with plane.connect() as control:
        exists = plane.version(control) > 0
        with control.transaction():
            bound_transaction(control, context)
            # It waits here while the ledgers are removed.
            control.execute("SET LOCAL idle_in_transaction_session_timeout = '10min'")
            if exists:
                _lock(control, plane.schema, ("jobs", "job_queue", "table_locks"), "control")
                _refuse_live(context, control, project)
                _refuse_workers(context, control, project)
                _refuse_slots(context, control, project)
            yield control


def _refuse_live(context: Context, control: Connection, project: str | None) -> None:
    dead = {one.attempt_id for one in LostAttempts(context.plane).list(control)}
    rows = control.execute(
        context.plane.statement("admin/control_inventory", "list_claimed"), {"project": project}
    )
    for row in rows:
        holder = Holder(row[0], row[1], JobStatus(row[2]), *row[3:])
        if holder.attempt_id not in dead:
            raise BusyError(
                f"{holder} is at work", "wait until it has finished, or end it, then try again"
            )


def _refuse_workers(context: Context, control: Connection, project: str | None) -> None:
    """A worker that waits for jobs would find its tables gone."""
    for worker in read_workers(context.plane, control, project):
        if worker.is_connected:
            raise BusyError(
                f"a worker of project {project or 'any'} is there: {worker}; nothing was removed",
                f"stop it on {worker.host}, as with: kill {worker.pid}; then try again",
            )


def _refuse_slots(context: Context, control: Connection, project: str | None) -> None:
    """A slot that nobody knows of keeps its server's log until the disk is full."""
    mine = project or context.settings.project.name
    readers = Slots(context.plane).readers(control, mine)
    if readers:
        names = list(dict.fromkeys(sync_of(mine, one.pipeline) for one in readers))
        raise UsageError(
            f"slots in sources of this project are read by {', '.join(names)}, and would keep "
            "their servers' logs for ever; nothing was removed",
            "; ".join(f"tidegate remove {name}" for name in names) + "; then try again",
        )


def _remove_ledger(context: Context, shown: InstalledSchema, owner: Owner, *, shared: bool) -> None:
    ledger = context.ledger(shown.connection)
    with context.databases.connect(shown.connection) as connection, connection.transaction():
        bound_transaction(connection, context)
        tables = [name for name in LEDGER_TABLES if _lies_in(connection, ledger.schema, name)]
        _lock(connection, ledger.schema, tables, shown.connection)
        found = find_ledger(context, connection, shown.connection, owner, shared=shared)
        if found is None:
            return
        _refuse_changed(shown, found)
        if set(tables) == set(LEDGER_TABLES):
            _delete_rows(context, connection, found, owner)
        if ledger.lake and found.whole:
            # Nothing else would know of these files any more.
            StagedFileCleanup(context.catalog(shown.connection), ledger).discard(None, ())
        _drop(connection, found)


def _delete_rows(
    context: Context, connection: Connection, found: InstalledSchema, owner: Owner
) -> None:
    """Rows in tables that stay, before the log that tells whose they are goes."""
    ledger = context.ledger(found.connection)
    parts = {"schema": ledger.schema_identifier}
    catalog = context.catalog(found.connection).identity if ledger.lake else None
    own = own_states(list_states(connection, ledger, owner, catalog))
    markers = ledger.find_markers(connection)
    if markers is not None and InstalledObject("table", str(markers)).name not in _tables(found):
        connection.execute(
            statement(
                "admin/ledger_inventory", "delete_own_markers", **parts, markers=qualified(markers)
            ),
            {**own, "everybody": found.whole},
        )
    if not found.whole:
        if ledger.lake:
            connection.execute(statement("ledger/intents", "forget_own_intents", **parts), own)
        own["control_id"] = owner.control_id
        for name in ("delete_own_moves", "delete_own_states", "delete_own_fences"):
            connection.execute(statement("admin/ledger_inventory", name, **parts), own)


def _remove_control(
    context: Context, session: Connection, shown: InstalledSchema, owner: Owner, *, shared: bool
) -> None:
    found = find_control(context, session, owner, shared=shared)
    if found is None:
        return
    _refuse_changed(shown, found)
    if found.whole:
        _drop(session, found)
        return
    own = {"project": owner.project, "pipelines": own_observed(context, session, owner)}
    for name in (
        "delete_audit_of_project",
        "delete_jobs_of_project",
        "delete_observations_of_project",
        "delete_schedules_of_project",
        "delete_history_of_project",
        "delete_notices_of_project",
    ):
        session.execute(context.plane.statement("admin/control_inventory", name), own)


def _refuse_changed(shown: InstalledSchema, found: InstalledSchema) -> None:
    """Nothing goes that was not on the list: somebody may have moved in since."""
    new = set(found.shared_with) - set(shown.shared_with)
    more = {part.name for part in found.objects if part.kind != "staging table"} - {
        part.name for part in shown.objects
    }
    if new or more or found.whole != shown.whole:
        raise UsageError(
            f"schema {found.schema} of {found.connection} has changed meanwhile: "
            f"{', '.join(sorted(new | more)) or 'its users are others'}",
            "look at the list again",
        )


def _drop(connection: Connection, found: InstalledSchema) -> None:
    by_kind: dict[str, list[sql.Identifier]] = {}
    functions = [part for part in found.objects if part.kind in ("function", "procedure")]
    for part in found.objects:
        if part.kind in _DROPS:
            kind = part.kind.removeprefix("staging ")
            by_kind.setdefault(kind, []).append(qualified(Relation.parse(part.name)))
    try:
        for kind in ("view", "table", "sequence"):
            if by_kind.get(kind):
                connection.execute(
                    sql.SQL("DROP {} {}").format(
                        sql.SQL(kind.upper()), sql.SQL(", ").join(by_kind[kind])
                    )
                )
        for part in functions:
            connection.execute(
                sql.SQL("DROP ROUTINE {}").format(qualified(Relation.parse(part.name)))
            )
        for one in by_kind.get("type", []):
            connection.execute(sql.SQL("DROP TYPE {}").format(one))
        if found.whole and _may_drop_schema(connection, found.schema):
            connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(found.schema)))
    except pg.DependentObjectsStillExist as error:
        raise DestinationError(
            f"schema {found.schema} of {found.connection} cannot be removed: "
            f"{error.diag.message_detail or first_line(error)}",
            "drop those first, then try again; nothing was removed there",
        ) from None


def _may_drop_schema(connection: Connection, schema: str) -> bool:
    """A schema goes when nothing is left in it and it is not everybody's."""
    if schema == "public" or list_objects(connection, schema):
        return False
    row = connection.execute(
        statement("admin/ledger_inventory", "may_drop_schema"), {"name": schema}
    ).fetchone()
    return bool(row and row[0])


def _lock(connection: Connection, schema: str, tables: Iterable[str], where: str) -> None:
    names = [sql.Identifier(schema, table) for table in tables]
    if not names:
        return
    try:
        connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(names))
        )
    except pg.LockNotAvailable as error:
        raise BusyError(
            f"the tables of Tidegate in {where} are in use by another session "
            f"({first_line(error)})",
            "see pg_stat_activity for who; try again when it is done",
        ) from None


def _lies_in(connection: Connection, schema: str, table: str) -> bool:
    return any(name == table and kind == "r" for _, name, kind in list_objects(connection, schema))


def _tables(found: InstalledSchema) -> set[str]:
    return {part.name for part in found.objects if part.kind == "table"}


def _translated(error: Exception, doing: str) -> TidegateError:
    if isinstance(error, psycopg.Error):
        return translate(error, doing)
    assert isinstance(error, TidegateError)
    return error
