"""Comparing two relations by key and content, inside their databases and in flat memory.

A side is a query that gives every row as (k, h): its key as text and a hash of its content.
Both sides are first summed up in buckets of the key's hash; only the keys of buckets that differ
travel, and only up to a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from tidegate.model.verification import Difference
from tidegate.postgres.connect import Connection
from tidegate.spark.copying import copy_rows

BUCKETS = 1024
DETAIL_ROWS = 1_000_000
EXAMPLES = 5
OURS = sql.Identifier("pg_temp", "tidegate_verify_rows")
_FOUND = sql.Identifier("pg_temp", "tidegate_verify_found")
SCRATCH = ((OURS, "k text, h bigint"), (_FOUND, "k text, what text"))
"""Temporary tables that must be there on the found side, empty, before its snapshot is taken"""


@dataclass(frozen=True, slots=True)
class Hashing:
    """How text becomes a number; the built-in hash sees bytes, so encodings must agree for it."""

    portable: bool

    @classmethod
    def between(cls, one: Connection, other: Connection) -> Hashing:
        return cls(_encoding(one) != _encoding(other))

    def of(self, text: sql.Composable) -> sql.Composed:
        if not self.portable:
            return sql.SQL("hashtextextended({}, 0)").format(text)
        return sql.SQL("('x' || left(md5(convert_to({}, 'UTF8')), 16))::bit(64)::bigint").format(
            text
        )

    def row(self, key: Sequence[sql.Composable], columns: Sequence[sql.Composable]) -> sql.Composed:
        """The select list of a side."""
        content = sql.SQL("ROW({})::text").format(sql.SQL(", ").join(columns))
        return sql.SQL("ROW({})::text AS k, {} AS h").format(
            sql.SQL(", ").join(key), self.of(content)
        )

    @property
    def bucket(self) -> sql.Composed:
        return sql.SQL("({} & {})").format(self.of(sql.SQL("k")), sql.Literal(BUCKETS - 1))


@dataclass(frozen=True, slots=True)
class Side:
    """A query of (k, h) and the session that it runs in."""

    connection: Connection
    rows: sql.Composable


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many rows each side has, and how they differ, if they do."""

    expected_rows: int
    found_rows: int
    difference: Difference | None


NONE = Comparison(0, 0, None)


def compare(expected: Side, found: Side, hashing: Hashing) -> Comparison:
    """Compare what should be there with what is; nothing leaves the databases when they agree."""
    left, right = sums(expected, hashing), sums(found, hashing)
    rows, found_rows = total(left), total(right)
    unequal = sorted(
        bucket for bucket in left.keys() | right.keys() if left.get(bucket) != right.get(bucket)
    )
    if not unequal:
        return Comparison(rows, found_rows, None)
    chosen: list[int] = []
    size = 0
    for bucket in unequal:
        size += max(left.get(bucket, (0, 0))[0], right.get(bucket, (0, 0))[0])
        if chosen and size > DETAIL_ROWS:
            break
        chosen.append(bucket)
    complete = len(chosen) == len(unequal)
    return Comparison(rows, found_rows, _detail(expected, found, hashing, chosen, complete))


def sums(side: Side, hashing: Hashing) -> dict[int, tuple[int, int]]:
    """Rows and the sum of their hashes, by bucket."""
    result = side.connection.execute(
        sql.SQL("SELECT {}, count(*), sum(h) FROM ({}) rows GROUP BY 1").format(
            hashing.bucket, side.rows
        )
    )
    return {bucket: (count, int(total)) for bucket, count, total in result}


def total(buckets: dict[int, tuple[int, int]]) -> int:
    return sum(count for count, _ in buckets.values())


def _detail(
    expected: Side, found: Side, hashing: Hashing, buckets: list[int], complete: bool
) -> Difference:
    """Bring the keys of these buckets together in the found side's database."""
    connection = found.connection
    query = sql.SQL("SELECT k, h FROM ({}) rows WHERE {} = ANY({}::bigint[])")
    ours = query.format(expected.rows, hashing.bucket, sql.Literal(buckets))
    if expected.connection is connection:
        connection.execute(sql.SQL("INSERT INTO {} {}").format(OURS, ours))
    else:
        text = ours.as_string(expected.connection)
        copy_rows(expected.connection, text, connection, OURS, ("k", "h"))
    connection.execute(
        sql.SQL(
            "INSERT INTO {}"
            " SELECT coalesce(s.k, t.k) AS k, CASE WHEN t.k IS NULL THEN 'missing'"
            " WHEN s.k IS NULL THEN 'extra' ELSE 'different' END AS what"
            " FROM {} s FULL JOIN ({}) t ON s.k = t.k WHERE s.h IS DISTINCT FROM t.h"
        ).format(_FOUND, OURS, query.format(found.rows, hashing.bucket, sql.Literal(buckets)))
    )
    counts = dict(
        connection.execute(
            sql.SQL("SELECT what, count(*) FROM {} GROUP BY what").format(_FOUND)
        ).fetchall()
    )
    keys = {what: _examples(connection, what) for what in counts}
    return Difference(
        counts.get("missing", 0),
        counts.get("extra", 0),
        counts.get("different", 0),
        complete,
        keys.get("missing", ()),
        keys.get("extra", ()),
        keys.get("different", ()),
    )


def _examples(connection: Connection, what: str) -> tuple[str, ...]:
    rows = connection.execute(
        sql.SQL("SELECT k FROM {} WHERE what = {} ORDER BY k LIMIT {}").format(
            _FOUND, sql.Literal(what), sql.Literal(EXAMPLES)
        )
    )
    return tuple(row[0] for row in rows)


def _encoding(connection: Connection) -> str:
    row = connection.execute("SELECT current_setting('server_encoding')").fetchone()
    assert row is not None
    return str(row[0])
