"""The landing table: folded changes as texts, beside what is needed to fold them further."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import sql

from tidegate.errors import DeclarationError
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list

NUMBER = "tidegate_number"
"""rises with every row: what comes later counts"""
DELETED = "tidegate_deleted"
"""hard deletes: the row with this key is gone"""
DELETED_AT = "deleted_at"
"""soft deletes: when it went; a column of the target as well"""
UNCHANGED = "tidegate_unchanged"
"""a text with a 1 at the place of each column whose value is that of the row `base`"""
BASE = "tidegate_base_"
"""and a number: the key of that row"""

_BLOCK_BYTES = 1 << 18


@dataclass(slots=True)
class LandingTable:
    """A table of one attempt, filled within one transaction."""

    connection: Connection
    table: sql.Identifier
    key: tuple[str, ...]
    soft: bool
    names: list[str] = field(default_factory=list)
    """every column that any row had, in the order of the marks of `UNCHANGED`"""

    @property
    def _own(self) -> list[tuple[str, str]]:
        flag = (DELETED_AT, "timestamptz") if self.soft else (DELETED, "boolean")
        bases = [(f"{BASE}{place}", "text") for place in range(len(self.key))]
        return [(NUMBER, "bigint"), flag, (UNCHANGED, "text"), *bases]

    def provide(self, names: Sequence[str]) -> None:
        """Make the table, or give it the columns that it lacks."""
        taken = {name for name, _ in self._own}
        clash = next((name for name in names if name in taken), None)
        if clash is not None:
            raise DeclarationError(
                f"the source has a column {clash}, which changes are loaded with",
                "rename that column at the source, or leave it out with exclude_columns",
            )
        new = [name for name in names if name not in self.names]
        columns = [(name, "text") for name in new]
        if not self.names:
            self.connection.execute(
                sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
                    self.table, _definitions([*self._own, *columns])
                )
            )
        elif new:
            self.connection.execute(
                sql.SQL("ALTER TABLE {} {}").format(
                    self.table,
                    sql.SQL(", ").join(
                        sql.SQL("ADD COLUMN {}").format(_definitions([one])) for one in columns
                    ),
                )
            )
        self.names += new

    def write(self, rows: Iterable[bytes], names: Sequence[str]) -> int:
        """Put rows in by one binary COPY, in large blocks; how many they were."""
        into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
            self.table, column_list([*(name for name, _ in self._own), *names])
        )
        cursor = self.connection.cursor()
        with cursor.copy(into) as copy:
            for block in _blocks(rows):
                copy.write(block)
        return cursor.rowcount

    def clear(self) -> None:
        """Everything that was landed so far is gone."""
        if self.names:
            self.connection.execute(sql.SQL("TRUNCATE {}").format(self.table))

    def mark_all(self, deleted_at: datetime) -> None:
        """Everything that was landed so far, and not deleted then, is now."""
        if self.names:
            self.connection.execute(
                sql.SQL("UPDATE {} SET {name} = %s WHERE {name} IS NULL").format(
                    self.table, name=sql.Identifier(DELETED_AT)
                ),
                (deleted_at,),
            )


def _blocks(rows: Iterable[bytes]) -> Iterable[bytes]:
    block = [b"PGCOPY\n\xff\r\n\0" + bytes(8)]
    size = 0
    for row in rows:
        block.append(row)
        size += len(row)
        if size >= _BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    block.append(b"\xff\xff")
    yield b"".join(block)


def _definitions(columns: Sequence[tuple[str, str]]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns
    )
