"""Names of relations and of the endpoints that hold them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.errors import DeclarationError

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
