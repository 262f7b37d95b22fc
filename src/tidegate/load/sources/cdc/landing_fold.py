"""Fold landed chunks in place, fill values, mark deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import StagedWrite
from tidegate.core.errors import DeclarationError, DestinationError
from tidegate.core.identity import new_write_id
from tidegate.core.relation import Column, Relation
from tidegate.core.shape import Shape, StagedColumn
from tidegate.load.context import Context
from tidegate.load.sources.cdc.fold import BASE, DELETED, DELETED_AT, NUMBER, UNCHANGED
from tidegate.load.sources.cdc.landing import LandedChanges, landing_table
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.stage import staging_place
from tidegate.load.target import Target
from tidegate.load.targets.postgres import statements
from tidegate.load.targets.postgres.table import fit_shape
from tidegate.postgres.catalog import describe_columns
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, from_text, qualified

# Two different texts of such a type are two different values.
_PLAIN = frozenset(
    {
        "boolean", "smallint", "integer", "bigint", "text", "character varying", "uuid", "date",
        "bytea", "timestamp without time zone", "timestamp with time zone",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LandedFold:
    """The landing table of one batch; `kinds` are the types of its key in the target."""

    connection: Connection
    table: sql.Identifier
    landed: LandedChanges
    key: tuple[str, ...]
    kinds: tuple[str, ...]
    soft: bool

    def fold(self) -> int:
        """Leave one row a key, with what the batch itself tells of it; how many are left."""
        for first, last in self.landed.unfilled:
            self._fill_from_earlier(first, last)
        return self.landed.rows - self.keep_last()

    def _fill_from_earlier(self, first: int, last: int) -> None:
        """Values that an earlier chunk has told; what that one lacks is to be taken from where
        that one takes it."""
        if first == 0:
            return
        needed = sql.SQL(
            "SELECT FROM {table} b WHERE b.{number} BETWEEN {first} AND {last}"
            " AND b.{mask} IS NOT NULL AND {same}"
        ).format(
            **self._parts(first, last),
            same=self._same(self._bases("b"), _columns("e", self.key)),
        )
        earlier = sql.SQL(
            "SELECT DISTINCT ON ({keys}) e.* FROM {table} e WHERE e.{number} < {first}"
            " AND EXISTS ({needed}) ORDER BY {keys}, e.{number} DESC"
        ).format(**self._parts(first, last), needed=needed, keys=column_list(self.key, "e"))
        width = sql.Literal(len(self.landed.places))
        both = sql.SQL(
            "nullif((rpad(l.{mask}, {width}, '0')::varbit & rpad(p.{mask}, {width}, '0')::varbit)"
            "::text, repeat('0', {width}))"
        ).format(mask=sql.Identifier(UNCHANGED), width=width)
        names = self._base_names
        self._fill(
            sql.SQL("({}) p").format(earlier),
            {name: sql.Identifier("p", name) for name in self._others},
            {UNCHANGED: both, **{name: sql.Identifier("p", name) for name in names}},
            sql.SQL("l.{number} BETWEEN {first} AND {last} AND {same}").format(
                **self._parts(first, last),
                same=self._same(self._bases("l"), _columns("p", self.key)),
            ),
        )

    def fill_from(self, target: Relation, known: Sequence[str]) -> None:
        """Values that the target has, whose columns are `known`, from the time before the batch."""
        values: dict[str, sql.Composable] = {
            name: sql.SQL("{}::text").format(sql.Identifier("p", name))
            if name in known
            else sql.SQL("NULL::text")
            for name in self._others
        }
        bases = _typed(self._bases("l"), self.kinds)
        self._fill(
            sql.SQL("{} p").format(qualified(target)),
            values,
            {UNCHANGED: sql.SQL("NULL")},
            self._same(bases, _columns("p", self.key)),
        )

    def keep_last(self) -> int:
        """Leave one row a key, the last; returns how many went.

        Equal keys with different texts, such as 1.0 and 1.00, stay apart: one of them is then a
        delete, which comes first. Where rows are marked instead, they are one row.
        """
        texts = not self.soft or _PLAIN.issuperset(self.kinds)
        if self.landed.chunks < 2 and texts:
            return 0
        names = [f"k{place}" for place in range(len(self.key))]
        keys: Sequence[sql.Composable] = _columns("e", self.key)
        same: Sequence[sql.Composable] = _columns("l", self.key)
        if not texts:
            keys, same = _typed(keys, self.kinds), _typed(same, self.kinds)
        repeated = sql.SQL(
            "SELECT {keys}, max(e.{number}) AS last FROM {table} e GROUP BY {names}"
            " HAVING count(*) > 1"
        ).format(
            keys=sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(key, sql.Identifier(name))
                for key, name in zip(keys, names, strict=True)
            ),
            names=column_list(names),
            number=sql.Identifier(NUMBER),
            table=self.table,
        )
        statement = sql.SQL(
            "DELETE FROM {table} l USING ({repeated}) d WHERE {same} AND l.{number} < d.last"
        ).format(
            table=self.table,
            repeated=repeated,
            same=self._same(same, _columns("d", names)),
            number=sql.Identifier(NUMBER),
        )
        return self.connection.execute(statement).rowcount

    def drop_gone(self) -> int:
        """Of a full batch, rows that are gone need not be told; returns how many."""
        return self.connection.execute(
            sql.SQL("DELETE FROM {} WHERE {}").format(self.table, sql.Identifier(DELETED))
        ).rowcount

    def unfilled(self) -> int:
        """How many rows still lack a value."""
        row = self.connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {} IS NOT NULL").format(
                self.table, sql.Identifier(UNCHANGED)
            )
        ).fetchone()
        return int(row[0]) if row else 0

    @property
    def _others(self) -> list[str]:
        return [name for name in self.landed.places if name not in self.key]

    def _fill(
        self,
        source: sql.Composable,
        values: Mapping[str, sql.Composable],
        marks: Mapping[str, sql.Composable],
        where: sql.Composable,
    ) -> None:
        settings = [
            sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in marks.items()
        ]
        settings += [
            sql.SQL(
                "{name} = CASE WHEN substr(l.{mask}, {place}, 1) = '1' THEN {value}"
                " ELSE l.{name} END"
            ).format(
                name=sql.Identifier(name),
                mask=sql.Identifier(UNCHANGED),
                place=sql.Literal(self.landed.places.index(name) + 1),
                value=value,
            )
            for name, value in values.items()
        ]
        self.connection.execute(
            sql.SQL(
                "UPDATE {table} l SET {settings} FROM {source} WHERE l.{mask} IS NOT NULL"
                " AND {where}"
            ).format(
                table=self.table,
                mask=sql.Identifier(UNCHANGED),
                settings=sql.SQL(", ").join(settings),
                source=source,
                where=where,
            )
        )

    def _parts(self, first: int, last: int) -> dict[str, sql.Composable]:
        return {
            "table": self.table,
            "number": sql.Identifier(NUMBER),
            "mask": sql.Identifier(UNCHANGED),
            "first": sql.Literal(first),
            "last": sql.Literal(last),
        }

    def _bases(self, alias: str) -> list[sql.Identifier]:
        return _columns(alias, self._base_names)

    @property
    def _base_names(self) -> list[str]:
        return [f"{BASE}{place}" for place in range(len(self.key))]

    @staticmethod
    def _same(left: Sequence[sql.Composable], right: Sequence[sql.Composable]) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(one, other) for one, other in zip(left, right, strict=True)
        )


def _columns(alias: str, names: Sequence[str]) -> list[sql.Identifier]:
    return [sql.Identifier(alias, name) for name in names]


def _typed(values: Sequence[sql.Composable], kinds: Sequence[str]) -> list[sql.Composed]:
    return [from_text(value, kind) for value, kind in zip(values, kinds, strict=True)]


def refuse_unfilled(relation: Relation, count: int, sync_name: str) -> None:
    """A value that was not sent and is nowhere to be had must not become NULL."""
    if count:
        raise DestinationError(
            f"{count} rows for {relation} were changed without their large values being sent, and "
            "the target has no such rows to take them from",
            f"rows were removed from it by hand? tidegate run {sync_name} --full-refresh; or ALTER "
            "TABLE … REPLICA IDENTITY FULL at the source, which sends all values",
        )


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """A batch of landed changes, and where it goes."""

    landed: LandedChanges
    destination: Target
    context: Context
    sync: Sync
    source: PostgresSource
    """with the columns that the changes had"""
    full: bool
    soft: bool
    attempt_id: str

    @property
    def table(self) -> sql.Identifier:
        return landing_table(self.landed, self.destination, self.attempt_id)

    def fold(self, connection: Connection, kinds: Mapping[str, str]) -> LandedFold:
        """What folds the landing table in place; `kinds` are the types of the target's columns."""
        key = self.source.key
        return LandedFold(
            connection=connection,
            table=self.table,
            landed=self.landed,
            key=key,
            kinds=tuple(kinds[name] for name in key),
            soft=self.soft,
        )

    @property
    def marks_all(self) -> bool:
        """Whether what the target holds is to be marked as deleted."""
        return self.soft and self.landed.emptied_at is not None

    def complete(self, shape: Shape, moment_type: str) -> Shape:
        """The shape with what deletes add to it."""
        if not self.soft:
            gone = self.landed.deletes and not self.full
            return replace(shape, deleted=DELETED if gone else None)
        if DELETED_AT in shape.names:
            raise DeclarationError(
                f"sync {self.sync.name}: its rows have a column {DELETED_AT} of their own, which "
                'deletes = "soft" fills',
                'rename it, leave it out with exclude_columns, or use deletes = "hard"',
            )
        added = StagedColumn(DELETED_AT, moment_type, moment_type)
        return replace(shape, columns=(*shape.columns, added))


def landed_columns(
    connection: Connection, source: PostgresSource, landed: LandedChanges
) -> tuple[Column, ...]:
    """The columns that the changes had, which need not be those that the source has now."""
    if not landed.columns:
        return source.columns
    found = {
        column.name: column
        for column in describe_columns(
            connection,
            [column.name for column in landed.columns],
            [column.type_oid for column in landed.columns],
            [column.type_modifier for column in landed.columns],
        )
    }
    columns: list[Column] = []
    for one in landed.columns:
        column = found.get(one.name)
        now = source.table.column(one.name)
        if column is None:
            column = Column(one.name, "text", "text", via_text=True, not_null=False)
        columns.append(replace(column, not_null=now is not None and now.not_null))
    return tuple(columns)


def mark_rest(
    batch: LandedBatch, connection: Connection, shape: Shape, staged: list[sql.Identifier]
) -> list[StagedWrite]:
    """Stage the rows of the target that a truncate has deleted, marked so."""
    destination, write_id = batch.destination, new_write_id()
    place = staging_place(batch.context, batch.sync.target, shape, batch.attempt_id)
    connection.execute(place.create_statement(write_id))
    fitted = fit_shape(connection, destination.relation, shape)
    key_shape = replace(
        fitted, columns=tuple(one for one in fitted.columns if one.name in shape.key)
    )
    keys: sql.Composable = sql.SQL("SELECT {} FROM {} t WHERE false").format(
        sql.SQL(", ").join(map(sql.Identifier, shape.key)),
        sql.Identifier(destination.relation.schema, destination.relation.name),
    )
    if staged:
        keys = statements.staged_rows(staged, key_shape, cast=True)
    cursor = connection.execute(
        _mark_statement(
            place.table(write_id),
            shape.staged,
            destination.relation,
            DELETED_AT,
            sql.SQL("{}::timestamptz").format(sql.Literal(batch.landed.emptied_at)),
            keys,
            statements.same_key("t", "s", fitted),
        )
    )
    return [StagedWrite(write_id, cursor.rowcount)] if cursor.rowcount else []


def _mark_statement(
    into: sql.Identifier,
    staged: Sequence[tuple[str, str]],
    target: Relation,
    mark: str,
    moment: sql.Composable,
    staged_keys: sql.Composable,
    same_key: sql.Composable,
) -> sql.Composed:
    """Put every row of the target that is not marked, and does not come anyway, into staging."""
    values = [
        moment if name == mark else sql.SQL("t.{}::{}").format(sql.Identifier(name), sql.SQL(kind))
        for name, kind in staged
    ]
    return sql.SQL(
        "INSERT INTO {into} ({names}) SELECT {values} FROM {target} t WHERE t.{mark} IS NULL"
        " AND NOT EXISTS (SELECT FROM ({keys}) s WHERE {same})"
    ).format(
        into=into,
        names=column_list(name for name, _ in staged),
        values=sql.SQL(", ").join(values),
        target=qualified(target),
        mark=sql.Identifier(mark),
        keys=staged_keys,
        same=same_key,
    )
