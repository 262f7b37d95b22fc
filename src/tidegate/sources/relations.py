"""The relations of a source by the pattern of their names, and what speaks against each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.errors import DeclarationError
from tidegate.model.column import RelationKind
from tidegate.model.pattern import Glob, Pattern
from tidegate.model.relation import Relation
from tidegate.postgres.connect import Connection

MOST = 100_000
EVERYTHING = Pattern(Glob("*"), Glob("*"))
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_WORDS = {
    RelationKind.VIEW: "a view",
    RelationKind.MATERIALIZED_VIEW: "a materialized view",
    RelationKind.FOREIGN: "a foreign table",
}

# The schemas where Tidegate keeps its own tables are known by tables that only it has.
_RELATIONS = r"""
SELECT n.nspname, c.relname, c.relkind,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT a.attname FROM pg_attribute a
             LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND (a.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%%')
             ORDER BY a.attnum)::text[],
       c.relispartition,
       (SELECT x.extname FROM pg_depend e JOIN pg_extension x ON x.oid = e.refobjid
        WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid AND e.deptype = 'e' LIMIT 1),
       EXISTS (SELECT FROM pg_class own WHERE own.relnamespace = n.oid
               AND own.relname IN ('watermark_log', 'fence_tokens'))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%%'
  AND n.nspname LIKE %(schema)s AND c.relname LIKE %(table)s
ORDER BY 1, 2
LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A relation whose name matches; `serials` are its columns filled from a sequence."""

    relation: Relation
    kind: RelationKind
    readable: bool
    serials: frozenset[str]
    is_partition: bool
    extension: str | None
    is_ours: bool

    @property
    def reason_against(self) -> str | None:
        """Why it cannot be loaded with others of its kind, if it cannot."""
        if self.is_ours:
            return "one of Tidegate's own tables"
        if self.extension is not None:
            return f"belongs to the extension {self.extension}"
        if self.is_partition:
            return "a partition; the table that it belongs to holds its rows"
        if _CONTROL_CHARACTER.search(self.relation.schema + self.relation.name):
            return "its name holds a control character, which tidegate.toml cannot spell"
        if not self.readable:
            return "this role may not read it"
        return None

    @property
    def is_part_of_another(self) -> bool:
        """Whether a person would not count it: a partition, an extension's, one of ours."""
        return self.is_ours or self.is_partition or self.extension is not None

    @property
    def is_loadable_table(self) -> bool:
        return self.reason_against is None and self.kind_words is None

    @property
    def kind_words(self) -> str | None:
        """What it is, if it is no table of its own."""
        return _WORDS.get(self.kind)


def list_candidates(connection: Connection, pattern: Pattern = EVERYTHING) -> list[Candidate]:
    """Every relation that the pattern matches, the system's own left aside."""
    schema = pattern.schema or Glob("*")
    rows = connection.execute(
        _RELATIONS, {"schema": schema.like, "table": pattern.table.like, "limit": MOST + 1}
    ).fetchall()
    if len(rows) > MOST:
        raise DeclarationError(
            f"{pattern} matches more than {MOST:,} relations",
            "choose a narrower pattern, or several",
        )
    return [
        Candidate(
            relation=Relation(schema_name, name),
            kind=RelationKind(kind),
            readable=readable,
            serials=frozenset(serials),
            is_partition=is_partition,
            extension=extension,
            is_ours=ours,
        )
        for schema_name, name, kind, readable, serials, is_partition, extension, ours in rows
    ]
