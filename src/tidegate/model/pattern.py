"""Patterns over the names of tables: `public.*`, `*.*`, `order_?`, `"a literal * name"`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.errors import DeclarationError
from tidegate.model.relation import Relation

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
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
    while (match := _PART.match(text, position)) is not None:
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
