"""What must hold for `exact`: one row for each thing that may fail, and what is promised then.

`plan`, every run and the table in docs/concepts/watermarks.md go by RULES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from tidegate.core.relation import RelationKind, Table
from tidegate.core.watermark import CursorType, Guarantee
from tidegate.postgres.connection import Connection, own_path

UTC_NAMES = ("UTC", "GMT", "ETC/UTC", "ETC/GMT", "ZULU", "UCT")

_NOW = (
    r"(?:(?:now|clock_timestamp|statement_timestamp|transaction_timestamp)\(\)"
    r"|current_timestamp(?:\((\d)\))?)"
)
_LOCAL = r"(?:localtimestamp(?:\((\d)\))?|current_date)"
_ZONE = r"'([^']+)'(?:::text)?"
_PLAIN = re.compile(_NOW, re.IGNORECASE)
_OF_SESSION = re.compile(f"{_NOW}|{_LOCAL}", re.IGNORECASE)
_IN_ZONE = re.compile(
    rf"{_NOW} at time zone {_ZONE}|timezone\({_ZONE}, ?{_NOW}\)",
    re.IGNORECASE,
)
_CAST = re.compile(
    r"(.+?)::\s*(timestamptz|timestamp|date)(?:\s*\((\d)\))?( with time zone| without time zone)?",
    re.IGNORECASE | re.DOTALL,
)
_NEXTVAL = re.compile(r"nextval\(\(?'((?:[^']|'')+)'(?:::text\))?(?:::regclass)?\)", re.IGNORECASE)
_XID = re.compile(r"pg_current_xact_id\(\)", re.IGNORECASE)
_CASTS = {
    CursorType.TIMESTAMPTZ: ("timestamptz",),
    CursorType.TIMESTAMP: ("timestamptz", "timestamp"),
    CursorType.DATE: ("timestamptz", "timestamp", "date"),
}
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

# The table with its partitions and the tables that inherit from it.
TREE = """
RECURSIVE tree(oid) AS (
    SELECT %(oid)s::oid UNION
    SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid)
"""

# An identity column owns its sequence; a serial one names it in its default. A partition without
# a default gets its rows through the table that it belongs to.
_DEFAULTS = f"""
WITH {TREE}
SELECT DISTINCT c.oid <> %(oid)s::oid AND NOT c.relispartition, a.attidentity <> '',
    pg_get_expr(d.adbin, d.adrelid),
    EXISTS (SELECT FROM pg_depend p WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
            AND p.refclassid = 'pg_proc'::regclass),
    s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle
FROM tree JOIN pg_class c ON c.oid = tree.oid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''
LEFT JOIN pg_sequence s ON s.seqrelid = coalesce(
    (SELECT p.objid FROM pg_depend p
     WHERE p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass
       AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum AND p.deptype = 'i' LIMIT 1),
    (SELECT p.refobjid FROM pg_depend p JOIN pg_sequence q ON q.seqrelid = p.refobjid
     WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
       AND p.refclassid = 'pg_class'::regclass LIMIT 1))
WHERE NOT c.relispartition OR c.oid = %(oid)s::oid OR d.oid IS NOT NULL OR a.attidentity <> ''
"""

_TRIGGERS = f"""
WITH {TREE}
SELECT DISTINCT t.tgname::text, t.tgtype & 4 <> 0, t.tgtype & 16 <> 0,
    CASE WHEN l.lanname = 'plpgsql' THEN p.prosrc
         WHEN p.proname = 'moddatetime'
         THEN 'BEGIN NEW.' || quote_ident(replace(encode(t.tgargs, 'escape'), '\\000', ''))
             || ' := now();'
    END
FROM tree JOIN pg_trigger t ON t.tgrelid = tree.oid
JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang
WHERE t.tgtype & 3 = 3 AND t.tgtype & 20 <> 0 AND t.tgenabled <> 'D' AND NOT t.tgisinternal
"""

_SEQUENCE = """
SELECT seqrelid::regclass::text, seqcache, seqincrement, seqcycle FROM pg_catalog.pg_sequence
WHERE seqrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)
"""

# All that rows come from: partitions, inheriting tables, and what lies behind views. A
# subscription may fill a partition through the table that it belongs to.
_BEHIND = """
WITH RECURSIVE behind(oid) AS (
    SELECT %(oid)s::oid UNION
    SELECT n.oid FROM behind b CROSS JOIN LATERAL (
        SELECT i.inhrelid AS oid FROM pg_inherits i WHERE i.inhparent = b.oid
        UNION ALL
        SELECT d.refobjid FROM pg_rewrite r
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
            AND d.refclassid = 'pg_class'::regclass
        WHERE r.ev_class = b.oid) n),
above(oid) AS (
    SELECT oid FROM behind UNION
    SELECT i.inhparent FROM pg_inherits i JOIN above ON i.inhrelid = above.oid)
SELECT (SELECT c.oid::regclass::text FROM behind JOIN pg_class c USING (oid)
        WHERE c.relkind = 'f' ORDER BY c.oid LIMIT 1),
       (SELECT s.subname FROM above JOIN pg_subscription_rel r ON r.srrelid = above.oid
        JOIN pg_subscription s ON s.oid = r.srsubid ORDER BY s.oid LIMIT 1)
"""


class Stamped(Enum):
    """What an expression makes of the time of a write, or of a sequence."""

    BY_SOURCE = auto()
    IN_SESSION_ZONE = auto()
    IN_ZONE = auto()
    ALTERED = auto()
    OTHERWISE = auto()


@dataclass(frozen=True, slots=True)
class Sequence:
    """What a cursor is drawn from."""

    name: str
    cache: int = 1
    increment: int = 1
    cycles: bool = False


@dataclass(frozen=True, slots=True)
class Stamper:
    """A default or trigger that sets the cursor; `expression` None: a table without either."""

    what: str
    expression: str | None
    stamped: Stamped
    zone: str | None = None
    sequence: Sequence | None = None
    inserts: bool = True
    updates: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """What the session sees of the others."""

    role: str = ""
    standby: str | None = None
    """how far it is, in words"""
    sees_all: bool = True
    hidden: bool = False

    @property
    def is_clear(self) -> bool:
        """Whether open transactions show."""
        return self.standby is None and self.sees_all and not self.hidden


SIGHT = Sight()


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the rules look at."""

    kind: CursorType
    relation: RelationKind = RelationKind.TABLE
    sight: Sight = SIGHT
    zone: str = "UTC"
    """as which a cursor without a time zone is taken"""
    foreign: str | None = None
    subscription: str | None = None
    stampers: tuple[Stamper, ...] = ()
    settle_seconds: float = 60.0

    @property
    def is_derived(self) -> bool:
        """Whether its columns are those of other relations."""
        return self.relation in (
            RelationKind.VIEW,
            RelationKind.MATERIALIZED_VIEW,
            RelationKind.QUERY,
        )

    @property
    def needs_sight(self) -> bool:
        """The id of a transaction is compared with a snapshot's, which every session has."""
        return self.kind is not CursorType.XID8

    @property
    def clock(self) -> str:
        return "the id of the transaction" if self.kind is CursorType.XID8 else "the source's clock"

    @property
    def sequences(self) -> list[Sequence]:
        return [one.sequence for one in self.stampers if one.sequence is not None]

    @property
    def words(self) -> str:
        """Who stamps the cursor."""
        if self.is_derived:
            what = "a query" if self.relation is RelationKind.QUERY else "a view"
            return f"{what} does not show who stamps its columns"
        inserts = [one for one in self.stampers if one.inserts and one.expression is not None]
        updates = [one for one in self.stampers if one.updates]
        if not inserts and not updates:
            return "it has no default, so nothing shows who stamps it"
        of_updates = (
            f"updates by {updates[0].what}"
            if updates
            else "nothing stamps updates, and those that leave it as it was are not seen"
        )
        if not inserts:
            return f"nothing shows who stamps inserts; {of_updates}"
        first = inserts[0]
        if first.sequence is not None:
            return f"drawn from sequence {first.sequence.name} ({first.what}); {of_updates}"
        if first.stamped is Stamped.OTHERWISE:
            return f"{first.what} sets it to {first.expression}, which is not {self.clock}"
        by = f"{first.what.upper()} {first.expression}" if first.what == "default" else first.what
        return f"inserts are stamped by the source ({by}); {of_updates}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that must hold, how its failing is found, and what that means."""

    name: str
    holds: str
    failing: Callable[[Facts], str | None]
    guarantee: Guarantee
    lost: str
    """`{late}` is how late rows are read"""
    instead: str


_WAYS = 'use changes = "snapshot" or "cdc", or declare a lookback'
_LATE = "rows are read {late}, and transactions longer than that are covered by lookback only"
_BELOW = "rows whose value is below that of rows loaded before are covered by lookback only"

RULES: tuple[Rule, ...] = (
    Rule(
        "standby",
        "the source is a primary, not a standby",
        lambda f: f.sight.standby if f.needs_sight else None,
        Guarantee.SETTLED,
        _LATE + "; the time counts from what the standby has replayed",
        "read from the primary, or declare a lookback",
    ),
    Rule(
        "rights",
        "the role may see the transactions of others (`pg_read_all_stats`)",
        lambda f: (
            f"role {f.sight.role} may not see others' transactions "
            f"(GRANT pg_read_all_stats TO {f.sight.role} would make it exact)"
            if f.needs_sight and not f.sight.sees_all and f.sight.standby is None
            else None
        ),
        Guarantee.SETTLED,
        _LATE,
        "grant it, or declare a lookback",
    ),
    Rule(
        "hidden",
        "every session shows what it does (`track_activities`)",
        lambda f: (
            "sessions of the source do not show (track_activities)"
            if f.needs_sight and f.sight.hidden and f.sight.standby is None
            else None
        ),
        Guarantee.SETTLED,
        _LATE,
        "set track_activities = on, or declare a lookback",
    ),
    Rule(
        "subscription",
        "no subscription fills the table",
        lambda f: (
            f"subscription {f.subscription} brings rows that another server has stamped"
            if f.subscription
            else None
        ),
        Guarantee.BOUNDED,
        "rows that arrive after rows with higher values are covered by lookback only",
        f"read from the publisher, {_WAYS}",
    ),
    Rule(
        "foreign",
        "no foreign table holds its rows, as a partition or behind a view either",
        lambda f: (
            f"the rows of foreign table {f.foreign} are written on another server, whose open "
            "transactions do not show"
            if f.foreign
            else None
        ),
        Guarantee.BOUNDED,
        "rows that commit there after rows with higher values are covered by lookback only",
        "read from that server, or declare a lookback",
    ),
    Rule(
        "derived",
        "it is a table, so that its columns show who stamps them",
        lambda f: f.words if f.is_derived else None,
        Guarantee.BOUNDED,
        "exact if the source database stamps every write, otherwise rows that commit late are "
        "covered by lookback only",
        "read the table behind it, or declare a lookback",
    ),
    Rule(
        "unstamped",
        "a default or trigger of the source stamps it",
        lambda f: (
            f.words if not f.is_derived and not any(one.inserts for one in _known(f)) else None
        ),
        Guarantee.BOUNDED,
        "exact if the source database stamps every write, otherwise rows that commit late are "
        "covered by lookback only",
        f"give it a default, {_WAYS}",
    ),
    Rule(
        "inherited",
        "tables that inherit have such a default too",
        lambda f: (
            "a table that inherits has no default, so nothing shows who stamps its rows"
            if any(one.expression is None for one in f.stampers) and _known(f)
            else None
        ),
        Guarantee.BOUNDED,
        "rows of it that commit late are covered by lookback only",
        f"give it the default, {_WAYS}",
    ),
    Rule(
        "otherwise",
        "that stamp is the source's clock, a sequence or the id of the transaction",
        lambda f: _describe(f, Stamped.OTHERWISE, f"which is not {_origin(f)}"),
        Guarantee.BOUNDED,
        "exact if the source database stamps every write, otherwise rows that commit late are "
        "covered by lookback only",
        f"stamp it with {{clock}}, {_WAYS}",
    ),
    Rule(
        "altered",
        "it is taken as it is: `now()`, not `date_trunc('minute', now())`",
        lambda f: _describe(f, Stamped.ALTERED, f"which only contains {_origin(f)}"),
        Guarantee.BOUNDED,
        "a row may be stamped lower than rows that were loaded before it; such rows are covered "
        "by lookback only",
        f"stamp it with {{clock}} as it is, {_WAYS}",
    ),
    Rule(
        "session zone",
        "a `timestamp` or `date` is stamped in one time zone, whichever the session's is: "
        "`now() AT TIME ZONE 'UTC'`",
        lambda f: _describe(
            f,
            Stamped.IN_SESSION_ZONE,
            "which depends on the time zone of the session that writes",
        ),
        Guarantee.BOUNDED,
        "rows of a session whose zone lies further west are stamped hours back, and are covered "
        "by lookback only",
        f"make it a timestamptz, stamp it AT TIME ZONE 'UTC', {_WAYS}",
    ),
    Rule(
        "other zone",
        'that zone is UTC, and `cursor_timezone = "UTC"` where the server\'s is another',
        lambda f: _other_zone(f),
        Guarantee.BOUNDED,
        "rows that are stamped where clocks are set back, or hours off, are covered by lookback "
        "only",
        f'stamp it in UTC with cursor_timezone = "UTC", {_WAYS}',
    ),
    Rule(
        "cache",
        "its sequence has CACHE 1",
        lambda f: _sequence(f, lambda one: one.cache > 1, "with CACHE {0.cache}"),
        Guarantee.BOUNDED,
        "sessions draw values ahead, so a lower one may appear later; such rows are covered by "
        "lookback only",
        f"set CACHE 1, {_WAYS}",
    ),
    Rule(
        "descending",
        "its sequence counts up",
        lambda f: _sequence(f, lambda one: one.increment < 0, "which counts down"),
        Guarantee.BOUNDED,
        _BELOW + ", and so is every new row",
        'use another cursor, or changes = "snapshot" or "cdc"',
    ),
    Rule(
        "cycle",
        "its sequence does not CYCLE",
        lambda f: _sequence(f, lambda one: one.cycles, "which begins anew at its end (CYCLE)"),
        Guarantee.BOUNDED,
        _BELOW,
        f"set NO CYCLE, {_WAYS}",
    ),
)

_EXACT = {
    True: "read up to the highest value seen before the oldest open transaction began; exact for "
    "values drawn from a sequence (CACHE 1) or counter in the source database",
    False: "read only below the oldest open transaction; exact for values stamped by the source "
    "database, others are covered by lookback only",
}
_EXACT_XID = "read below the oldest transaction that is open; exact for the id of the transaction"


def judge(facts: Facts) -> tuple[Guarantee, str]:
    """The weakest promise of all rules that fail, and why; exact if none does."""
    failing = [(rule, found) for rule in RULES if (found := rule.failing(facts)) is not None]
    if not failing:
        why = _EXACT_XID if facts.kind is CursorType.XID8 else _EXACT[facts.kind.is_integer]
        return Guarantee.EXACT, f"{facts.words}; {why}"
    weakest = (
        Guarantee.BOUNDED
        if any(rule.guarantee is Guarantee.BOUNDED for rule, _ in failing)
        else Guarantee.SETTLED
    )
    late = f"{facts.settle_seconds:g} s late (settle)"
    clock = _advice(facts)
    return weakest, "; ".join(
        f"{found}; {rule.lost.format(late=late)}; {rule.instead.format(clock=clock)}"
        for rule, found in failing
    )


def documented() -> list[str]:
    """The rules as lines of the table in docs/concepts/watermarks.md."""
    return [
        f"| {rule.holds} | *{rule.guarantee}*: {rule.lost.format(late='`settle` late')} "
        f"| {rule.instead.format(clock='now()')} |"
        for rule in RULES
    ]


def read_facts(
    connection: Connection,
    table: Table,
    column: str,
    kind: CursorType,
    *,
    precision: int = 6,
    zone: str = "UTC",
    settle_seconds: float = 60.0,
) -> Facts:
    """What the source's catalog shows of a cursor."""
    facts = Facts(kind, table.kind, zone=zone, settle_seconds=settle_seconds)
    if table.kind is RelationKind.QUERY:
        return facts
    names = {"oid": table.oid, "column": column}
    row = connection.execute(_BEHIND, names).fetchone()
    assert row is not None
    facts = replace(facts, foreign=row[0], subscription=row[1])
    if facts.is_derived:
        return facts
    stampers: list[Stamper] = []
    for inherits, *found in connection.execute(_DEFAULTS, names).fetchall():
        stamper = _of_default(kind, precision, *found)
        if stamper.expression is not None or inherits:
            stampers.append(stamper)
    for name, inserts, updates, source in connection.execute(_TRIGGERS, names).fetchall():
        stampers += [
            _of_trigger(connection, kind, precision, name, one, inserts=inserts, updates=updates)
            for one in assigned(source or "", column)
        ]
    return replace(facts, stampers=tuple(stampers))


def _of_default(
    kind: CursorType,
    precision: int,
    identity: bool,
    default: str | None,
    calls_own: bool,
    sequence: str | None,
    cache: int,
    increment: int,
    cycles: bool,
) -> Stamper:
    if identity and sequence is not None:
        drawn = Sequence(sequence, cache, increment, cycles)
        return Stamper("identity", "nextval", Stamped.BY_SOURCE, sequence=drawn)
    if default is None:
        return Stamper("default", None, Stamped.OTHERWISE)
    stamped, zone = classify(default, kind, precision)
    if calls_own and stamped is not Stamped.OTHERWISE:
        stamped = Stamped.ALTERED
    drawn_from = None
    if kind.is_integer and stamped is Stamped.BY_SOURCE and sequence is not None:
        drawn_from = Sequence(sequence, cache, increment, cycles)
    return Stamper("default", default, stamped, zone, drawn_from)


def _of_trigger(
    connection: Connection,
    kind: CursorType,
    precision: int,
    name: str,
    expression: str,
    *,
    inserts: bool,
    updates: bool,
) -> Stamper:
    stamped, zone = classify(expression, kind, precision)
    sequence = None
    match = _NEXTVAL.fullmatch(expression)
    if kind.is_integer and match is not None:
        # The name stands in a function of the user's, which looks it up by the path of its session.
        with own_path(connection):
            row = connection.execute(_SEQUENCE, (match.group(1).replace("''", "'"),)).fetchone()
        sequence = Sequence(*row) if row else None
        if sequence is None:
            stamped = Stamped.ALTERED
    return Stamper(f"trigger {name}", expression, stamped, zone, sequence, inserts, updates)


def assigned(source: str, column: str) -> Iterable[str]:
    """What a trigger's PL/pgSQL sets a column of the new row to."""
    quoted = re.escape('"' + column.replace('"', '""') + '"')
    name = f"(?:{quoted}|{re.escape(column)})" if column == column.lower() else quoted
    text = " ".join(_COMMENT.sub(" ", source).split())
    statement = rf"(?:^|;|\bBEGIN|\bTHEN|\bELSE|\bLOOP)\s*NEW\s*\.\s*{name}\s*:?=\s*([^;]+)"
    return [match.group(1).strip() for match in re.finditer(statement, text, re.IGNORECASE)]


def classify(expression: str, kind: CursorType, precision: int) -> tuple[Stamped, str | None]:
    """What an expression stamps, as Postgres prints it, and in which time zone."""
    text = " ".join(expression.split())
    if kind.is_integer:
        return _taken(_NEXTVAL, text), None
    if kind is CursorType.XID8:
        return _taken(_XID, text), None
    text, digits = _uncast(text, _CASTS[kind])
    text = text.replace("pg_catalog.", "")
    within = _IN_ZONE.fullmatch(text)
    if within and kind is not CursorType.TIMESTAMPTZ:
        first, zone, other_zone, second = within.groups()
        if _keeps(precision, digits, first, second):
            return Stamped.IN_ZONE, zone or other_zone
        return Stamped.ALTERED, None
    found = (_PLAIN if kind is CursorType.TIMESTAMPTZ else _OF_SESSION).fullmatch(text)
    if found and (kind is CursorType.DATE or text.lower() != "current_date"):
        if not _keeps(precision, digits, *found.groups()):
            return Stamped.ALTERED, None
        plain = kind is CursorType.TIMESTAMPTZ
        return (Stamped.BY_SOURCE if plain else Stamped.IN_SESSION_ZONE), None
    return (Stamped.ALTERED if _OF_SESSION.search(text) else Stamped.OTHERWISE), None


def _taken(pattern: re.Pattern[str], text: str) -> Stamped:
    if pattern.fullmatch(text):
        return Stamped.BY_SOURCE
    return Stamped.ALTERED if pattern.search(text) else Stamped.OTHERWISE


def _keeps(precision: int, *digits: str | int | None) -> bool:
    """Whether nothing is rounded that the column would keep."""
    return all(one is None or int(one) >= precision for one in digits)


def _uncast(text: str, allowed: tuple[str, ...]) -> tuple[str, int | None]:
    """The expression without brackets around it and casts to what the column is anyway."""
    digits: int | None = None
    while True:
        if text.startswith("(") and text.endswith(")") and _is_one(text[1:-1]):
            text = text[1:-1].strip()
            continue
        match = _CAST.fullmatch(text)
        if match is None:
            return text, digits
        inner, name, places, zone = match.groups()
        if zone and zone.strip().lower() == "with time zone":
            name = "timestamptz"
        if name.lower() not in allowed or not _is_one(inner):
            return text, digits
        if places is not None:
            digits = min(int(places), 6 if digits is None else digits)
        text = inner.strip()


def _is_one(text: str) -> bool:
    """Whether brackets are in balance, and no closing one comes first."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def _known(facts: Facts) -> list[Stamper]:
    return [one for one in facts.stampers if one.expression is not None]


def _origin(facts: Facts) -> str:
    return "a sequence" if facts.kind.is_integer else facts.clock


def _advice(facts: Facts) -> str:
    if facts.kind.is_integer:
        return "nextval()"
    return "pg_current_xact_id()" if facts.kind is CursorType.XID8 else "now()"


def _describe(facts: Facts, stamped: Stamped, words: str) -> str | None:
    found = next((one for one in _known(facts) if one.stamped is stamped), None)
    if found is None:
        return None
    what = "its default" if found.what == "default" else found.what
    verb = "is" if found.what == "default" else "sets it to"
    return f"{what} {verb} {found.expression}, {words}"


def _other_zone(facts: Facts) -> str | None:
    for theirs in (one.zone for one in _known(facts) if one.zone is not None):
        zones = {theirs.upper(), facts.zone.upper()}
        if zones <= set(UTC_NAMES):
            continue
        if len(zones) > 1:
            return f"it is stamped in {theirs} and read as {facts.zone} (cursor_timezone)"
        return f"it is taken as {facts.zone} (cursor_timezone), which may set its clocks back"
    return None


def _sequence(facts: Facts, bad: Callable[[Sequence], bool], words: str) -> str | None:
    found: Any = next((one for one in facts.sequences if bad(one)), None)
    return None if found is None else f"drawn from sequence {found.name} {words.format(found)}"
