"""What makes changing a column slow or impossible, or keeps rows out, as the catalog tells it."""

from __future__ import annotations

from tidegate.model.column import Table
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import partition_oids
from tidegate.postgres.connect import Connection


def views_on(connection: Connection, table: Table, column: str, ours: Relation) -> list[str]:
    """Views of other people that read a column, and so hold its type."""
    rows = connection.execute(
        "SELECT DISTINCT format('%%I.%%I', n.nspname, v.relname) FROM pg_depend d"
        " JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass"
        " JOIN pg_class v ON v.oid = r.ev_class JOIN pg_namespace n ON n.oid = v.relnamespace"
        " JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
        " WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND a.attname = %s"
        " AND (n.nspname, v.relname) <> (%s, %s) ORDER BY 1",
        (table.oid, column, ours.schema, ours.name),
    )
    return [name for (name,) in rows]


def is_examined(connection: Connection, table: Table, column: str) -> bool:
    """Whether a constraint or an index over an expression must look at every row again."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_constraint c JOIN pg_attribute a"
        " ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)"
        " WHERE c.conrelid = %(oid)s AND c.contype IN ('c', 'x') AND a.attname = %(column)s)"
        " OR EXISTS (SELECT FROM pg_index i JOIN pg_depend d ON d.objid = i.indexrelid"
        " AND d.classid = 'pg_class'::regclass AND d.refobjid = i.indrelid"
        " JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
        " WHERE i.indrelid = %(oid)s AND a.attname = %(column)s"
        " AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))",
        {"oid": table.oid, "column": column},
    ).fetchone()
    return bool(row and row[0])


def size_bytes(connection: Connection, table: Table) -> int:
    """How much a table holds, with its indexes and partitions."""
    row = connection.execute(
        "SELECT sum(pg_total_relation_size(one))::bigint FROM unnest(%s::oid[]) AS one",
        ([table.oid, *partition_oids(connection, table.oid)],),
    ).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def row_triggers(connection: Connection, relation: Relation) -> list[str]:
    """Triggers that see each row before it is put in, and may leave it out; of partitions too."""
    rows = connection.execute(
        "WITH own AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s)"
        " SELECT DISTINCT tgname::text FROM pg_trigger WHERE tgrelid IN"
        " (SELECT oid FROM own UNION SELECT relid FROM own, pg_partition_tree(own.oid))"
        # Of each row, before, and on INSERT or UPDATE, as the bits of pg_trigger.h have it.
        " AND NOT tgisinternal AND tgenabled IN ('O', 'A')"
        " AND (tgtype & 3) = 3 AND (tgtype & 20) <> 0 ORDER BY 1",
        (relation.schema, relation.name),
    )
    return [name for (name,) in rows]


def has_default(connection: Connection, table: Table, column: str) -> bool:
    """Whether the table fills a column by itself."""
    row = connection.execute(
        "SELECT atthasdef OR attidentity <> '' FROM pg_attribute"
        " WHERE attrelid = %s AND attname = %s",
        (table.oid, column),
    ).fetchone()
    return bool(row and row[0])
