"""Sync, Group, modes and rules, layout of an Iceberg table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tidegate.core.batch import BatchKind
from tidegate.core.errors import DeclarationError, RemovalRefused, TidegateError
from tidegate.core.identity import pipeline_name
from tidegate.core.relation import Endpoint, Glob, Pattern, Relation, split_parts, table_label
from tidegate.core.watermark import NullPolicy

# Of a table as small as this nobody is asked whether its rows may go.
_GUARDED_ROWS = 100


class Mode(StrEnum):
    """The load patterns."""

    MERGE = "merge"
    """insert new keys, update changed ones"""
    APPEND = "append"
    """add rows; with a key, every version of a row, and a view of the newest"""
    DELETE_INSERT = "delete_insert"
    """delete the batch's keys, then insert its rows"""
    REPLACE = "replace"
    """the whole table, each time"""


class Duplicates(StrEnum):
    """What two rows of one batch with one key mean."""

    REFUSE = "refuse"
    NEWEST = "newest"


class DriftPolicy(StrEnum):
    """What happens when the columns of the source change."""

    EVOLVE = "evolve"
    """the target follows, as far as nothing is lost"""
    FREEZE = "freeze"
    """the load is refused"""


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition that every row must meet, in the SQL of the destination; NULL counts as met."""

    name: str
    condition: str


@dataclass(frozen=True, slots=True)
class RemovalLimit:
    """Which share of a target a load may remove unasked."""

    share: float
    allow: str
    """what says that more is meant"""

    @classmethod
    def of(cls, share: float, allow: str) -> RemovalLimit | None:
        """The limit; None where everything may go."""
        return cls(share, allow) if share < 1 else None

    def concerns(self, removed: int) -> bool:
        """Whether so many rows could be too many, whatever the size of the target."""
        return removed > self.share * _GUARDED_ROWS

    def is_exceeded(self, removed: int, rows: int) -> bool:
        """Whether `removed` of all the `rows` of a target are too many."""
        # The quotient, and not a product, is the very number that somebody wrote as the share.
        return rows >= _GUARDED_ROWS and removed / rows > self.share

    def check(self, target: object, removed: int, rows: int) -> None:
        """Refuse to remove `removed` of all the `rows` of a target."""
        if self.is_exceeded(removed, rows):
            raise RemovalRefused(
                f"{removed:,} of the {rows:,} rows of {target} would be removed; [safety] "
                f"max_removed allows {self.share:.4g} of them, so nothing was changed",
                f"see that the source holds all it should; if it does: {self.allow}",
            )


@dataclass(frozen=True, slots=True)
class Rules:
    """What a load does besides moving rows."""

    mode: Mode = Mode.MERGE
    duplicates: Duplicates = Duplicates.REFUSE
    before_sql: tuple[str, ...] = ()
    after_sql: tuple[str, ...] = ()
    checks: tuple[RowCheck, ...] = ()
    reject_limit: float = 0.05
    """the share of a batch that may fail its checks"""
    drift: DriftPolicy = DriftPolicy.EVOLVE
    within: tuple[tuple[str, Any], ...] = ()
    """the part of the target that delete_insert replaces: columns, and the value of each"""
    newest_wins: bool = True
    """a merge leaves rows alone whose cursor is above that of the row that comes"""
    removal: RemovalLimit | None = None
    """how much of what is there a load of everything may remove; None where it is not asked"""

    @property
    def replaces_part(self) -> bool:
        """Whether the rows take the place of a part of the target, as opposed to of their keys."""
        return self.mode is Mode.DELETE_INSERT and bool(self.within)

    def for_batch(self, kind: BatchKind, *, key_is_unique: bool) -> Rules:
        """The rules of one batch: what a lookback reads replaces what is there.

        It reads the row as it is now, later than any load before, whichever cursor a clock that is
        wrong has given it. Where a key occurs more than once, the cursor has to decide.
        """
        if kind is BatchKind.LOOKBACK and key_is_unique:
            return replace(self, newest_wins=False)
        return self

    def allowed_rejects(self, rows: int) -> int:
        """How many of so many rows may be set aside; one at least, unless none is allowed."""
        return -int(-(self.reject_limit * rows) // 1)


_TERM = re.compile(
    r"(?:(?P<function>\w+)\((?:(?P<width>\d+)\s*,\s*)?(?P<inner>[^()]+)\)|(?P<plain>.+))\Z"
)
_ORDER = re.compile(
    r"(?P<term>.+?)(?P<direction>\s+(?:asc|desc))?(?P<nulls>\s+nulls\s+(?:first|last))?\Z",
    re.IGNORECASE,
)  # fmt: skip
_OF_TIME = ("year", "month", "day", "hour")
_BY_WIDTH = ("bucket", "truncate")
_EXAMPLES = 'a column, or such as "day(created_at)", "bucket(16, id)", "truncate(4, name)"'


@dataclass(frozen=True, slots=True)
class Term:
    """A column, or a function of one: `day(created_at)`."""

    column: str
    function: str | None = None
    width: int | None = None

    @classmethod
    def parse(cls, text: str) -> Term:
        found = _TERM.match(text.strip())
        if found is None:
            raise DeclarationError(f"{text!r} is not a way to divide a table", f"write {_EXAMPLES}")
        if found["plain"] is not None:
            return cls(_unquoted(found["plain"]))
        name = found["function"].lower().removesuffix("s")
        width = None if found["width"] is None else int(found["width"])
        known = (name in _OF_TIME and width is None) or (name in _BY_WIDTH and bool(width))
        if not known:
            raise DeclarationError(f"{text!r} is not a way to divide a table", f"write {_EXAMPLES}")
        return cls(_unquoted(found["inner"]), name, width)

    def render(self, quote: Callable[[str], str]) -> str:
        """The term as a statement writes it."""
        column = quote(self.column)
        if self.function is None:
            return column
        if self.width is not None:
            return f"{self.function}({self.width}, {column})"
        return f"{self.function}s({column})"


@dataclass(frozen=True, slots=True)
class SortTerm:
    """A term with a direction."""

    term: Term
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> SortTerm:
        found = _ORDER.match(text.strip())
        assert found is not None
        suffix = f"{found['direction'] or ''}{found['nulls'] or ''}"
        return cls(Term.parse(found["term"]), " ".join(suffix.upper().split()))

    def render(self, quote: Callable[[str], str]) -> str:
        return f"{self.term.render(quote)} {self.suffix}".strip()


@dataclass(frozen=True, slots=True)
class Layout:
    """What a table of a lake is made with; one that is there keeps what it has."""

    partition_by: tuple[Term, ...] = ()
    sort_by: tuple[SortTerm, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, partition_by: Iterable[str], sort_by: Iterable[str], properties: Mapping[str, str]
    ) -> Layout:
        return cls(
            tuple(map(Term.parse, partition_by)), tuple(map(SortTerm.parse, sort_by)), properties
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names."""
        return tuple(
            dict.fromkeys(
                (
                    *(term.column for term in self.partition_by),
                    *(one.term.column for one in self.sort_by),
                )
            )
        )

    @property
    def divides_nothing(self) -> bool:
        """Whether any file may be added to such a table."""
        return not (self.partition_by or self.sort_by)

    @property
    def is_plain(self) -> bool:
        return self.divides_nothing and not self.properties


def _unquoted(name: str) -> str:
    name = name.strip()
    return name[1:-1] if len(name) > 2 and name[0] == name[-1] == '"' else name


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync as declared in tidegate.toml or with @tg.sync, names resolved, defaults applied."""

    project: str
    name: str
    source: Endpoint
    target: Endpoint
    mode: Mode = Mode.MERGE
    key: tuple[str, ...] | None = None
    cursor: str | None = None
    changes: str = "cursor"
    deletes: str = "hard"
    """what becomes of rows that the source deletes, where its changes tell of them"""
    lookback: str | int | None = None
    settle_seconds: float = 60.0
    null_cursor: NullPolicy | None = None
    cursor_timezone: str | None = None
    duplicates: Duplicates = Duplicates.REFUSE
    batch_rows: int = 500_000
    partitions: int | None = None
    schedule: str | None = None
    timezone: str = "UTC"
    catch_up: str = "last"
    priority: int = 0
    resources: tuple[str, ...] = ()
    """named resources of which a run takes a place"""
    disable_after: int | None = None
    columns: tuple[str, ...] | None = None
    exclude_columns: tuple[str, ...] = ()
    where: str | None = None
    query: str | None = None
    before_sql: tuple[str, ...] = ()
    after_sql: tuple[str, ...] = ()
    checks: tuple[RowCheck, ...] = ()
    reject_limit: float = 0.05
    drift: DriftPolicy = DriftPolicy.EVOLVE
    max_removed: float = 1.0
    """the share of the target that may be removed unasked"""
    layout: Layout = field(default_factory=Layout)
    lake_source: bool = False
    lake_target: bool = False
    """whether the target is a table of a lake, as opposed to one of a database"""
    transform: Callable[[Any], Any] | None = None
    group: str | None = None
    """the group that it is one table of"""
    proposed: frozenset[str] = frozenset()
    """what nobody declared: `key`, `cursor` or `null_cursor` chosen from the catalog"""
    notes: tuple[str, ...] = ()
    refused: TidegateError | None = None
    """why it cannot be run, known before anything is read"""

    @property
    def pipeline(self) -> str:
        return pipeline_name(self.project, self.name)

    @property
    def is_soft(self) -> bool:
        """Whether rows that the source deletes stay, with a mark."""
        return self.changes == "cdc" and self.deletes == "soft"

    @property
    def source_name(self) -> str:
        """The source as a person would call it."""
        return f"{self.source.connection}:(query)" if self.query else str(self.source)

    @property
    def rules(self) -> Rules:
        refresh = "" if self.mode is Mode.REPLACE else " --full-refresh"
        return Rules(
            mode=self.mode,
            duplicates=self.duplicates,
            before_sql=self.before_sql,
            after_sql=self.after_sql,
            checks=self.checks,
            reject_limit=self.reject_limit,
            drift=self.drift,
            removal=self.removal_limit(f"tidegate run {self.name}{refresh} --allow-removal"),
        )

    def removal_limit(self, allow: str) -> RemovalLimit | None:
        """How much of the target may go; `allow` is the command that says that more is meant."""
        return RemovalLimit.of(self.max_removed, allow)


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
