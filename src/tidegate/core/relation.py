"""Names of tables and endpoints, columns, name patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.core.errors import DeclarationError

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")
MAX_NAME_BYTES = 63
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


@dataclass(frozen=True, slots=True, order=True)
class Relation:
    """A table or view inside one database; names are exact, never folded."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{display(self.schema)}.{display(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Relation:
        """Read `schema.name` or `name`; parts with dots or quotes are written in double quotes."""
        parts: list[str] = []
        position = 0
        while True:
            match = _PART.match(text, position)
            if match is None:
                break
            quoted, plain = match.groups()
            parts.append(quoted.replace('""', '"') if quoted is not None else plain)
            position = match.end()
            if position == len(text) or text[position] != ".":
                break
            position += 1
        complete = position == len(text) and not text.endswith(".")
        if not complete or not 1 <= len(parts) <= 2 or "\0" in text:
            raise DeclarationError(
                f"{text!r} is not a table name",
                'write schema.table, with double quotes around a part that has dots: "my.table"',
            )
        long = next((part for part in parts if len(part.encode()) > MAX_NAME_BYTES), None)
        if long is not None:
            raise DeclarationError(
                f"the name {long!r} is longer than {MAX_NAME_BYTES} bytes",
                "Postgres would cut it off; choose a shorter one",
            )
        return cls(parts[0] if len(parts) == 2 else "public", parts[-1])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A relation in a named connection: `shop:public.orders`."""

    connection: str
    relation: Relation

    def __str__(self) -> str:
        return f"{self.connection}:{self.relation}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        connection, separator, relation = text.partition(":")
        if not separator or not connection.strip():
            raise DeclarationError(f"{text!r} names no connection", "write connection:schema.table")
        return cls(connection.strip(), Relation.parse(relation.strip()))


def display(part: str) -> str:
    """A name as SQL would write it; quoted unless it is plain."""
    if _PLAIN.match(part):
        return part
    return '"' + part.replace('"', '""') + '"'


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


_PATTERN_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_WILDCARD = re.compile(r"[*?]")


@dataclass(frozen=True, slots=True)
class Glob:
    """One part of a name: `*` is any text, `?` one character, unless the part was quoted."""

    text: str
    literal: bool = False

    @property
    def is_wild(self) -> bool:
        return not self.literal and _WILDCARD.search(self.text) is not None

    def matches(self, name: str) -> bool:
        """Whether the whole name fits; upper and lower case differ, as they do in Postgres."""
        return self._regex.fullmatch(name) is not None

    @property
    def like(self) -> str:
        """The same as an operand of LIKE."""
        if self.literal:
            return _escape_like(self.text)
        words = {"*": "%", "?": "_"}
        return "".join(words.get(one) or _escape_like(one) for one in self.text)

    @property
    def _regex(self) -> re.Pattern[str]:
        if self.literal:
            return re.compile(re.escape(self.text))
        words = {"*": ".*", "?": "."}
        parts = (words.get(one) or re.escape(one) for one in self.text)
        return re.compile("".join(parts), re.DOTALL)

    def __str__(self) -> str:
        return _quoted(self.text) if self.literal else self.text


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of `schema.table`; one without a schema looks at the table's name alone."""

    schema: Glob | None
    table: Glob

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read `table` or `schema.table`; a part in double quotes means just what it says."""
        parts = [Glob(part, literal) for part, literal in split_parts(text)]
        if not 1 <= len(parts) <= 2:
            raise DeclarationError(
                f"{text!r} is not a pattern of table names",
                "write table or schema.table, with * for any text and ? for one character, and "
                "double quotes around a part that has dots or means a * itself",
            )
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])

    @property
    def is_wild(self) -> bool:
        return self.table.is_wild or (self.schema is not None and self.schema.is_wild)

    def matches(self, relation: Relation) -> bool:
        fits = self.schema is None or self.schema.matches(relation.schema)
        return fits and self.table.matches(relation.name)

    def __str__(self) -> str:
        return str(self.table) if self.schema is None else f"{self.schema}.{self.table}"


def split_parts(text: str) -> list[tuple[str, bool]]:
    """The parts of a dotted name and whether each was quoted; nothing where it is malformed."""
    parts: list[tuple[str, bool]] = []
    position = 0
    while (match := _PATTERN_PART.match(text, position)) is not None:
        quoted, plain = match.groups()
        parts.append((plain, False) if quoted is None else (quoted.replace('""', '"'), True))
        position = match.end()
        if position == len(text):
            return [] if "\0" in text else parts
        if text[position] != ".":
            return []
        position += 1
    return []


def table_label(name: str) -> str:
    """A table's name as part of a sync's name; only one with dots or quotes is quoted."""
    return _quoted(name) if re.search(r'[."]', name) else name


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _escape_like(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)
