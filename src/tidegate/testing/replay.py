"""The sample as a history: which rows were written when, in steps between which a run takes place.

Rows come in the order in which they were really written. A row that was written after rows with
a higher cursor is late: it comes in a step of its own, after a run has seen those. The last step
changes rows that are loaded already, stamped as the source would.
"""

from __future__ import annotations

from typing import Any

from psycopg import sql

from tidegate.core.relation import Table
from tidegate.core.watermark import CursorType
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, qualified
from tidegate.testing.sample import SAMPLE, column_value, values

STEPS = 4
MAX_ROWS = 50_000
CHANGE = sql.Identifier("tidegate_prove", "change")
# Transactions that ran side by side write in another order than they stamp; the horizon covers
# that, so it counts as order. What is further apart was stamped wrongly.
_SIDE_BY_SIDE = {
    CursorType.TIMESTAMPTZ: "interval '10 minutes'",
    CursorType.TIMESTAMP: "interval '10 minutes'",
    CursorType.DATE: "0",
    CursorType.SMALLINT: "10",
    CursorType.INTEGER: "10",
    CursorType.BIGINT: "10",
}


def cursor_type(table: Table, cursor: str | None) -> CursorType | None:
    column = table.column(cursor) if cursor else None
    return CursorType.of(column.wire) if column else None


def drop_future(copy: Connection, table: Table, cursor: str, zone: str) -> int:
    """Remove rows stamped after now, which no run would load today; how many they were."""
    kind = cursor_type(table, cursor)
    local = sql.SQL("clock_timestamp() AT TIME ZONE {}").format(sql.Literal(zone))
    limits = {
        CursorType.TIMESTAMPTZ: sql.SQL("{} > clock_timestamp() - interval '1 second'"),
        CursorType.TIMESTAMP: sql.SQL("{} > ({local}) - interval '1 second'"),
        CursorType.DATE: sql.SQL("{} >= ({local})::date"),
    }
    if kind is None or kind not in limits:
        return 0
    late = limits[kind].format(column_value(table, cursor), local=local)
    return copy.execute(sql.SQL("DELETE FROM {} WHERE {}").format(SAMPLE, late)).rowcount


def arrange(copy: Connection, table: Table, cursor: str | None, key: tuple[str, ...]) -> int:
    """Give every row its place and step; how many steps there are."""
    kind = cursor_type(table, cursor)
    position: sql.Composable = sql.SQL("NULL::bigint")
    slack: sql.Composable = sql.SQL("0")
    if kind is not None and cursor is not None:
        position = column_value(table, cursor)
        slack = sql.SQL(_SIDE_BY_SIDE[kind])
    keys = [sql.SQL("{}::text").format(column_value(table, name)) for name in key]
    copy.execute(
        sql.SQL(_ARRANGE).format(
            sample=SAMPLE,
            position=position,
            slack=slack,
            keys=sql.SQL(", ").join([*keys, sql.SQL("ctid")]),
            steps=sql.Literal(STEPS),
        )
    )
    row: Any = copy.execute(sql.SQL("SELECT max(step) FROM {}").format(SAMPLE)).fetchone()
    return int(row[0] or 0)


# `seen` is the highest cursor written before a row. Rows of one cursor are not parted: they may
# come from one transaction. A late row comes one step after the row whose cursor was higher.
_ARRANGE = """
WITH written AS (
    SELECT ctid AS row_id, {position} AS position,
           row_number() OVER (ORDER BY written DESC, {position} NULLS FIRST, {keys}) AS n
    FROM {sample}
), passed AS (
    SELECT *, max(position) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
              AS seen
    FROM written
), judged AS (
    SELECT *, coalesce(position < seen - {slack}, false) AS is_late FROM passed
), placed AS (
    SELECT *, row_number() OVER (ORDER BY is_late, position NULLS FIRST, n) AS place,
           count(*) FILTER (WHERE NOT is_late) OVER () AS regular
    FROM judged
), tied AS (
    SELECT *, CASE WHEN is_late THEN NULL WHEN position IS NULL THEN place
              ELSE min(place) OVER (PARTITION BY is_late, position) END AS first
    FROM placed
), stepped AS (
    SELECT *, ((first - 1) * {steps} / greatest(regular, 1)) * 2 AS half FROM tied
), witnessed AS (
    SELECT s.*, w.place AS witness, w.half AS witness_half
    FROM stepped s
    LEFT JOIN LATERAL (
        SELECT place, half FROM stepped w
        WHERE s.is_late AND NOT w.is_late AND w.position = s.seen AND w.n < s.n
        ORDER BY w.n LIMIT 1) w ON true
), final AS (
    SELECT row_id, place, is_late, witness,
           dense_rank() OVER (ORDER BY coalesce(half, witness_half + 1)) AS step
    FROM witnessed
)
UPDATE {sample} s SET place = f.place, step = f.step, late = f.is_late, after = f.witness
FROM final f WHERE f.row_id = s.ctid
"""


def plan_changes(
    copy: Connection, table: Table, key: tuple[str, ...], cursor: str | None, seed: int, zone: str
) -> int:
    """Choose a fifth of the rows and what they change to: another row's content, a new stamp."""
    make_change_table(copy)
    stamp = _stamp(copy, table, cursor, zone)
    kept = set(key).union(*table.unique_keys)
    if cursor is not None and (cursor in kept or stamp is None):
        return 0
    chosen = [
        stamp
        if name == cursor and stamp is not None
        else sql.SQL("{}{}").format(
            sql.SQL("own." if name in kept else "other."), column_value(table, name)
        )
        for name in table.column_names
    ]
    return copy.execute(
        sql.SQL(
            "WITH lot AS (SELECT *, row_number() OVER (ORDER BY md5({seed} || ' ' || place)) AS n,"
            " count(*) OVER () AS total FROM {sample})"
            " INSERT INTO {change} (place, {values})"
            " SELECT own.place, {chosen} FROM lot own JOIN lot other ON other.n ="
            " CASE WHEN own.n = own.total THEN 1 ELSE own.n + 1 END"
            " WHERE own.n <= greatest(1, own.total / 5)"
        ).format(
            seed=sql.Literal(str(seed)),
            sample=SAMPLE,
            change=CHANGE,
            values=values(table),
            chosen=sql.SQL(", ").join(chosen),
        )
    ).rowcount


def make_change_table(copy: Connection) -> None:
    copy.execute(sql.SQL("CREATE TABLE {} (LIKE {})").format(CHANGE, SAMPLE))


def _stamp(copy: Connection, table: Table, cursor: str | None, zone: str) -> sql.Composable | None:
    """A cursor above all others and below now, one for each change; None when there is none."""
    kind = cursor_type(table, cursor)
    if kind is None or cursor is None:
        return None
    if kind is CursorType.XID8:
        return sql.SQL("pg_current_xact_id()")
    column = column_value(table, cursor)
    row: Any = copy.execute(
        sql.SQL("SELECT max({c}), max({c})::text FROM {s}").format(c=column, s=SAMPLE)
    ).fetchone()
    highest, text = row
    if highest is None:
        return None
    if kind.is_integer:
        limit = {CursorType.SMALLINT: 15, CursorType.INTEGER: 31, CursorType.BIGINT: 63}[kind]
        if highest + MAX_ROWS / 5 >= 2**limit - 1:
            return None
        return sql.SQL("{} + own.n").format(sql.Literal(highest))
    local = sql.SQL("clock_timestamp() AT TIME ZONE {}").format(sql.Literal(zone))
    if kind is CursorType.DATE:
        found: Any = copy.execute(
            sql.SQL("SELECT {}::date < ({})::date - 1").format(sql.Literal(text), local)
        ).fetchone()
        return sql.SQL("({})::date - 1").format(local) if found[0] else None
    now = sql.SQL("clock_timestamp()") if kind is CursorType.TIMESTAMPTZ else local
    # Milliseconds apart, a few seconds ago: columns that keep fewer decimals round them.
    return sql.SQL(
        "greatest({highest}::{type}, ({now}) - interval '3 seconds') + own.n * interval '1 ms'"
    ).format(highest=sql.Literal(text), type=sql.SQL(kind.value), now=now)


def apply_step(source: Connection, table: Table, step: int) -> None:
    """Write the rows of one step, in their order, in one transaction."""
    source.execute(
        sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE step = {} ORDER BY place").format(
            qualified(table.relation),
            column_list(table.column_names),
            values(table),
            SAMPLE,
            sql.Literal(step),
        )
    )


def apply_changes(source: Connection, table: Table) -> int:
    """Change the chosen rows; found by their whole content, since a key may be wrong."""
    columns = column_list(table.column_names)
    return source.execute(
        sql.SQL(
            "UPDATE {table} t SET ({columns}) = ROW({new}) FROM {change} c"
            " JOIN {sample} s ON s.place = c.place"
            " WHERE ROW({current})::text = ROW({old})::text"
        ).format(
            table=qualified(table.relation),
            columns=columns,
            new=values(table, "c."),
            change=CHANGE,
            sample=SAMPLE,
            current=column_list(table.column_names, "t"),
            old=values(table, "s."),
        )
    ).rowcount


def keep_places(source: Connection, places: list[int]) -> None:
    """Leave only these rows in the history."""
    for table in (SAMPLE, CHANGE):
        source.execute(
            sql.SQL("DELETE FROM {} WHERE NOT place = ANY (%s)").format(table), (places,)
        )
