"""A group: one declaration for every table that its source pattern matches."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.model.pattern import Glob, Pattern, split_parts, table_label
from tidegate.model.relation import Endpoint, Relation
from tidegate.model.sync import Sync

_FIELD = re.compile(r"\{(table|schema)\}")


@dataclass(frozen=True, slots=True)
class TargetTemplate:
    """Where the tables of a group go: `warehouse:raw.{table}`; a quoted part is literal."""

    connection: str
    schema: Glob
    table: Glob

    @classmethod
    def parse(cls, text: str) -> TargetTemplate | None:
        """Read a target; None when it is no name of a table."""
        connection, _, relation = text.partition(":")
        parts = [Glob(part, literal) for part, literal in split_parts(relation.strip())]
        if not 1 <= len(parts) <= 2:
            return None
        schema = parts[0] if len(parts) == 2 else Glob("public", literal=True)
        return cls(connection.strip(), schema, parts[-1])

    @property
    def fields(self) -> frozenset[str]:
        """Which of `{table}` and `{schema}` it uses."""
        parts = (part.text for part in (self.schema, self.table) if not part.literal)
        return frozenset(field for text in parts for field in _FIELD.findall(text))

    def of(self, relation: Relation) -> Endpoint:
        """The target of one table; its length is checked when it is resolved."""
        values = {"table": relation.name, "schema": relation.schema}

        def fill(part: Glob) -> str:
            if part.literal:
                return part.text
            return _FIELD.sub(lambda found: values[found[1]], part.text)

        return Endpoint(self.connection, Relation(fill(self.schema), fill(self.table)))

    def covers(self, relation: Relation) -> bool:
        """Whether a relation could be the target of some table."""
        return all(
            part.matches(name)
            if part.literal
            else re.fullmatch(
                ".*".join(re.escape(text) for text in _FIELD.sub("\0", part.text).split("\0")),
                name,
                re.DOTALL,
            )
            is not None
            for part, name in ((self.schema, relation.schema), (self.table, relation.name))
        )

    def __str__(self) -> str:
        return f"{self.connection}:{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Group:
    """A declaration with a pattern; `template` holds what all of its tables share."""

    template: Sync
    pattern: Pattern
    target: TargetTemplate
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()

    @property
    def name(self) -> str:
        return self.template.name

    @property
    def project(self) -> str:
        return self.template.project

    @property
    def connection(self) -> str:
        return self.template.source.connection

    @property
    def source(self) -> str:
        """The source as it was declared."""
        return f"{self.connection}:{self.pattern}"

    def sync_name(self, relation: Relation) -> str:
        """`group.table`, or `group.schema.table` where the pattern leaves the schema open."""
        table = table_label(relation.name)
        if self.pattern.schema is not None and self.pattern.schema.is_wild:
            table = f"{table_label(relation.schema)}.{table}"
        return f"{self.name}.{table}"

    def names(self, relation: Relation) -> bool:
        """Whether `include` names this relation itself and not by a pattern."""
        return any(not one.is_wild and one.matches(relation) for one in self.include)

    def excluded(self, relation: Relation) -> str | None:
        """Why `include` or `exclude` leave a matching relation out, if they do."""
        if self.include and not any(one.matches(relation) for one in self.include):
            return "include does not name it"
        found = next((one for one in self.exclude if one.matches(relation)), None)
        return None if found is None else f'exclude = "{found}"'
