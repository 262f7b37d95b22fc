"""Comparing two relations by key and content, inside their databases and in flat memory.

A side is a query that gives every row as (k, h): its key as text and a hash of its content.
Both sides are summed up at once, and, where the sums differ, in many ranges of their keys. Only the
keys of ranges that differ travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from psycopg import sql

from tidegate.model.key_ranges import KeyRanges, differing
from tidegate.model.verification import Difference
from tidegate.postgres.connect import Connection
from tidegate.spark.copying import copy_rows

# As many groups as an aggregate holds in memory with the default work_mem of a server.
BITS = 14
DETAIL_ROWS = 1_000_000
EXAMPLES = 5
# Cutting finer is one more look at both tables; it needs more memory, so it has a limit, too.
_FINER_GROUPS = 1 << 17
_MOST_BITS = 40
OURS = sql.Identifier("pg_temp", "tidegate_verify_rows")
FOUND = sql.Identifier("pg_temp", "tidegate_verify_found")
LEFT_OUT = sql.Identifier("pg_temp", "tidegate_verify_left_out")
SCRATCH = ((OURS, "k text, h bigint"), (FOUND, "k text, what text"), (LEFT_OUT, "k text"))
"""Temporary tables that must be there on the found side, empty, before its snapshot is taken"""

_ByRange = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Hashing:
    """How text becomes a number; the built-in hash sees bytes, so encodings must agree for it."""

    portable: bool

    @classmethod
    def between(cls, one: Connection, other: Connection) -> Hashing:
        return cls(_encoding(one) != _encoding(other))

    def of(self, text: sql.Composable) -> sql.Composed:
        if not self.portable:
            return sql.SQL("pg_catalog.hashtextextended({}, 0::bigint)").format(text)
        return sql.SQL(
            "('x'::text || pg_catalog.left(pg_catalog.md5("
            "pg_catalog.convert_to({}, 'UTF8'::name)), 16))::bit(64)::bigint"
        ).format(text)

    def row(self, key: Sequence[sql.Composable], columns: Sequence[sql.Composable]) -> sql.Composed:
        """The select list of a side."""
        content = sql.SQL("ROW({})::text").format(sql.SQL(", ").join(columns))
        return sql.SQL("{} AS k, {} AS h").format(key_text(key), self.of(content))

    def bucket(self, bits: int, key: sql.Composable | None = None) -> sql.Composed:
        """The range that a key lies in."""
        return sql.SQL("({} & {}::bigint)").format(
            self.of(sql.SQL("k") if key is None else key), sql.Literal((1 << bits) - 1)
        )

    def within(self, ranges: KeyRanges, key: sql.Composable | None = None) -> sql.Composed:
        """Whether a key lies in one of these ranges."""
        return sql.SQL("{} = ANY({}::bigint[])").format(
            self.bucket(ranges.bits, key), sql.Literal(ranges.values)
        )


def key_text(key: Sequence[sql.Composable]) -> sql.Composed:
    """A key as both sides print it."""
    return sql.SQL("ROW({})::text").format(sql.SQL(", ").join(key))


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


@dataclass(frozen=True, slots=True)
class Apart:
    """What is wrong with rows that were told apart, and how many were there that do not count."""

    difference: Difference
    left_out: int


@dataclass(frozen=True, slots=True)
class Sums:
    """How many rows each side has, and in which ranges they are not the same."""

    expected_rows: int
    found_rows: int
    ranges: KeyRanges


def compare(expected: Side, found: Side, hashing: Hashing) -> Comparison:
    """Compare what should be there with what is; nothing leaves the databases when they agree."""
    seen = find_ranges(expected, found, hashing)
    if not seen.ranges:
        return Comparison(seen.expected_rows, seen.found_rows, None)
    left_out = 0
    for ranges in seen.ranges.passes(DETAIL_ROWS):
        apart = tell_apart(expected, found, hashing, ranges)
        left_out += apart.left_out
        if apart.difference.any:
            difference = apart.difference if ranges == seen.ranges else apart.difference.at_least
            return Comparison(seen.expected_rows - left_out, seen.found_rows, difference)
    return Comparison(seen.expected_rows - left_out, seen.found_rows, None)


def find_ranges(expected: Side, found: Side, hashing: Hashing) -> Sums:
    """Sum both sides up as a whole, and only where that differs by range.

    One sum of all is what a server does best, in parallel and without groups; tables that are
    equal cost no more. What differs is cut finer as long as that spares many keys their journey.
    """
    left, right = sum_whole(expected, found)
    if left == right:
        return Sums(left[0], right[0], KeyRanges(BITS, ()))
    ranges = KeyRanges(BITS, tuple(differing(*sum_ranges(expected, found, hashing, BITS))))
    while ranges.rows > DETAIL_ROWS:
        bits = ranges.finer_bits(_FINER_GROUPS, _MOST_BITS)
        if bits == ranges.bits:
            break
        sums = sum_ranges(expected, found, hashing, bits, ranges)
        finer = KeyRanges(bits, tuple(differing(*sums)))
        is_worth_more = finer.rows * 2 < ranges.rows
        ranges = finer
        if not is_worth_more:
            break
    return Sums(left[0], right[0], ranges)


def sum_whole(expected: Side, found: Side) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and the sum of their hashes, on both sides at once."""
    query = sql.SQL("SELECT 0, count(*), coalesce(pg_catalog.sum(h), 0) FROM ({}) rows")
    left, right = _at_once(expected, found, lambda side: query.format(side.rows))
    return left[0], right[0]


def sum_ranges(
    expected: Side,
    found: Side,
    hashing: Hashing,
    bits: int,
    within: KeyRanges | None = None,
) -> tuple[_ByRange, _ByRange]:
    """The same by range."""
    where = sql.SQL("") if within is None else sql.SQL(" WHERE ") + hashing.within(within)
    query = sql.SQL("SELECT {}, count(*), pg_catalog.sum(h) FROM ({}) rows{} GROUP BY 1")
    bucket = hashing.bucket(bits)
    return _at_once(expected, found, lambda side: query.format(bucket, side.rows, where))


def _at_once(
    expected: Side, found: Side, query: Callable[[Side], sql.Composed]
) -> tuple[_ByRange, _ByRange]:
    def sums(side: Side) -> _ByRange:
        result = side.connection.execute(query(side))
        return {bucket: (count, int(hashes)) for bucket, count, hashes in result}

    if expected.connection is found.connection:
        return sums(expected), sums(found)
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(sums, expected)
        try:
            theirs = sums(found)
        except BaseException:
            # Nobody waits for it any more.
            expected.connection.cancel()
            raise
        return ours.result(), theirs


def tell_apart(expected: Side, found: Side, hashing: Hashing, ranges: KeyRanges) -> Apart:
    """Bring the keys of these ranges together in the found side's database.

    Those that differ stay in FOUND there until the next are told apart. Keys that are left out are
    known there alone: the expected side is rid of them here.
    """
    connection = found.connection
    query = sql.SQL("SELECT k, h FROM ({}) rows WHERE {}")
    ours = query.format(expected.rows, hashing.within(ranges))
    for table in (OURS, FOUND):
        connection.execute(sql.SQL("DELETE FROM {}").format(table))
    if expected.connection is connection:
        connection.execute(sql.SQL("INSERT INTO {} {}").format(OURS, ours))
    else:
        copy_rows(expected.connection, ours, connection, OURS, ("k", "h"))
    left_out = connection.execute(
        sql.SQL("DELETE FROM {} WHERE k IN (SELECT k FROM {})").format(OURS, LEFT_OUT)
    ).rowcount
    connection.execute(
        sql.SQL(
            "INSERT INTO {}"
            " SELECT coalesce(s.k, t.k) AS k, CASE WHEN t.k IS NULL THEN 'missing'"
            " WHEN s.k IS NULL THEN 'extra' ELSE 'different' END AS what"
            " FROM {} s FULL JOIN ({}) t ON s.k = t.k WHERE s.h IS DISTINCT FROM t.h"
        ).format(FOUND, OURS, query.format(found.rows, hashing.within(ranges)))
    )
    counts = dict(
        connection.execute(
            sql.SQL("SELECT what, count(*) FROM {} GROUP BY what").format(FOUND)
        ).fetchall()
    )
    keys = {what: _examples(connection, what) for what in counts}
    difference = Difference(
        counts.get("missing", 0),
        counts.get("extra", 0),
        counts.get("different", 0),
        True,
        keys.get("missing", ()),
        keys.get("extra", ()),
        keys.get("different", ()),
    )
    return Apart(difference, left_out)


def _examples(connection: Connection, what: str) -> tuple[str, ...]:
    rows = connection.execute(
        sql.SQL("SELECT k FROM {} WHERE what = {} ORDER BY k LIMIT {}").format(
            FOUND, sql.Literal(what), sql.Literal(EXAMPLES)
        )
    )
    return tuple(row[0] for row in rows)


def _encoding(connection: Connection) -> str:
    row = connection.execute("SELECT current_setting('server_encoding')").fetchone()
    assert row is not None
    return str(row[0])
