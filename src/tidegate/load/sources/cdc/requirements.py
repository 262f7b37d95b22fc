"""What cdc needs of server, table and declaration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.config.sync import Duplicates, Mode, Sync
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import RelationKind, Table, display
from tidegate.postgres.catalog import Obstacle, quoted
from tidegate.postgres.connection import Connection

STANDBY = Obstacle(
    "the source is a standby, on which nothing can be published", "connect to the primary"
)
_GENERATED_SINCE = 180000

_SERVER = """
SELECT pg_is_in_recovery(), current_setting('wal_level'),
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
           OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication'
                      AND pg_has_role(current_user, oid, 'MEMBER')),
       current_setting('max_replication_slots')::int
           - (SELECT count(*) FROM pg_replication_slots)::int,
       current_setting('max_wal_senders')::int
           - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender')::int,
       current_setting('max_slot_wal_keep_size')
"""

# The columns by which the server tells which row was updated or deleted; NULL where it cannot.
_IDENTITY = """
SELECT c.relreplident, c.relpersistence,
       (SELECT array_agg(a.attname::text)
        FROM pg_index i
        CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND i.indimmediate AND i.indisvalid
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                                  WHEN 'i' THEN i.indisreplident ELSE false END),
       format('%%I.%%I', n.nspname, c.relname),
       (SELECT quote_ident(x.relname) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
          AND i.indpred IS NULL AND i.indexprs IS NULL
          AND (SELECT bool_and(a.attnotnull) AND array_agg(a.attname::text) @> %(key)s
               FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
               WHERE k.place <= i.indnkeyatts)
        ORDER BY i.indexrelid LIMIT 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s) AND c.relkind = 'r'
ORDER BY n.nspname, c.relname
"""
_CHILDREN = """
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.inhparent = %s ORDER BY 1
"""
_DEFERRABLE = """
SELECT quote_ident(c.conname), CASE c.contype WHEN 'p' THEN 'PRIMARY KEY' ELSE 'UNIQUE' END,
       string_agg(quote_ident(a.attname), ', ' ORDER BY k.place)
FROM pg_constraint c
CROSS JOIN unnest(c.conkey) WITH ORDINALITY AS k (attnum, place)
JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
WHERE c.conrelid = %s AND c.contype IN ('p', 'u') AND c.condeferrable
GROUP BY c.oid, c.conname, c.contype HAVING bool_and(a.attname::text = ANY (%s))
ORDER BY c.contype, c.conname
"""
_LEAVES = "SELECT relid::oid FROM pg_partition_tree(%s) WHERE isleaf"
_GENERATED = """
SELECT attname, attgenerated = 's' FROM pg_attribute
WHERE attrelid = %s AND attgenerated <> '' AND attname = ANY (%s) ORDER BY attnum
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself as a source of changes."""

    standby: bool
    wal_level: str
    may_replicate: bool
    free_slots: int
    free_senders: int
    keep_limit: str
    """max_slot_wal_keep_size: after how much a slot is given up; -1 for never"""


def read_server(connection: Connection) -> ServerFacts:
    row = connection.execute(_SERVER).fetchone()
    assert row is not None
    return ServerFacts(*row)


def server_obstacles(connection: Connection, *, slots: int, senders: int) -> Iterator[Obstacle]:
    """What of the server is in the way, when so many slots and senders are still to be had."""
    facts, role = read_server(connection), quoted(connection.info.user)
    if facts.standby:
        yield STANDBY
        return
    if facts.wal_level != "logical":
        yield Obstacle(
            f'wal_level is {facts.wal_level}, and changes = "cdc" needs logical',
            "ALTER SYSTEM SET wal_level = logical, and restart the server",
        )
    if not facts.may_replicate:
        yield Obstacle(
            f"role {role} may not make or read a slot",
            f"ALTER ROLE {role} REPLICATION (on RDS: GRANT rds_replication TO {role})",
        )
    if facts.free_slots < slots:
        yield Obstacle(
            f"{facts.free_slots} of max_replication_slots are free, and {slots} are needed",
            "raise max_replication_slots, or drop a slot that nobody uses: see "
            "pg_replication_slots",
        )
    if facts.free_senders < senders:
        yield Obstacle(
            f"{facts.free_senders} of max_wal_senders are free, and {senders} are needed for the "
            "first copy",
            "raise max_wal_senders",
        )


def table_obstacles(
    connection: Connection, table: Table, key: Sequence[str], columns: Sequence[str]
) -> Iterator[Obstacle]:
    """What of the table is in the way."""
    if table.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        yield Obstacle(
            f"{table.relation} is not a table, and only tables have changes that can be decoded",
            'name the table itself, or use changes = "cursor"',
        )
        return
    yield from _inheritance_obstacles(connection, table)
    yield from _key_obstacles(connection, table, key)
    yield from _identity_obstacles(connection, table, key)
    yield from _generated_obstacles(connection, table, columns)


def _inheritance_obstacles(connection: Connection, table: Table) -> Iterator[Obstacle]:
    """Rows of such tables are read with this one, and told as changes of another."""
    if table.kind is RelationKind.TABLE:
        for (name,) in connection.execute(_CHILDREN, (table.oid,)):
            yield Obstacle(
                f"{name} inherits from {table.relation}, which shows its rows, and has changes of "
                "its own",
                'use changes = "cursor", or make it a partition of a partitioned table',
            )


def _key_obstacles(connection: Connection, table: Table, key: Sequence[str]) -> Iterator[Obstacle]:
    """Changes are folded by key, row by row: at no moment may two rows have the same one."""
    words, name = ", ".join(map(quoted, key)), table.relation
    if not table.proves_unique(tuple(key)):
        others = [f"key = {json.dumps(unique, ensure_ascii=False)}" for unique in table.unique_keys]
        deferrable = connection.execute(_DEFERRABLE, (table.oid, list(key))).fetchone()
        if deferrable is None:
            others = others or [f"CREATE UNIQUE INDEX ON {name} ({words})"]
            what = f"no unique index proves that one row of {name} has the key ({words})"
        else:
            constraint, kind, columns = deferrable
            others.append(
                f"ALTER TABLE {name} DROP CONSTRAINT {constraint}, ADD CONSTRAINT {constraint} "
                f"{kind} ({columns})"
            )
            what = (
                f"constraint {constraint} is DEFERRABLE, so that two rows of {name} may "
                f"have one key ({words}) until their transaction ends, and changes are told row by "
                "row"
            )
        yield Obstacle(what, f"use a key that is unique at every moment: {'; or '.join(others)}")
    for one in key:
        column = table.column(one)
        if column is not None and not column.not_null:
            yield Obstacle(
                f"column {one} may be NULL, and no index keeps rows without a key apart",
                f"ALTER TABLE {name} ALTER COLUMN {quoted(one)} SET NOT NULL",
            )


def _identity_obstacles(
    connection: Connection, table: Table, key: Sequence[str]
) -> Iterator[Obstacle]:
    """Without an identity the server would refuse the owner's own UPDATE once it is published."""
    oids = [table.oid]
    if table.kind is RelationKind.PARTITIONED:
        oids = [oid for (oid,) in connection.execute(_LEAVES, (table.oid,))]
    parameters = {"oids": oids, "key": list(key)}
    for identity, persistence, found, name, index in connection.execute(_IDENTITY, parameters):
        if persistence != "p":
            yield Obstacle(
                f"{name} is unlogged, so its changes are in no log",
                f"ALTER TABLE {name} SET LOGGED",
            )
        elif identity != "f" and found is None:
            yield Obstacle(
                f"{name} has no replica identity: once it is published, the server would refuse "
                "every UPDATE and DELETE on it",
                f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}"
                if index
                else "give it a primary key that is not DEFERRABLE, or: ALTER TABLE "
                f"{name} REPLICA IDENTITY FULL",
            )
        elif identity != "f" and not set(key) <= set(found):
            yield Obstacle(
                f"the key ({', '.join(key)}) is not part of the replica identity of {name} "
                f"({', '.join(found)}), so a delete would not tell which row it was",
                f"leave the key out, or: ALTER TABLE {name} REPLICA IDENTITY FULL",
            )


def _generated_obstacles(
    connection: Connection, table: Table, columns: Sequence[str]
) -> Iterator[Obstacle]:
    told = connection.info.server_version >= _GENERATED_SINCE
    for name, stored in connection.execute(_GENERATED, (table.oid, list(columns))):
        if not (stored and told):
            yield Obstacle(
                f"column {name} of {table.relation} is generated, and the server does not publish "
                "it",
                f'leave it out: exclude_columns = ["{display(name)}"]',
            )


def loads_generated(connection: Connection, table: Table, columns: Sequence[str]) -> bool:
    """Whether a column that the source computes is among those that are loaded."""
    return connection.execute(_GENERATED, (table.oid, list(columns))).fetchone() is not None


def toast_obstacles(
    connection: Connection, table: Table, *, transformed: bool
) -> Iterator[Obstacle]:
    """Values that did not change are not told, and a transformed target does not hold them."""
    if not transformed or table.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        return
    oids = [table.oid]
    if table.kind is RelationKind.PARTITIONED:
        oids = [oid for (oid,) in connection.execute(_LEAVES, (table.oid,))]
    row = connection.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s) AND c.reltoastrelid <> 0 AND c.relreplident <> 'f'"
        " ORDER BY 1 LIMIT 1",
        (oids,),
    ).fetchone()
    if row is not None:
        yield Obstacle(
            f"{row[0]} may hold values too large for a row, which an update that leaves them alone "
            "does not tell, and the transformation needs them",
            f"ALTER TABLE {row[0]} REPLICA IDENTITY FULL, or leave the transformation out",
        )


def refuse_with_cdc(sync: Sync) -> None:
    """Refuse what has no meaning where every change is told."""
    what = f'sync {sync.name}: changes = "cdc"'
    if sync.lake_source:
        raise DeclarationError(
            f"{what} is for tables of Postgres, and {sync.source} is one of a lake",
            "leave changes out: a lake's snapshots tell what changed",
        )
    if sync.mode is not Mode.MERGE:
        raise DeclarationError(
            f'{what} keeps the target as its source is, which mode = "{sync.mode}" does not',
            'use mode = "merge"',
        )
    if sync.query is not None:
        raise DeclarationError(
            f"{what} reads the changes of a table, and a query has none",
            'name the table, such as source = "shop:public.orders"',
        )
    if sync.where is not None:
        raise DeclarationError(
            f"{what} loads every row of the table, so where is not available",
            "leave it out, and leave rows out in a view upon the target",
        )
    if sync.cursor is not None:
        raise DeclarationError(
            f"{what} is ordered by the source's log, so cursor = {sync.cursor!r} means nothing",
            "remove the cursor",
        )
    if sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f'{what} needs a key that identifies a row, so duplicates = "newest" means nothing',
            "choose a unique key",
        )
    if sync.checks:
        raise DeclarationError(
            f"{what} may tell of a row without the values that did not change, which are taken "
            "from the target; a row that was set aside by its checks has none there",
            "remove the checks, or check in a view upon the target",
        )
