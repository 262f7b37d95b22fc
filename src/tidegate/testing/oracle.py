"""What the target must hold, by other means than the pipeline's, and how it differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from tidegate.errors import DeclarationError
from tidegate.model.column import Table
from tidegate.model.cursor import NullPolicy
from tidegate.model.relation import Relation
from tidegate.model.sync import Sync
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import qualified

Row = tuple[str | None, ...]
Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """Rows as text, by key; without a key every row is its own."""

    columns: tuple[str, ...]
    rows: dict[Key, Counter[Row]]

    @property
    def total(self) -> int:
        return sum(sum(rows.values()) for rows in self.rows.values())


@dataclass(frozen=True, slots=True)
class Rule:
    """What a mode makes of the rows of a source without a transformation."""

    expect: Callable[[Sync, Table, Sequence[Row]], Iterable[Row]]
    keyed: bool = True
    replays_changes: bool = True


def _one_per_key(sync: Sync, table: Table, rows: Sequence[Row]) -> Iterable[Row]:
    """The last version of every row; where keys may repeat, the newest of each."""
    if sync.duplicates != "newest" or sync.cursor is None:
        return rows
    names = table.column_names
    key = [names.index(name) for name in sync.key or table.primary_key]
    newest: dict[Key, Row] = {}
    for row in rows:  # ordered by cursor: the last one of a key is its newest
        newest[tuple(row[place] for place in key)] = row
    return newest.values()


def _all(sync: Sync, table: Table, rows: Sequence[Row]) -> Iterable[Row]:
    return rows


# The only place that knows the modes. Appending keeps every version of a row that it saw, so
# changes are not replayed there; without a key rows are compared as a whole.
_RULES = {
    "merge": Rule(_one_per_key),
    "delete_insert": Rule(_one_per_key),
    "replace": Rule(_all, keyed=False),
    "append": Rule(_all, keyed=False, replays_changes=False),
}


def rule_of(sync: Sync) -> Rule:
    """The rule of a sync's mode; a mode without one is refused."""
    rule = _RULES.get(sync.mode)
    if rule is None:
        raise DeclarationError(
            f'sync {sync.name}: what mode = "{sync.mode}" must give is not known here',
            f"prove a sync with one of the modes {', '.join(_RULES)}",
        )
    return rule


def needs_clean_pass(sync: Sync) -> bool:
    """Whether only a clean pass can say what comes out: the user's own code has a part in it."""
    own = ("checks", "before_sql", "after_sql")
    return sync.transform is not None or any(getattr(sync, name, ()) for name in own)


def expected_content(source: Connection, sync: Sync, table: Table, key: Sequence[str]) -> Content:
    """What one clean pass gives without a transformation: the source's rows, by plain SQL."""
    rule = rule_of(sync)
    conditions: list[sql.Composable] = []
    order: sql.Composable = sql.SQL("")
    if where := getattr(sync, "where", None):
        conditions.append(sql.SQL("({})").format(sql.SQL(where)))
    if sync.cursor is not None:
        order = sql.SQL(" ORDER BY {} NULLS LAST, ROW(t.*)::text").format(
            sql.Identifier(sync.cursor)
        )
        if sync.null_cursor is NullPolicy.EXCLUDE:
            conditions.append(sql.SQL("{} IS NOT NULL").format(sql.Identifier(sync.cursor)))
    rows = source.execute(
        sql.SQL("SELECT {} FROM {} t WHERE {}{}").format(
            _texts(table.column_names),
            qualified(table.relation),
            sql.SQL(" AND ").join(conditions or [sql.SQL("true")]),
            order,
        )
    ).fetchall()
    declared = declared_columns(sync, table)
    places = [table.column_names.index(name) for name in declared]
    chosen = [tuple(row[place] for place in places) for row in rule.expect(sync, table, rows)]
    return make_content(declared, chosen, key if rule.keyed else ())


def declared_columns(sync: Sync, table: Table) -> tuple[str, ...]:
    """The columns that the sync takes along."""
    chosen = getattr(sync, "columns", None) or table.column_names
    without = getattr(sync, "exclude_columns", None) or ()
    return tuple(name for name in table.column_names if name in chosen and name not in without)


def target_content(
    target: Connection, relation: Relation, key: Sequence[str], columns: Sequence[str] | None = None
) -> Content:
    """What is in the target; a table that is not there holds nothing."""
    table = describe_table(target, relation)
    if table is None:
        return Content(tuple(columns or ()), {})
    names = tuple(columns) if columns is not None else table.column_names
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DeclarationError(f"{relation} has no column {', '.join(missing)}", None)
    rows = target.execute(
        sql.SQL("SELECT {} FROM {}").format(_texts(names), qualified(relation))
    ).fetchall()
    return make_content(names, rows, key)


def _texts(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)


def make_content(names: Sequence[str], rows: Iterable[Row], key: Sequence[str]) -> Content:
    """Rows that were read as text, under their keys."""
    places = [names.index(name) for name in key] or range(len(names))
    found: dict[Key, Counter[Row]] = defaultdict(Counter)
    for row in rows:
        found[tuple(row[place] for place in places)][row] += 1
    return Content(tuple(names), dict(found))


@dataclass(slots=True)
class Difference:
    """How a target differs from what was expected, counted in rows, with the keys concerned."""

    lost: list[Key] = field(default_factory=list)
    doubled: list[Key] = field(default_factory=list)
    different: list[Key] = field(default_factory=list)
    extra: list[Key] = field(default_factory=list)
    columns: tuple[str, ...] = ()  # in which the first different row differs

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.different or self.extra)

    @property
    def keys(self) -> list[Key]:
        return [*self.lost, *self.doubled, *self.different, *self.extra]

    @property
    def only_extra(self) -> bool:
        return bool(self.extra) and not (self.lost or self.doubled or self.different)

    def __str__(self) -> str:
        text = f"{len(self.lost)} lost, {len(self.doubled)} doubled"
        text += f", {len(self.different)} different" if self.different else ""
        return text + (f", {len(self.extra)} that should not be there" if self.extra else "")


def compare(expected: Content, found: Content) -> Difference:
    """Row by row as multisets under each key."""
    result = Difference()
    for key in expected.rows.keys() | found.rows.keys():
        wanted, there = expected.rows.get(key, Counter()), found.rows.get(key, Counter())
        missing, surplus = wanted - there, there - wanted
        pairs = min(missing.total(), surplus.total())
        if pairs and not result.columns:
            first, second = next(iter(missing)), next(iter(surplus))
            result.columns = tuple(
                name
                for name, one, other in zip(expected.columns, first, second, strict=True)
                if one != other
            )
        result.different += [key] * pairs
        result.lost += [key] * (missing.total() - pairs)
        more = result.doubled if wanted else result.extra
        more += [key] * (surplus.total() - pairs)
    for keys in (result.lost, result.doubled, result.different, result.extra):
        keys.sort(key=lambda key: [(value is None, _number(value), value or "") for value in key])
    return result


def _number(value: str | None) -> float:
    try:
        return float(value or "")
    except ValueError:
        return 0.0
