"""The schemas Tidegate keeps: which version each has, and which it should have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg

from tidegate.core.errors import TidegateError
from tidegate.jobs.control_database import newest_version
from tidegate.ledger.ledger import Ledger
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection, translate
from tidegate.postgres.databases import CONTROL


@dataclass(frozen=True, slots=True)
class SchemaState:
    """One schema in one database; `fix` says what to do when it is not as it should be."""

    connection: str
    schema: str
    server: str
    state: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Migration:
    """What bringing the control schema up to date did."""

    schema: str
    before: int
    after: int


def migrate_control(context: Context) -> Migration:
    """Bring the control schema up to date."""
    with context.plane.connect() as connection:
        before = context.plane.version(connection)
        return Migration(context.plane.schema, before, context.plane.migrate(connection))


def check_schemas(context: Context, destinations: Iterable[str]) -> list[SchemaState]:
    """The control schema, then the ledger of every destination; changes nothing."""
    found = [_check(context, CONTROL, context.plane.schema)]
    for name in dict.fromkeys(destinations):
        found.append(_check(context, name, context.ledger(name).schema))
    return found


def _check(context: Context, name: str, schema: str) -> SchemaState:
    try:
        with context.databases.connect(name) as connection:
            version = connection.info.server_version
            server = f"PostgreSQL {version // 10000}.{version % 10000}"
            if name == CONTROL:
                state, fix = _control_state(context.plane.version(connection))
            else:
                state, fix = _ledger_state(connection, context.ledger(name))
            return SchemaState(name, schema, server, state, fix)
    except TidegateError as error:
        return SchemaState(name, schema, "", error.message, error.hint or "see: tidegate doctor")
    except psycopg.Error as error:
        refusal = translate(error, f"reading schema {schema}")
        return SchemaState(name, schema, "", refusal.message, refusal.hint or "tidegate doctor")


def _control_state(version: int) -> tuple[str, str | None]:
    newest = newest_version()
    if version == newest:
        return f"version {version}, up to date", None
    if version > newest:
        fix = "use the Tidegate that the other processes of this project use"
        return f"version {version}, this Tidegate knows {newest}", fix
    made = f"version {version} of {newest}" if version else "not made yet"
    return made, "tidegate db migrate (the next run does it as well)"


def _ledger_state(connection: Connection, ledger: Ledger) -> tuple[str, str | None]:
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = ANY(%s)",
        (ledger.schema, list(ledger.tables)),
    ).fetchall()
    present = {row[0] for row in rows}
    missing = [name for name in ledger.tables if name not in present]
    markers = ledger.find_markers(connection)
    if markers is None:
        missing.append(ledger.marker_table)
    if not missing:
        return f"complete, markers in {markers}", None
    if not present:
        return "not made yet; the first load makes it", None
    return f"incomplete, without {', '.join(missing)}", "the next load makes what is missing"
