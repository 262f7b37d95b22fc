"""The statements that a lake is worked with, in Spark's SQL; every name in them is quoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.iceberg.catalog import Catalog, backticked, literal
from tidegate.iceberg.table import MAIN

STAGED = "tidegate_staged"
"""the view of the staged rows"""


def create_namespace(catalog: Catalog, relation: Relation) -> str:
    name = f"{backticked(catalog.name)}.{backticked(relation.schema)}"
    return f"CREATE NAMESPACE IF NOT EXISTS {name}"


def create_table(
    catalog: Catalog,
    relation: Relation,
    columns: Sequence[tuple[str, str]],
    *,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> str:
    parts = [
        f"CREATE TABLE IF NOT EXISTS {catalog.quoted(relation)} (",
        ", ".join(f"{backticked(name)} {kind}" for name, kind in columns),
        ") USING iceberg",
    ]
    if partition_by:
        parts.append(f" PARTITIONED BY ({', '.join(partition_by)})")
    if properties:
        texts = (f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        parts.append(f" TBLPROPERTIES ({', '.join(texts)})")
    return "".join(parts)


def order_table(catalog: Catalog, relation: Relation, sort_by: Sequence[str]) -> str:
    return f"ALTER TABLE {catalog.quoted(relation)} WRITE ORDERED BY {', '.join(sort_by)}"


def add_columns(catalog: Catalog, relation: Relation, columns: Sequence[tuple[str, str]]) -> str:
    texts = ", ".join(f"{backticked(name)} {kind}" for name, kind in columns)
    return f"ALTER TABLE {catalog.quoted(relation)} ADD COLUMNS ({texts})"


def widen_column(catalog: Catalog, relation: Relation, name: str, kind: str) -> str:
    return f"ALTER TABLE {catalog.quoted(relation)} ALTER COLUMN {backticked(name)} TYPE {kind}"


def create_branch(catalog: Catalog, relation: Relation, branch: str) -> str:
    return f"ALTER TABLE {catalog.quoted(relation)} CREATE OR REPLACE BRANCH {backticked(branch)}"


def drop_branch(catalog: Catalog, relation: Relation, branch: str) -> str:
    return f"ALTER TABLE {catalog.quoted(relation)} DROP BRANCH IF EXISTS {backticked(branch)}"


def fast_forward(catalog: Catalog, relation: Relation, branch: str) -> str:
    table = literal(catalog.procedure_name(relation))
    return (
        f"CALL {backticked(catalog.name)}.system.fast_forward("
        f"table => {table}, branch => {literal(MAIN)}, to => {literal(branch)})"
    )


def pick_snapshot(catalog: Catalog, relation: Relation, snapshot_id: int) -> str:
    """Put what a snapshot added behind whatever main is by now; Iceberg does it once at most."""
    return (
        f"CALL {backticked(catalog.name)}.system.cherrypick_snapshot("
        f"table => {literal(catalog.procedure_name(relation))}, snapshot_id => {snapshot_id})"
    )


def branch_table(catalog: Catalog, relation: Relation, branch: str | None) -> str:
    """What is written to: a branch, or main."""
    return catalog.quoted(relation, *([] if branch is None else [f"branch_{branch}"]))


def newest_rows(rows: str, shape: Shape) -> str:
    """One row per key, in a total order: the highest cursor, then the highest content.

    A deleted row without a cursor is the newest of its key, and of two with one cursor the deleted.
    """
    key = ", ".join(map(backticked, shape.key))
    order = [f"{backticked(shape.cursor)} DESC NULLS LAST"] if shape.cursor else []
    if shape.deleted is not None:
        gone = is_gone(shape)
        if shape.cursor is not None:
            order.insert(0, f"({gone} AND {backticked(shape.cursor)} IS NULL) DESC")
        order.append(f"{gone} DESC")
    order += [f"{backticked(name)} DESC NULLS LAST" for name in shape.names]
    return (
        f"(SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY "
        f"{', '.join(order)}) AS tidegate_rank FROM {rows}) WHERE tidegate_rank = 1)"
    )


def is_gone(shape: Shape, alias: str | None = None) -> str:
    """Whether a staged row says that the row with its key is gone."""
    assert shape.deleted is not None
    flag = backticked(shape.deleted)
    return f"coalesce({flag if alias is None else f'{alias}.{flag}'}, false)"


def insert_rows(into: str, rows: str, shape: Shape, *, overwrite: bool = False) -> str:
    names = ", ".join(map(backticked, shape.names))
    verb = "INSERT OVERWRITE" if overwrite else "INSERT INTO"
    kept = "" if shape.deleted is None else f" WHERE NOT {is_gone(shape)}"
    return f"{verb} {into} ({names}) SELECT {names} FROM {rows}{kept}"


def find_row(table: str) -> str:
    """Any row at all."""
    return f"SELECT 1 FROM {table} LIMIT 1"


def no_rows(shape: Shape) -> str:
    """Staged rows of which there are none."""
    columns = ", ".join(
        f"CAST(NULL AS {kind}) AS {backticked(name)}" for name, kind in shape.staged
    )
    return f"(SELECT {columns} WHERE false)"


def replace_part(into: str, rows: str, shape: Shape, within: Sequence[tuple[str, object]]) -> str:
    """Put rows in the place of a part of the table, in one commit."""
    names = ", ".join(map(backticked, shape.names))
    given = ", ".join(f"s.{backticked(name)}" for name in shape.names)
    return (
        f"MERGE INTO {into} t USING {rows} s ON false"
        f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({given})"
        f" WHEN NOT MATCHED BY SOURCE AND {part_condition(shape, within, 't.')} THEN DELETE"
    )


def count_outside(rows: str, shape: Shape, within: Sequence[tuple[str, object]]) -> str:
    """How many rows lie outside the part that they are to replace."""
    return f"SELECT count(*) FROM {rows} WHERE NOT coalesce({part_condition(shape, within)}, false)"


def part_condition(shape: Shape, within: Sequence[tuple[str, object]], alias: str = "") -> str:
    """Whether a row belongs to a part: each value read as its column's own type."""
    kinds = dict(shape.staged)
    return " AND ".join(
        f"{alias}{backticked(name)} = CAST({literal(_text(value))} AS {kinds[name]})"
        for name, value in within
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_bounds(rows: str, shape: Shape) -> str | None:
    """The lowest and the highest value of each part of the key, as text; None where it is vain."""
    parts = [
        f"CAST({function}({backticked(name)}) AS string)"
        for name in _bounded(shape)
        for function in ("min", "max")
    ]
    return f"SELECT {', '.join(parts)} FROM {rows}" if parts else None


def merge_rows(
    into: str,
    rows: str,
    shape: Shape,
    *,
    newest_wins: bool,
    full: bool,
    bounds: Sequence[object] = (),
    all_newer: bool = False,
) -> str:
    """Upsert in one commit; rows that would not change anything are left alone.

    Where all rows are known to be newer than what is there, nothing but the key is compared, and
    nothing but the key has to be read. With the bounds of the staged keys Iceberg knows which
    commits of others do not concern it.
    """
    others = [name for name in shape.names if name not in shape.key]
    same = " AND ".join(
        [
            *(f"t.{backticked(name)} = s.{backticked(name)}" for name in shape.key),
            *_within(shape, bounds),
        ]
    )
    parts = [f"MERGE INTO {into} t USING {rows} s ON {same}"]
    missing = "NOT MATCHED"
    if shape.deleted is not None:
        parts.append(f"WHEN MATCHED AND {is_gone(shape, 's')} THEN DELETE")
        missing += f" AND NOT {is_gone(shape, 's')}"
    if others:
        equal = " AND ".join(f"t.{backticked(name)} <=> s.{backticked(name)}" for name in others)
        condition = "" if all_newer else f" AND NOT ({equal})"
        if newest_wins and not all_newer and shape.cursor is not None:
            cursor = backticked(shape.cursor)
            condition += (
                f" AND (t.{cursor} <= s.{cursor} OR t.{cursor} IS NULL OR s.{cursor} IS NULL)"
            )
        values = ", ".join(f"t.{backticked(name)} = s.{backticked(name)}" for name in others)
        parts.append(f"WHEN MATCHED{condition} THEN UPDATE SET {values}")
    names = ", ".join(map(backticked, shape.names))
    given = ", ".join(f"s.{backticked(name)}" for name in shape.names)
    parts.append(f"WHEN {missing} THEN INSERT ({names}) VALUES ({given})")
    if full:
        parts.append("WHEN NOT MATCHED BY SOURCE THEN DELETE")
    return " ".join(parts)


def _bounded(shape: Shape) -> list[str]:
    """The parts of the key that are the same once they were text; bytes and fractions need not."""
    kinds = dict(shape.staged)
    return [name for name in shape.key if kinds[name] not in ("binary", "float", "double")]


def _within(shape: Shape, bounds: Sequence[object]) -> list[str]:
    kinds = dict(shape.staged)
    sides = [(name, side) for name in _bounded(shape) for side in (">=", "<=")]
    return [
        f"t.{backticked(name)} {side} CAST({literal(str(bound))} AS {kinds[name]})"
        for (name, side), bound in zip(sides, bounds, strict=False)
        if bound is not None
    ]


def count_keyless(rows: str, shape: Shape) -> str:
    """How many rows have no value in their key."""
    missing = " OR ".join(f"{backticked(name)} IS NULL" for name in shape.key)
    return f"SELECT count(*) FROM {rows} WHERE {missing}"


def count_others(table: str, rows: str, shape: Shape) -> str:
    """How many rows of a table have a key that none of these rows has."""
    same = " AND ".join(f"t.{backticked(name)} = s.{backticked(name)}" for name in shape.key)
    return f"SELECT count(*) FROM {table} t LEFT ANTI JOIN {rows} s ON {same}"


def find_duplicate(rows: str, shape: Shape) -> str:
    """One key that occurs more than once, and how often."""
    key = ", ".join(map(backticked, shape.key))
    texts = ", ".join(f"CAST({backticked(name)} AS string)" for name in shape.key)
    return (
        f"SELECT concat('(', concat_ws(',', {texts}), ')'), count(*) FROM {rows} "
        f"GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
    )
