"""Compare by key ranges, or as multisets without a key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.config.sync import Mode
from tidegate.load.modes import MODES
from tidegate.postgres.connection import Connection
from tidegate.spark.binary_copy import copy_rows
from tidegate.verify.report import RowDifference


@dataclass(frozen=True, slots=True)
class KeyRange:
    """One part, and how many rows lie in it on the side that has more of them."""

    value: int
    rows: int


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Parts of one cut: keys whose hash ends, in so many bits, in one of these values."""

    bits: int
    ranges: tuple[KeyRange, ...]

    @property
    def values(self) -> list[int]:
        return [one.value for one in self.ranges]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        """Tells them apart from any others."""
        digest = hashlib.sha256(repr((self.bits, self.values)).encode()).hexdigest()[:12]
        return f"{len(self.ranges):,} of {1 << self.bits:,} key ranges ({digest})"

    def passes(self, most_rows: int) -> Iterator[KeyRanges]:
        """The same in groups of at most so many rows, unless a single one has more."""
        chosen: list[KeyRange] = []
        size = 0
        for one in self.ranges:
            if chosen and size + one.rows > most_rows:
                yield KeyRanges(self.bits, tuple(chosen))
                chosen, size = [], 0
            chosen.append(one)
            size += one.rows
        if chosen:
            yield KeyRanges(self.bits, tuple(chosen))

    def finer_bits(self, most_groups: int, most_bits: int) -> int:
        """How many bits cut these ranges into no more than so many."""
        bits = self.bits
        while bits < most_bits and len(self.ranges) << (bits + 1 - self.bits) <= most_groups:
            bits += 1
        return bits


def differing(
    left: dict[int, tuple[int, int]], right: dict[int, tuple[int, int]]
) -> Sequence[KeyRange]:
    """The parts whose sums are not the same, in order."""
    nothing = (0, 0)
    return tuple(
        KeyRange(value, max(left.get(value, nothing)[0], right.get(value, nothing)[0]))
        for value in sorted(left.keys() | right.keys())
        if left.get(value) != right.get(value)
    )


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
    difference: RowDifference | None


NONE = Comparison(0, 0, None)


@dataclass(frozen=True, slots=True)
class DifferingRows:
    """What is wrong with rows that were told apart, and how many were there that do not count."""

    difference: RowDifference
    left_out: int


@dataclass(frozen=True, slots=True)
class RangeSums:
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
        apart = find_differing_rows(expected, found, hashing, ranges)
        left_out += apart.left_out
        if apart.difference.any:
            difference = apart.difference if ranges == seen.ranges else apart.difference.at_least
            return Comparison(seen.expected_rows - left_out, seen.found_rows, difference)
    return Comparison(seen.expected_rows - left_out, seen.found_rows, None)


def find_ranges(expected: Side, found: Side, hashing: Hashing) -> RangeSums:
    """Sum both sides up as a whole, and only where that differs by range.

    One sum of all is what a server does best, in parallel and without groups; tables that are
    equal cost no more. What differs is cut finer as long as that spares many keys their journey.
    """
    left, right = sum_whole(expected, found)
    if left == right:
        return RangeSums(left[0], right[0], KeyRanges(BITS, ()))
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
    return RangeSums(left[0], right[0], ranges)


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


def find_differing_rows(
    expected: Side, found: Side, hashing: Hashing, ranges: KeyRanges
) -> DifferingRows:
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
    difference = RowDifference(
        counts.get("missing", 0),
        counts.get("extra", 0),
        counts.get("different", 0),
        True,
        keys.get("missing", ()),
        keys.get("extra", ()),
        keys.get("different", ()),
    )
    return DifferingRows(difference, left_out)


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


PASS_ROWS = 5_000_000


@dataclass(frozen=True, slots=True)
class Multisets:
    """Two sides of (row as text, hash of it); with `at_least` there may be more than expected."""

    expected: Side
    found: Side
    hashing: Hashing
    at_least: bool = False

    def compare(self) -> tuple[Comparison, int]:
        """What is missing and, unless that is allowed, extra; and how many extra rows there are."""
        (rows, ours), (found_rows, theirs) = sum_whole(self.expected, self.found)
        if (rows, ours) == (found_rows, theirs):
            return Comparison(rows, found_rows, None), 0
        unequal = differing(*sum_ranges(self.expected, self.found, self.hashing, BITS))
        missing = extra = 0
        missing_hashes: list[int] = []
        extra_hashes: list[int] = []
        for ranges in KeyRanges(BITS, tuple(unequal)).passes(PASS_ROWS):
            found = self._pass(ranges)
            missing, extra = missing + found[0], extra + found[1]
            missing_hashes += found[2]
            extra_hashes += found[3]
        wrong = missing + (0 if self.at_least else extra)
        if not wrong:
            return Comparison(rows, found_rows, None), extra
        difference = RowDifference(
            missing,
            0 if self.at_least else extra,
            0,
            complete=True,
            missing_keys=_texts(self.expected, missing_hashes[:EXAMPLES]),
            extra_keys=() if self.at_least else _texts(self.found, extra_hashes[:EXAMPLES]),
        )
        return Comparison(rows, found_rows, difference), extra

    def _pass(self, ranges: KeyRanges) -> tuple[int, int, list[int], list[int]]:
        """Count every row of these ranges on both sides, in the found side's database."""
        connection = self.found.connection
        hashes = sql.SQL("SELECT h FROM ({}) rows WHERE {}")
        chosen = self.hashing.within(ranges)
        ours = hashes.format(self.expected.rows, chosen)
        connection.execute(sql.SQL("DELETE FROM {}").format(OURS))
        if self.expected.connection is connection:
            connection.execute(sql.SQL("INSERT INTO {} (h) {}").format(OURS, ours))
        else:
            copy_rows(self.expected.connection, ours, connection, OURS, ("h",))
        row = connection.execute(
            sql.SQL(
                "WITH s AS (SELECT h, count(*) AS n FROM {ours} GROUP BY h),"
                " t AS (SELECT h, count(*) AS n FROM ({found}) f GROUP BY h),"
                " wrong AS (SELECT h, coalesce(s.n, 0) - coalesce(t.n, 0) AS lack"
                " FROM s FULL JOIN t USING (h) WHERE s.n IS DISTINCT FROM t.n)"
                " SELECT coalesce(sum(lack) FILTER (WHERE lack > 0), 0)::bigint,"
                " coalesce(-sum(lack) FILTER (WHERE lack < 0), 0)::bigint,"
                " ARRAY(SELECT h FROM wrong WHERE lack > 0 LIMIT {few}),"
                " ARRAY(SELECT h FROM wrong WHERE lack < 0 LIMIT {few}) FROM wrong"
            ).format(
                ours=OURS,
                found=hashes.format(self.found.rows, chosen),
                few=sql.Literal(EXAMPLES),
            )
        ).fetchone()
        assert row is not None
        return row[0], row[1], row[2], row[3]


def compare_multisets(
    expected: Side,
    found: Side,
    hashing: Hashing,
    mode: Mode,
    put_in: int,
    aside: sql.Composable | None = None,
) -> tuple[Comparison, int, int]:
    """Rows of the target and those set aside against what is expected.

    An append may hold more than that, versions that are older now, but no more than its loads
    have `put_in`: whatever is there twice is told by its number. Returns the comparison, how many
    more rows there are where that is no fault, and how many were set aside.
    """
    count = 0
    both = found
    if aside is not None:
        row = found.connection.execute(
            sql.SQL("SELECT count(*) FROM ({}) r").format(aside)
        ).fetchone()
        count = int(row[0]) if row else 0
        both = Side(found.connection, sql.SQL("{} UNION ALL {}").format(found.rows, aside))
    at_least = MODES[mode].only_adds
    comparison, extra = Multisets(expected, both, hashing, at_least).compare()
    comparison = replace(comparison, found_rows=comparison.found_rows - count)
    unknown = max(0, comparison.found_rows - put_in) if at_least else 0
    if unknown:
        missing = comparison.difference or RowDifference(0, 0, 0, complete=True)
        comparison = replace(comparison, difference=replace(missing, extra=unknown))
    return comparison, extra - unknown if at_least else 0, count


def _texts(side: Side, hashes: list[int]) -> tuple[str, ...]:
    rows = side.connection.execute(
        sql.SQL(
            "SELECT DISTINCT k FROM ({}) rows WHERE h = ANY({}::bigint[]) ORDER BY k LIMIT {}"
        ).format(side.rows, sql.Literal(hashes), sql.Literal(EXAMPLES))
    )
    return tuple(row[0] for row in rows)
