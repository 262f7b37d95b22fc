"""May this role read what a sync reads? Every column of it, and the schema it lies in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from tidegate.errors import SourceError
from tidegate.model.column import Table
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What a role lacks, and the statement that gives it."""

    message: str
    fix: str


def check_readable(connection: Connection, table: Table, columns: Sequence[str]) -> None:
    """Refuse a source of which this role may not read every one of these columns."""
    found = find_obstacle(connection, table, columns)
    if found is not None:
        raise SourceError(found.message, found.fix)


def find_obstacle(connection: Connection, table: Table, columns: Sequence[str]) -> Obstacle | None:
    """What keeps this role from reading these columns of a table."""
    row = connection.execute(
        "SELECT has_schema_privilege(relnamespace, 'USAGE'),"
        " ARRAY(SELECT wanted.name FROM unnest(%s::text[]) WITH ORDINALITY AS wanted(name, place)"
        "  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = wanted.name"
        "  WHERE a.attnum > 0 AND NOT a.attisdropped"
        "  AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT') ORDER BY wanted.place)"
        " FROM pg_class c WHERE oid = %s",
        (list(columns), table.oid),
    ).fetchone()
    role = quoted(connection.info.user)
    if row is None:
        return Obstacle(f"table {table.relation} is gone", "run again")
    usable, missing = row
    if not usable:
        return Obstacle(
            f"role {role} may not use the schema of {table.relation}",
            f"GRANT USAGE ON SCHEMA {quoted(table.relation.schema)} TO {role}",
        )
    if not missing:
        return None
    some = f"{', '.join(missing)} of " if len(missing) < len(columns) else ""
    return Obstacle(
        f"role {role} may not read {some}{table.relation}",
        f"GRANT SELECT ON {table.relation} TO {role}",
    )


def quoted(name: str) -> str:
    """A name as one would type it in a statement."""
    text: str = sql.Identifier(name).as_string(None)
    return text if not name.isidentifier() or name != name.lower() else name
