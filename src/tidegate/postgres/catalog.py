"""What the system catalog says of relations and privileges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import SourceError
from tidegate.core.identity import DatabaseIdentity
from tidegate.core.relation import Column, Relation, RelationKind, Table
from tidegate.postgres.connection import Connection, own_path
from tidegate.postgres.queries import subquery
from tidegate.postgres.server_identity import Server

FIRST_USER_OID = 16384
_SCHEMA_PART = re.compile(r'^(?:"(?:[^"]|"")+"|[^."]+)\.')

OPERATORS = """
       (SELECT s.nspname::text
        FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
        JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amopstrategy = 3
                      AND a.amoplefttype = c.opcintype AND a.amoprighttype = c.opcintype
        JOIN pg_operator o ON o.oid = a.amopopr JOIN pg_namespace s ON s.oid = o.oprnamespace
        WHERE c.opcdefault AND c.opcintype = base.oid AND s.nspname <> 'pg_catalog')
"""
"""where the comparisons of the type `base` are that its indexes go by, if not built in"""

# A value travels in its own binary form when its type means the same in every server: built in,
# with a send function, and not naming a catalog object. A domain travels as its base type,
# however many domains lie in between.
_TYPE = f"""
       format_type(given.type, given.mod),
       format_type(base.oid, plain.typmod),
       base.oid >= %(first_user_oid)s OR base.typsend = 0 OR base.typname LIKE 'reg%%'
           OR base.typtype NOT IN ('b', 'r', 'm')
           OR coalesce(element.oid >= %(first_user_oid)s OR element.typname LIKE 'reg%%'
                       OR element.typtype = 'c', false),
       given.not_null OR plain.not_null,
       given.generated,
       plain.oid::bigint,
       plain.typmod,
       {OPERATORS}
"""
_TYPE_JOINS = """
CROSS JOIN LATERAL (
    WITH RECURSIVE domains AS (
        SELECT given.type AS oid, given.mod AS typmod, false AS not_null, 0 AS depth
        UNION ALL
        SELECT t.typbasetype, t.typtypmod, d.not_null OR t.typnotnull, d.depth + 1
        FROM domains d JOIN pg_type t ON t.oid = d.oid WHERE t.typtype = 'd'
    )
    SELECT oid, typmod, not_null FROM domains ORDER BY depth DESC LIMIT 1
) plain
JOIN pg_type base ON base.oid = plain.oid
LEFT JOIN pg_type element ON element.oid = base.typelem AND base.typcategory = 'A'
ORDER BY given.place
"""

_COLUMNS = f"""
SELECT given.name, {_TYPE}
FROM (SELECT attname, atttypid, atttypmod, attnotnull, attgenerated <> '', attnum
      FROM pg_attribute WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped)
     AS given (name, type, mod, not_null, generated, place)
{_TYPE_JOINS}
"""

_RESULT_COLUMNS = f"""
SELECT given.name, {_TYPE}
FROM (SELECT name, type, mod, false, false, place
      FROM unnest(%(names)s::text[], %(types)s::oid[], %(mods)s::int[])
           WITH ORDINALITY AS r (name, type, mod, place))
     AS given (name, type, mod, not_null, generated, place)
{_TYPE_JOINS}
"""

_INDEXES = """
SELECT i.indisprimary,
       i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indisvalid
           AND i.indimmediate,
       ARRAY(SELECT a.attname FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.place <= i.indnkeyatts ORDER BY k.place)::text[]
FROM pg_index i
WHERE i.indrelid = %(oid)s AND i.indisready
ORDER BY i.indisprimary DESC, i.indexrelid
"""


def describe_table(
    connection: Connection, relation: Relation, *, again: bool = True
) -> Table | None:
    """The relation as it is now, or None when there is none of that name."""
    row = connection.execute(
        "SELECT c.oid, c.relkind, greatest(c.reltuples, 0)::bigint,"
        " pg_relation_size(c.oid) / current_setting('block_size')::bigint,"
        " has_table_privilege(c.oid, 'SELECT')"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        (relation.schema, relation.name),
    ).fetchone()
    if row is None:
        return None
    oid, kind, estimated_rows, pages, wholly = row
    parameters = {"oid": oid, "first_user_oid": FIRST_USER_OID}
    columns = _columns(connection, _COLUMNS, parameters)
    if not columns and again:
        # Dropped since it was looked up, and another may have its name.
        return describe_table(connection, relation, again=False)
    primary: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = []
    leading: set[str] = set()
    for is_primary, is_unique, names in connection.execute(_INDEXES, parameters):
        if is_primary:
            primary = tuple(names)
        if is_unique and names:
            unique.append(tuple(names))
        if names:
            leading.add(names[0])
    return Table(
        relation=relation,
        oid=oid,
        kind=RelationKind(kind),
        columns=columns,
        primary_key=primary,
        unique_keys=tuple(unique),
        leading_index_columns=frozenset(leading),
        estimated_rows=estimated_rows,
        pages=pages or 0,
        is_wholly_readable=wholly,
    )


def describe_query(connection: Connection, relation: Relation, query: str) -> Table:
    """The result of a query, described as a relation of the given name."""
    cursor = connection.execute(sql.SQL("SELECT * FROM {} WHERE false").format(subquery(query)))
    result = cursor.pgresult
    assert result is not None
    assert cursor.description is not None
    parameters: dict[str, Any] = {
        "names": [column.name for column in cursor.description],
        "types": [column.type_code for column in cursor.description],
        "mods": [result.fmod(place) for place in range(result.nfields)],
        "first_user_oid": FIRST_USER_OID,
    }
    return Table(
        relation=relation,
        oid=0,
        kind=RelationKind.QUERY,
        columns=_columns(connection, _RESULT_COLUMNS, parameters),
        primary_key=(),
        unique_keys=(),
        leading_index_columns=frozenset(),
        estimated_rows=0,
        pages=0,
        query=query,
    )


def describe_columns(
    connection: Connection, names: list[str], types: list[int], modifiers: list[int]
) -> tuple[Column, ...]:
    """Columns of these types; one whose type is not there any more is left out."""
    parameters = {
        "names": names,
        "types": types,
        "mods": modifiers,
        "first_user_oid": FIRST_USER_OID,
    }
    return _columns(connection, _RESULT_COLUMNS, parameters)


def _columns(
    connection: Connection, statement: str, parameters: dict[str, Any]
) -> tuple[Column, ...]:
    return tuple(
        Column(
            name=name,
            type=type_name,
            wire="text" if via_text else wire,
            via_text=via_text,
            not_null=not_null,
            generated=generated,
            type_id=(type_oid, modifier),
            operators=operators,
        )
        for (
            name,
            type_name,
            wire,
            via_text,
            not_null,
            generated,
            type_oid,
            modifier,
            operators,
        ) in connection.execute(sql.SQL(statement), parameters)
    )


def list_relations(connection: Connection) -> list[Relation]:
    """Every relation of the user's own, for messages that suggest a name."""
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')"
        " AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'"
        " ORDER BY 1, 2 LIMIT 2000"
    )
    return [Relation(schema, name) for schema, name in rows]


def database_identity(connection: Connection) -> DatabaseIdentity:
    """The server's own identifier where it may be read, else its address."""
    row = connection.execute(
        "SELECT current_database(),"
        " coalesce(host(inet_server_addr()), 'local') || ':' || current_setting('port')"
    ).fetchone()
    assert row is not None
    database, address = row
    return DatabaseIdentity(_system(connection) or str(address), database)


def _system(connection: Connection) -> str:
    """The server's own identifier; empty where this role may not read it."""
    found = _of_control_file(connection, "system_identifier", "pg_control_system")
    return "" if found is None else str(found)


def _of_control_file(connection: Connection, name: str, function: str) -> Any:
    # The right is asked for first: the error would end the caller's transaction.
    row = connection.execute(
        "SELECT has_function_privilege(%s, 'execute')", (f"{function}()",)
    ).fetchone()
    if not (row and row[0]):
        return None
    found: Any = connection.execute(f"SELECT {name} FROM {function}()").fetchone()
    return found[0]


def read_server(connection: Connection) -> Server:
    """Which server it is, and the end of what it has safely written, or a standby replayed."""
    row = connection.execute(
        "SELECT pg_is_in_recovery(),"
        " (SELECT oid::text FROM pg_database WHERE datname = current_database())"
    ).fetchone()
    assert row is not None
    is_standby, database = row
    system = _system(connection)
    if is_standby:
        timeline = _of_control_file(connection, "timeline_id", "pg_control_checkpoint")
        replayed = connection.execute("SELECT pg_last_wal_replay_lsn()::text").fetchone()
        lsn = replayed[0] if replayed and replayed[0] else "0/0"
        return Server(system, database, timeline or 0, lsn, is_standby=True)
    try:
        with connection.transaction():
            found = connection.execute(
                "SELECT left(pg_walfile_name(l), 8), l::text FROM pg_current_wal_flush_lsn() l"
            ).fetchone()
    except (pg.FeatureNotSupported, pg.InsufficientPrivilege, pg.UndefinedFunction):
        # A server that is only like Postgres, or that somebody keeps for himself.
        return Server(system, database, 0, "0/0")
    assert found is not None
    return Server(system, database, int(found[0], 16), found[1])


def find_type(connection: Connection, type_name: str) -> str | None:
    """A type as it is written here: of the same schema, or else of one in the role's own path."""
    row = connection.execute("SELECT to_regtype(%s) IS NOT NULL", (type_name,)).fetchone()
    if row and row[0]:
        return type_name
    *schema, plain = _SCHEMA_PART.split(type_name, maxsplit=1)
    if not schema:
        return None
    with own_path(connection):
        found = connection.execute("SELECT pg_catalog.to_regtype(%s)::oid", (plain,)).fetchone()
    row = connection.execute(
        "SELECT quote_ident(nspname) || '.' FROM pg_type t JOIN pg_namespace n"
        " ON n.oid = t.typnamespace WHERE t.oid = %s::oid",
        found,
    ).fetchone()
    return f"{row[0]}{plain}" if row else None


def is_empty(connection: Connection, relation: sql.Composable) -> bool:
    row: Any = connection.execute(
        sql.SQL("SELECT NOT EXISTS (SELECT FROM {})").format(relation)
    ).fetchone()
    return bool(row[0])


def partition_oids(connection: Connection, oid: int) -> list[int]:
    """The partitions of a table, at every depth; none for a table that has none."""
    rows = connection.execute(
        "SELECT relid::oid FROM pg_partition_tree(%s) WHERE relid <> %s", (oid, oid)
    )
    return [found for (found,) in rows]


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
