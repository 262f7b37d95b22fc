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
from tidegate.postgres.identifiers import column_list, qualified

# Two different texts of such a type are two different values.
_PLAIN = frozenset(
    {
        "boolean", "smallint", "integer", "bigint", "text", "character varying", "uuid", "date",
        "bytea", "timestamp without time zone", "timestamp with time zone",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LandedFold:
    """The landing table of one batch; `kinds` are the types in which its keys are compared."""

    connection: Connection
    table: sql.Identifier
    landed: Landed
    key: tuple[str, ...]
    kinds: tuple[str, ...]

    def fill_from_earlier(self, first: int, last: int) -> None:
        """Values that an earlier chunk has told."""
        if first == 0:
            return
        needed = sql.SQL(
            "SELECT FROM {table} b WHERE b.{number} BETWEEN {first} AND {last}"
            " AND b.{mask} IS NOT NULL AND {same}"
        ).format(
            **self._parts(first, last),
            same=self._same(self._bases("b"), self._keys("e")),
        )
        earlier = sql.SQL(
            "SELECT DISTINCT ON ({keys}) e.* FROM {table} e WHERE e.{number} < {first}"
            " AND EXISTS ({needed}) ORDER BY {keys}, e.{number} DESC"
        ).format(
            **self._parts(first, last),
            needed=needed,
            keys=sql.SQL(", ").join(self._keys("e")),
        )
        values = {name: sql.Identifier("p", name) for name in self._others}
        source = sql.SQL("({}) p").format(earlier)
        self._fill(first, last, source, values, self._keys("p"))

    def fill_from(self, target: Relation, known: Sequence[str], first: int, last: int) -> None:
        """Values that the target has, whose columns are `known`, from the time before the batch."""
        values: dict[str, sql.Composable] = {
            name: sql.SQL("{}::text").format(sql.Identifier("p", name))
            if name in known
            else sql.SQL("NULL::text")
            for name in self._others
        }
        source = sql.SQL("{} p").format(qualified(target))
        keys = [sql.Identifier("p", name) for name in self.key]
        self._fill(first, last, source, values, keys)

    def keep_last(self) -> int:
        """Leave one row a key, the last; returns how many went."""
        if self.landed.chunks < 2 and _PLAIN.issuperset(self.kinds):
            return 0
        names = [sql.Identifier(f"k{place}") for place in range(len(self.key))]
        keys = [
            sql.SQL("{} AS {}").format(key, name)
            for key, name in zip(self._keys("e"), names, strict=True)
        ]
        repeated = sql.SQL(
            "SELECT {keys}, max(e.{number}) AS last FROM {table} e GROUP BY {names}"
            " HAVING count(*) > 1"
        ).format(
            keys=sql.SQL(", ").join(keys),
            names=sql.SQL(", ").join(names),
            number=sql.Identifier(NUMBER),
            table=self.table,
        )
        statement = sql.SQL(
            "DELETE FROM {table} l USING ({repeated}) d WHERE {same} AND l.{number} < d.last"
        ).format(
            table=self.table,
            repeated=repeated,
            same=self._same(self._keys("l"), [sql.SQL("d.{}").format(name) for name in names]),
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
        first: int,
        last: int,
        source: sql.Composable,
        values: Mapping[str, sql.Composable],
        keys: Sequence[sql.Composable],
    ) -> None:
        if not values:
            return
        settings = [
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
                "UPDATE {table} l SET {mask} = NULL, {settings} FROM {source}"
                " WHERE l.{number} BETWEEN {first} AND {last} AND l.{mask} IS NOT NULL AND {same}"
            ).format(
                **self._parts(first, last),
                settings=sql.SQL(", ").join(settings),
                source=source,
                same=self._same(self._bases("l"), keys),
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

    def _keys(self, alias: str) -> list[sql.Composed]:
        return [
            sql.SQL("{}::{}").format(sql.Identifier(alias, name), sql.SQL(kind))
            for name, kind in zip(self.key, self.kinds, strict=True)
        ]

    def _bases(self, alias: str) -> list[sql.Composed]:
        return [
            sql.SQL("{}::{}").format(sql.Identifier(alias, f"{BASE}{place}"), sql.SQL(kind))
            for place, kind in enumerate(self.kinds)
        ]

    @staticmethod
    def _same(left: Sequence[sql.Composable], right: Sequence[sql.Composable]) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(one, other) for one, other in zip(left, right, strict=True)
        )


def refuse_unfilled(relation: Relation, count: int, sync_name: str) -> None:
    """A value that was not sent and is nowhere to be had must not become NULL."""
    if count:
        raise DestinationError(
            f"{count} rows for {relation} were changed without their large values being sent, and "
            "the target has no such rows to take them from",
            f"rows were removed from it by hand? tidegate run {sync_name} --full-refresh; or ALTER "
            "TABLE … REPLICA IDENTITY FULL at the source, which sends all values",
        )


def mark_statement(
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
