"""Comparing relations without a key, as bags: which rows are there, and how often.

Only hashes of rows travel, and only those of ranges whose sums differ, a bounded number of them
at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.model.key_ranges import KeyRanges, differing
from tidegate.model.rules import Mode
from tidegate.model.verification import Difference
from tidegate.pipeline.compare import (
    BITS,
    EXAMPLES,
    OURS,
    Comparison,
    Hashing,
    Side,
    sum_ranges,
    sum_whole,
)
from tidegate.spark.copying import copy_rows

PASS_ROWS = 5_000_000


@dataclass(frozen=True, slots=True)
class Bags:
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
        difference = Difference(
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


def compare_bags(
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
    at_least = mode is Mode.APPEND
    comparison, extra = Bags(expected, both, hashing, at_least).compare()
    comparison = replace(comparison, found_rows=comparison.found_rows - count)
    unknown = max(0, comparison.found_rows - put_in) if at_least else 0
    if unknown:
        missing = comparison.difference or Difference(0, 0, 0, complete=True)
        comparison = replace(comparison, difference=replace(missing, extra=unknown))
    return comparison, extra - unknown if at_least else 0, count


def _texts(side: Side, hashes: list[int]) -> tuple[str, ...]:
    rows = side.connection.execute(
        sql.SQL(
            "SELECT DISTINCT k FROM ({}) rows WHERE h = ANY({}::bigint[]) ORDER BY k LIMIT {}"
        ).format(side.rows, sql.Literal(hashes), sql.Literal(EXAMPLES))
    )
    return tuple(row[0] for row in rows)
