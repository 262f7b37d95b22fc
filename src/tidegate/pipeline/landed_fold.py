"""Landed chunks folded to one row a key, and values that were not sent filled in, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidegate.errors import DestinationError
from tidegate.model.relation import Relation
from tidegate.pipeline.landing import Landed
from tidegate.pipeline.landing_table import BASE, DELETED, NUMBER, UNCHANGED
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list, from_text, qualified

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
    landed: Landed
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
