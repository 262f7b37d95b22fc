"""Rows that fail their checks: kept in `<table>_rejected`, in the commit that left them out."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import RowCheck, Rules
from tidegate.core.errors import KEY_IN_LOG, ChecksFailed, DeclarationError
from tidegate.core.relation import MAX_NAME_BYTES, Relation
from tidegate.core.shape import Shape
from tidegate.load.targets.postgres.statements import is_gone
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import column_list, condition, qualified

SUFFIX = "_rejected"
COLUMNS = ("id", "update_id", "rejected_at", "failed", "key", "row")
# No column of a user's is called so.
_FOUND = "tidegate: failed"


def rejected_table(relation: Relation) -> Relation:
    """Where the rows of a target that fail their checks are kept."""
    return Relation(relation.schema, relation.name + SUFFIX)


def ensure_rejected(connection: Connection, relation: Relation, shape: Shape, rules: Rules) -> None:
    """Make the table for rows that fail their checks."""
    if not rules.checks:
        return
    if len((relation.name + SUFFIX).encode()) > MAX_NAME_BYTES:
        raise DeclarationError(
            f"{relation} is too long a name: rows that fail their checks go to "
            f"{relation.name}{SUFFIX}",
            f"choose a target of at most {MAX_NAME_BYTES - len(SUFFIX)} bytes",
        )
    table = qualified(rejected_table(relation))
    try:
        with connection.transaction():
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} ("
                    "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
                    " update_id text NOT NULL, rejected_at timestamptz NOT NULL DEFAULT now(),"
                    " failed text[] NOT NULL, key jsonb NOT NULL, row jsonb NOT NULL)"
                ).format(table)
            )
            connection.execute(
                sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING hash (key)").format(
                    sql.Identifier(f"{relation.name[:40]}_rejected_key"), table
                )
            )
    except (pg.DuplicateTable, pg.UniqueViolation):
        return


def check_conditions(connection: Connection, shape: Shape, checks: Sequence[RowCheck]) -> None:
    """Evaluate every check over no rows at all."""
    nothing = sql.SQL(", ").join(
        sql.SQL("NULL::{} AS {}").format(sql.SQL(column.target_type), sql.Identifier(column.name))
        for column in shape.columns
    )
    for check in checks:
        try:
            connection.execute(
                sql.SQL("SELECT FROM (SELECT {}) s WHERE {} IS NOT FALSE").format(
                    nothing, condition(check.condition)
                )
            )
        except psycopg.Error as error:
            raise DeclarationError(
                f"check {check.name} cannot be evaluated: {first_line(error)}",
                "write a condition over the columns of the target, such as total >= 0",
            ) from None


def passing_rows(rows: sql.Composable, shape: Shape, rules: Rules) -> sql.Composed:
    """The rows that meet every check, and those that say what is gone."""
    met = sql.SQL(" AND ").join(
        sql.SQL("{} IS NOT FALSE").format(condition(check.condition)) for check in rules.checks
    )
    if shape.deleted is not None:
        # Only CASE keeps a condition from being evaluated over values that mean nothing.
        met = sql.SQL("CASE WHEN {} THEN true ELSE {} END").format(is_gone(shape), met)
    return sql.SQL("SELECT * FROM ({}) c WHERE {}").format(rows, met)


def set_aside(
    connection: Connection,
    relation: Relation,
    rows: sql.Composable,
    shape: Shape,
    rules: Rules,
    update_id: str,
    total: int,
    *,
    full: bool,
) -> int:
    """Keep the rows that fail, forget those that failed before and came again; returns how many."""
    table = qualified(rejected_table(relation))
    if full:
        connection.execute(sql.SQL("DELETE FROM {}").format(table))
    elif shape.key:
        connection.execute(
            sql.SQL("DELETE FROM {} r USING ({}) c WHERE r.key = {}").format(
                table, rows, _key("c", shape)
            )
        )
    failed = sql.SQL("pg_catalog.array_remove(ARRAY[{}]::text[], NULL)").format(
        sql.SQL(", ").join(
            sql.SQL("CASE WHEN {} IS FALSE THEN {} END").format(
                condition(check.condition), sql.Literal(check.name)
            )
            for check in rules.checks
        )
    )
    if shape.deleted is not None:
        failed = sql.SQL("CASE WHEN {} THEN '{{}}'::text[] ELSE {} END").format(
            is_gone(shape), failed
        )
    rejected = connection.execute(
        sql.SQL(
            "INSERT INTO {table} (update_id, failed, key, row)"
            " SELECT {update_id}, {found}, {key}, pg_catalog.to_jsonb(f) - {found_name}::text FROM"
            " (SELECT {names}, {failed} AS {found} FROM ({rows}) c) f"
            " WHERE pg_catalog.cardinality({found}) > 0"
        ).format(
            table=table,
            update_id=sql.Literal(update_id),
            key=_key("f", shape),
            names=column_list(shape.names, "c"),
            failed=failed,
            found=sql.Identifier(_FOUND),
            found_name=sql.Literal(_FOUND),
            rows=rows,
        )
    ).rowcount
    if rejected > rules.allowed_rejects(total):
        raise _too_many(connection, table, update_id, relation, rejected, total, rules)
    return rejected


def _too_many(
    connection: Connection,
    table: sql.Identifier,
    update_id: str,
    relation: Relation,
    rejected: int,
    total: int,
    rules: Rules,
) -> ChecksFailed:
    counts = connection.execute(
        sql.SQL(
            "SELECT name, count(*) FROM {} r, unnest(r.failed) AS name WHERE r.update_id = {}"
            " GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5"
        ).format(table, sql.Literal(update_id))
    ).fetchall()
    example = connection.execute(
        sql.SQL("SELECT key::text FROM {} WHERE update_id = {} ORDER BY id LIMIT 1").format(
            table, sql.Literal(update_id)
        )
    ).fetchone()
    named = ", ".join(f"{name} ({count:,})" for name, count in counts)
    return ChecksFailed(
        f"{rejected:,} of {total:,} rows for {relation} fail their checks: {named}; "
        f"reject_limit allows {rules.reject_limit:.2%}",
        "nothing was loaded: mend the rows at the source, or the check, or raise reject_limit"
        + (f"; {KEY_IN_LOG}" if example else ""),
        detail=f"the first has the key {example[0]}" if example else None,
    )


def _key(alias: str, shape: Shape) -> sql.Composable:
    if not shape.key:
        return sql.SQL("'{{}}'::jsonb").format()
    return sql.SQL("pg_catalog.jsonb_build_object({})").format(
        sql.SQL(", ").join(
            sql.SQL("{}, {}").format(sql.Literal(name), sql.Identifier(alias, name))
            for name in shape.key
        )
    )
