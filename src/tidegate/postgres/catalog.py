"""What the system catalog says about relations and databases."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from tidegate.model.column import Column, RelationKind, Table
from tidegate.model.identity import DatabaseIdentity
from tidegate.model.relation import Relation
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import subquery

FIRST_USER_OID = 16384

# A value travels in its own binary form when its type means the same in every server: built in,
# with a send function, and not naming a catalog object. A domain travels as its base type,
# however many domains lie in between.
_TYPE = """
       format_type(given.type, given.mod),
       format_type(base.oid, plain.typmod),
       base.oid >= %(first_user_oid)s OR base.typsend = 0 OR base.typname LIKE 'reg%%'
           OR base.typtype NOT IN ('b', 'r', 'm')
           OR coalesce(element.oid >= %(first_user_oid)s OR element.typname LIKE 'reg%%'
                       OR element.typtype = 'c', false),
       given.not_null OR plain.not_null,
       given.generated
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


def describe_table(connection: Connection, relation: Relation) -> Table | None:
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
        )
        for name, type_name, wire, via_text, not_null, generated in connection.execute(
            sql.SQL(statement), parameters
        )
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
        " has_function_privilege('pg_control_system()', 'execute'),"
        " coalesce(host(inet_server_addr()), 'local') || ':' || current_setting('port')"
    ).fetchone()
    assert row is not None
    database, may_read, address = row
    if may_read:
        found = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        assert found is not None
        return DatabaseIdentity(str(found[0]), database)
    return DatabaseIdentity(str(address), database)


def type_exists(connection: Connection, type_name: str) -> bool:
    """Whether a type written as Postgres formats it can be used here."""
    row = connection.execute("SELECT to_regtype(%s) IS NOT NULL", (type_name,)).fetchone()
    return bool(row and row[0])


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
