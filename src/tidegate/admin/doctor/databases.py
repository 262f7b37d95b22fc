"""Postgres, poolers, vacuum."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import psycopg

from tidegate.admin.doctor.finding import Finding, FindingLevel, fail, ok, warn
from tidegate.admin.vacuum_horizon import Remark, VacuumHorizon, describe, read_vacuum_horizon
from tidegate.config.sync import Sync
from tidegate.core.errors import TidegateError
from tidegate.core.relation import Relation
from tidegate.load.context import Context
from tidegate.postgres.catalog import describe_table, find_obstacle, quoted
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.databases import CONTROL, label

_ROUNDS = 2
_PATIENCE_SECONDS = 15.0


class Pooling(StrEnum):
    """What lies between us and the server."""

    NONE = "none"
    SESSION = "session"
    TRANSACTION = "transaction"
    EXHAUSTED = "exhausted"


def detect_pooling(
    connect: Callable[[], Connection], patience_seconds: float = _PATIENCE_SECONDS
) -> Pooling:
    """Find out with two sessions; a pool that has no second one for us never answers."""
    found: list[Pooling | Exception] = []

    def look() -> None:
        try:
            found.append(_look(connect))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=look, name="tidegate-pooler-check", daemon=True)
    thread.start()
    thread.join(patience_seconds)
    if not found:
        return Pooling.EXHAUSTED
    if isinstance(found[0], TidegateError | psycopg.Error):
        return Pooling.EXHAUSTED
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _look(connect: Callable[[], Connection]) -> Pooling:
    with connect() as one, connect() as two:
        # Out of step on purpose: two servers handed out in turn would look like two sessions.
        order = (one, one, two, two, two, one) * _ROUNDS
        answers = [(session, _process(session)) for session in order]
        first = {process for session, process in answers if session is one}
        second = {process for session, process in answers if session is two}
        if len(first) > 1 or len(second) > 1 or first & second:
            return Pooling.TRANSACTION
        announced = {one.info.backend_pid, two.info.backend_pid}
        return Pooling.NONE if announced == first | second else Pooling.SESSION


def _process(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def check_vacuum(name: str, horizon: VacuumHorizon) -> list[Finding]:
    """What holds back vacuum in the control database, and how full of dead rows the queue is."""
    checks = [_check_horizon(f"{name}: vacuum", horizon)]
    if horizon.catalogs_held is not None:
        checks.append(_warn(f"{name}: system catalogs", horizon.catalogs_held))
    if horizon.queue_crowded is not None:
        checks.append(_warn(f"{name}: job queue", horizon.queue_crowded))
    elif horizon.queue is not None:
        rows = f"{horizon.queue.dead:,} dead rows, {horizon.queue.live:,} live ones"
        checks.append(ok(f"{name}: job queue", rows))
    return checks


def _check_horizon(name: str, horizon: VacuumHorizon) -> Finding:
    if horizon.held is not None:
        return _warn(name, horizon.held)
    if horizon.grant is not None:
        return warn(
            name,
            "how long others have held it back cannot be told: this role may not see their "
            "transactions",
            horizon.grant,
        )
    if horizon.holders:
        oldest = horizon.holders[0]
        return ok(name, f"not held back for long; the oldest is {describe(oldest).rstrip(',')}")
    return ok(name, "nothing holds it back")


def _warn(name: str, remark: Remark) -> Finding:
    return warn(name, remark.found, remark.fix)


_MANY = 10
_STRICT_TLS = ("require", "verify-ca", "verify-full")
_POOLED = (
    "connect to the server itself, or to a pool with pool_mode = session: advisory locks, exported "
    "snapshots and temporary tables need a session of their own"
)


@dataclass(slots=True)
class Use:
    """What a project does with one connection."""

    name: str
    sources: list[Relation] = field(default_factory=list)
    targets: list[Relation] = field(default_factory=list)

    @property
    def writes(self) -> bool:
        return bool(self.targets) or self.name == CONTROL


def check_databases(context: Context, syncs: Iterable[Sync]) -> list[Finding]:
    """Look at every Postgres connection that the project declares."""
    checks: list[Finding] = []
    for use in _uses(context, syncs):
        try:
            checks += _check_database(context, use)
        except psycopg.Error as error:
            fix = "see the server's log; try: tidegate doctor again"
            checks.append(fail(label(use.name), first_line(error), fix))
    return checks


def _uses(context: Context, syncs: Iterable[Sync]) -> list[Use]:
    uses = {CONTROL: Use(CONTROL)}
    for name in context.settings.connections:
        try:
            postgres = context.settings.connections[name].type == "postgres"
        except TidegateError:
            postgres = True  # its variables are not set; connecting will say so
        if postgres:
            uses[name] = Use(name)
    for sync in syncs:
        if sync.source.connection in uses:
            uses[sync.source.connection].sources.append(sync.source.relation)
        if sync.target.connection in uses:
            uses[sync.target.connection].targets.append(sync.target.relation)
    return list(uses.values())


def _check_database(context: Context, use: Use) -> list[Finding]:
    name = label(use.name)
    open_session = partial(context.databases.connect, use.name, "tidegate doctor")
    try:
        connection = open_session()
    except TidegateError as error:
        return [fail(name, error.message, error.hint or "correct the connection")]
    with connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), pg_is_in_recovery(),"
            " current_setting('wal_level')"
        ).fetchone()
        assert row is not None
        server, standby, wal_level = row
        checks = [ok(name, f"reachable, PostgreSQL {server}"), *_check_tls(name, connection)]
        checks += _check_standby(name, use, standby)
        # Before anything else is made of it: behind such a pooler a session is not one.
        checks.append(_check_pooler(name, detect_pooling(open_session)))
        if use.sources:
            checks += _check_source(name, connection, use.sources, standby=standby)
        if use.targets:
            schema = context.settings.ledger.schema_name
            checks.append(check_schema(f"{name}: ledger", connection, schema))
            targets = [_check_target(name, connection, one) for one in dict.fromkeys(use.targets)]
            checks += in_short(f"{name}: targets", targets)
        if use.name == CONTROL:
            schema = context.settings.project.control_schema
            checks.append(check_schema(f"{name}: schema", connection, schema))
            if not standby:
                seconds = context.settings.worker.horizon_warning_seconds
                horizon = read_vacuum_horizon(connection, context.plane, seconds)
                checks += check_vacuum(name, horizon)
        if use.sources:
            checks.append(_check_wal_level(name, wal_level))
    return checks


def _check_tls(name: str, connection: Connection) -> list[Finding]:
    info = connection.info
    mode = info.get_parameters().get("sslmode", "prefer")
    encrypted = connection.pgconn.ssl_in_use
    return judge_encryption(name, info.host, info.hostaddr, mode, encrypted=encrypted)


def judge_encryption(
    name: str, host: str, address: str, mode: str, *, encrypted: bool
) -> list[Finding]:
    """Whether a session with another machine is encrypted, and not by chance."""
    if host.startswith(("/", "@")) or address in ("", "::1") or address.startswith("127."):
        return []
    what = f"{name}: encryption"
    if encrypted and mode in _STRICT_TLS:
        return [ok(what, f"TLS (sslmode={mode})")]
    found = "encrypted only while nobody objects" if encrypted else "not encrypted"
    return [
        warn(
            what,
            f"{host} is another machine, and the session is {found} (sslmode={mode}): rows and "
            "passwords can be read or changed on the way",
            "add sslmode=verify-full and sslrootcert=FILE to its URL, or at least sslmode=require",
        )
    ]


def _check_standby(name: str, use: Use, standby: bool) -> list[Finding]:
    if not standby:
        return []
    if use.writes:
        return [
            fail(f"{name}: standby", "it is in recovery and cannot be written", "use the primary")
        ]
    return [
        warn(
            f"{name}: standby",
            "it is in recovery and shows no open transactions, so rows are read `settle` late",
            "read from the primary for the exact guarantee, or declare a lookback",
        )
    ]


def _check_pooler(name: str, pooling: Pooling) -> Finding:
    name = f"{name}: pooler"
    if pooling is Pooling.TRANSACTION:
        return fail(name, "a pooler lends out the server per transaction", _POOLED)
    if pooling is Pooling.EXHAUSTED:
        return fail(
            name,
            "a second session got no answer",
            "raise the pool's size or the server's max_connections; a load uses several sessions",
        )
    if pooling is Pooling.SESSION:
        return ok(name, "a pooler in session mode lies in between")
    return ok(name, "none; sessions are the server's own")


def _check_source(
    name: str, connection: Connection, relations: Sequence[Relation], *, standby: bool
) -> list[Finding]:
    tables = [_check_readable(name, connection, one) for one in dict.fromkeys(relations)]
    checks = in_short(f"{name}: sources", tables)
    row = connection.execute(
        "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
    ).fetchone()
    if row and row[0]:
        checks.append(ok(f"{name}: open transactions", "visible (pg_read_all_stats)"))
    elif not standby:
        checks.append(
            warn(
                f"{name}: open transactions",
                f"role {connection.info.user} may not see others' transactions, so rows are read "
                "`settle` late and long transactions are covered by lookback only",
                f"GRANT pg_read_all_stats TO {_role(connection)}",
            )
        )
    return checks


def in_short(name: str, checks: list[Finding]) -> list[Finding]:
    """Many tables that are well make one line."""
    well = [check for check in checks if check.level is FindingLevel.OK]
    if len(well) <= _MANY:
        return checks
    words = Counter(check.found for check in well)
    summary = ok(name, ", ".join(f"{count} {text}" for text, count in words.items()))
    return [summary, *(check for check in checks if check.level is not FindingLevel.OK)]


def _check_readable(name: str, connection: Connection, relation: Relation) -> Finding:
    name = f"{name}: {relation}"
    table = describe_table(connection, relation)
    if table is None:
        return fail(name, "does not exist", "correct the sync's source, or create the table")
    obstacle = find_obstacle(connection, table, table.column_names)
    if obstacle is not None:
        return fail(name, obstacle.message, obstacle.fix)
    return ok(name, "may be read")


def check_schema(name: str, connection: Connection, schema: str) -> Finding:
    """Our own schema: there and writable, or possible to create."""
    role = _role(connection)
    row = connection.execute(
        "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE'),"
        " ARRAY(SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = n.oid"
        "  AND c.relkind = 'r' AND NOT starts_with(c.relname, 'stg_')"
        "  AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
        "       AND has_table_privilege(c.oid, 'UPDATE')))"
        " FROM pg_namespace n WHERE n.nspname = %s",
        (schema,),
    ).fetchone()
    fix = f"as the owner: CREATE SCHEMA {quoted(schema)} AUTHORIZATION {role}"
    if row is None:
        if _may_create_schemas(connection):
            return ok(name, f"schema {schema} will be created on first use")
        return fail(name, f"role {role} may not create schema {schema}", fix)
    usable, closed = row
    if not usable:
        fix = f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {role}"
        return fail(name, f"role {role} may not create tables in schema {schema}", fix)
    if closed:
        fix = f"GRANT ALL ON ALL TABLES IN SCHEMA {quoted(schema)} TO {role}"
        return fail(name, f"role {role} may not write {', '.join(closed)} in schema {schema}", fix)
    return ok(name, f"schema {schema} is there and may be written")


def _check_target(name: str, connection: Connection, relation: Relation) -> Finding:
    name = f"{name}: {relation}"
    role = _role(connection)
    row = connection.execute(
        "SELECT c.oid, n.oid, has_schema_privilege(n.oid, 'CREATE'),"
        " ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p"
        "       WHERE c.oid IS NOT NULL AND NOT has_table_privilege(c.oid, p))"
        " FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = %s"
        " WHERE n.nspname = %s",
        (relation.name, relation.schema),
    ).fetchone()
    if row is None:
        if _may_create_schemas(connection):
            return ok(name, f"schema {relation.schema} and the table will be created")
        fix = f"as the owner: CREATE SCHEMA {quoted(relation.schema)} AUTHORIZATION {role}"
        return fail(name, f"role {role} may not create schema {relation.schema}", fix)
    table, _, may_create, missing = row
    if table is None:
        if may_create:
            return ok(name, "will be created on the first load")
        fix = f"GRANT CREATE ON SCHEMA {quoted(relation.schema)} TO {role}"
        return fail(name, f"role {role} may not create tables in schema {relation.schema}", fix)
    if missing:
        rights = ", ".join(missing)
        return fail(name, f"role {role} lacks {rights}", f"GRANT {rights} ON {relation} TO {role}")
    return ok(name, "may be written")


def _check_wal_level(name: str, wal_level: str) -> Finding:
    name = f"{name}: wal_level"
    if wal_level == "logical":
        return ok(name, "logical")
    return ok(name, f'{wal_level}; enough for cursors, changes = "cdc" will need logical')


def _may_create_schemas(connection: Connection) -> bool:
    row = connection.execute(
        "SELECT has_database_privilege(current_database(), 'CREATE')"
    ).fetchone()
    return bool(row and row[0])


def _role(connection: Connection) -> str:
    return quoted(connection.info.user)
