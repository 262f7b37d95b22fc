"""Columns and tables as a destination or source describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.model.relation import Relation


class RelationKind(StrEnum):
    """The kinds of relation a sync may read."""

    TABLE = "r"
    PARTITIONED = "p"
    VIEW = "v"
    MATERIALIZED_VIEW = "m"
    FOREIGN = "f"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `wire` is the built-in type in which its values travel, `via_text` if cast."""

    name: str
    type: str
    wire: str
    via_text: bool
    not_null: bool
    generated: bool = False
    operators: str | None = None
    """the schema in which its type's own comparisons lie, where they are not built in"""
    type_id: tuple[int, int] = field(default=(0, -1), compare=False)
    """the catalog's own id of the type, a domain's base, and its modifier"""


@dataclass(frozen=True, slots=True)
class Table:
    """A relation with what is known of it."""

    relation: Relation
    oid: int
    kind: RelationKind
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]
    leading_index_columns: frozenset[str]
    estimated_rows: int
    pages: int
    query: str | None = None
    """the text that is read in place of a relation"""
    is_wholly_readable: bool = True
    """as opposed to column by column, which leaves out where a row lies"""

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def has_blocks(self) -> bool:
        """Whether its rows lie in blocks of its own that this role may read apart."""
        blocks = self.kind in (RelationKind.TABLE, RelationKind.MATERIALIZED_VIEW)
        return blocks and self.is_wholly_readable

    def proves_unique(self, key: tuple[str, ...]) -> bool:
        """Whether an index guarantees that no two rows share this key."""
        wanted = set(key)
        return any(set(unique) <= wanted for unique in self.unique_keys)
