"""The statements that read a lake's table: as it was at a snapshot, or what changed since one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.lake.catalog import backticked, literal
from tidegate.lake.session import LakeSession
from tidegate.model.lake import Field, LakeTable, is_flat
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES = "tidegate_changes"
# Types whose values cannot be compared as they are, and are compared as their text.
_NESTED = ("struct<", "list<", "map<")


def rows_at(
    session: LakeSession, table: LakeTable, columns: Sequence[Field], snapshot: int | None
) -> str:
    """The rows at a snapshot, in the names and types that the columns have now."""
    name = session.catalog.quoted(table.relation)
    if snapshot is None:
        names = ", ".join(backticked(one.name) for one in columns)
        return f"SELECT {names} FROM {name} LIMIT 0"
    before = table.names_at(snapshot)
    parts = ", ".join(_as_now(one, before.get(one.field_id)) for one in columns)
    return f"SELECT {parts} FROM {name} VERSION AS OF {snapshot}"


def added_rows(
    session: LakeSession, table: LakeTable, columns: Sequence[Field], low: int, high: int
) -> DataFrame:
    """The rows that appends have brought after one snapshot, up to another."""
    return (
        session.spark.read.option("start-snapshot-id", str(low))
        .option("end-snapshot-id", str(high))
        .table(session.catalog.quoted(table.relation))
        .select(*(backticked(one.name) for one in columns))
    )


def changed_rows(old: str, new: str, columns: Sequence[Field], key: Sequence[str]) -> str:
    """The rows that are new or not as they were, from the whole table at both moments."""
    same = _same(key)
    others = [one for one in columns if one.name not in key]
    equal = "".join(f" AND {_comparable('n', one)} <=> {_comparable('o', one)}" for one in others)
    return f"SELECT n.* FROM ({new}) n LEFT ANTI JOIN ({old}) o ON {same}{equal}"


def gone_keys(old: str, new: str, key: Sequence[str]) -> str:
    """The keys that were there and are not any more."""
    names = ", ".join(f"o.{backticked(name)}" for name in key)
    return f"SELECT {names} FROM ({old}) o LEFT ANTI JOIN ({new}) n ON {_same(key)}"


def open_changelog(session: LakeSession, relation: Relation, low: int, high: int) -> None:
    """Make Iceberg's own view of what changed; rows that came and went are not in it."""
    session.run(
        f"CALL {backticked(session.catalog.name)}.system.create_changelog_view("
        f"table => {literal(session.catalog.procedure_name(relation))}, "
        f"changelog_view => {literal(_CHANGES)}, "
        f"options => map('start-snapshot-id', '{low}', 'end-snapshot-id', '{high}'), "
        "net_changes => true)"
    )


def changelog_rows(columns: Sequence[str], change: str) -> str:
    """What the open changelog says was inserted or deleted."""
    names = ", ".join(map(backticked, columns))
    return f"SELECT {names} FROM {_CHANGES} WHERE _change_type = {literal(change)}"


def _as_now(column: Field, name: str | None) -> str:
    value = "NULL" if name is None else backticked(name)
    if is_flat(column.type):
        value = f"CAST({value} AS {column.type})"
    return f"{value} AS {backticked(column.name)}"


def _comparable(alias: str, column: Field) -> str:
    name = f"{alias}.{backticked(column.name)}"
    return f"to_json({name})" if column.type.startswith(_NESTED) else name


def _same(key: Sequence[str]) -> str:
    return " AND ".join(f"n.{backticked(name)} = o.{backticked(name)}" for name in key)
