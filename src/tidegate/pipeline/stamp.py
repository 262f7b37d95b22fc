"""Who stamps a cursor: what the source's catalog shows of it, and what that is worth."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.model.column import RelationKind
from tidegate.model.cursor import CursorType, Guarantee
from tidegate.model.horizon import Horizon
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

_CLOCK = re.compile(
    r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp)\(\)"
    r"|\b(CURRENT_TIMESTAMP|LOCALTIMESTAMP|CURRENT_DATE)\b"
)

_XID = re.compile(r"\bpg_current_xact_id\(\)")

# An identity column owns its sequence; a serial one names it in its default.
_DEFAULT = """
SELECT a.attidentity <> '', pg_get_expr(d.adbin, d.adrelid), s.seqrelid::regclass::text, s.seqcache
FROM pg_attribute a
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''
LEFT JOIN pg_sequence s ON s.seqrelid = coalesce(
    (SELECT p.objid FROM pg_depend p
     WHERE p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass
       AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum AND p.deptype = 'i' LIMIT 1),
    (SELECT p.refobjid FROM pg_depend p JOIN pg_sequence q ON q.seqrelid = p.refobjid
     WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
       AND p.refclassid = 'pg_class'::regclass LIMIT 1))
WHERE a.attrelid = %s AND a.attname = %s
"""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where the values of a cursor come from, as far as its column default shows."""

    by_source: bool
    words: str
    sequence_cache: int | None = None


def read_stamp(connection: Connection, source: PostgresSource) -> Stamp:
    """Look at the default of the cursor column."""
    if source.cursor is None:
        return Stamp(True, "no cursor is needed")
    kind = source.table.kind
    if kind in (RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW, RelationKind.QUERY):
        what = "a query" if kind is RelationKind.QUERY else "a view"
        return Stamp(False, f"{what} does not show who stamps its columns")
    row = connection.execute(_DEFAULT, (source.table.oid, source.cursor.name)).fetchone()
    identity, default, sequence, cache = row if row else (False, None, None, None)
    if source.cursor.type.is_integer and sequence is not None:
        how = "identity" if identity else "default"
        return Stamp(True, f"drawn from sequence {sequence} ({how})", cache)
    xid = source.cursor.type is CursorType.XID8
    if default is not None and (_XID if xid else _CLOCK).search(default):
        return Stamp(True, f"inserts are stamped by the source (DEFAULT {default})")
    if default is not None:
        right = "the id of the transaction" if xid else "the source's clock"
        return Stamp(False, f"its default is {default}, which is not {right}")
    return Stamp(False, "it has no default, so nothing shows who stamps it")


def combine(horizon: Horizon, stamp: Stamp, lookback: str | int | None) -> tuple[Guarantee, str]:
    """Which promise holds for a sync, and why."""
    reach = f"lookback = {lookback}" if lookback is not None else "no lookback is declared"
    if horizon.guarantee is not Guarantee.EXACT:
        return horizon.guarantee, horizon.because
    if stamp.sequence_cache is not None and stamp.sequence_cache > 1:
        return (
            Guarantee.BOUNDED,
            f"{stamp.words} with CACHE {stamp.sequence_cache}: sessions draw values ahead, so a "
            f"lower one may appear later; such rows are covered by lookback only ({reach})",
        )
    if stamp.by_source:
        return Guarantee.EXACT, f"{stamp.words}; {horizon.because}"
    return (
        Guarantee.BOUNDED,
        f"{stamp.words}; exact if the source database stamps every write, otherwise rows that "
        f"commit late are covered by lookback only ({reach})",
    )
