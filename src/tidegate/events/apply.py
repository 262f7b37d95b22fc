"""Staged events into facts and dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import StagingLost
from tidegate.core.relation import Relation
from tidegate.events.model import BatchEnd, Dimension, EventField, EventModel, FieldType
from tidegate.events.project_events import ProjectEvents
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import column_list, qualified, statement

_HEAD = (
    ("raw_id", "uuid"),
    ("place", "integer"),
    ("error", "text"),
    ("event_hash", "bytea"),
)
# Last, so that nobody has to read past it.
_TAIL = (("payload", "jsonb"),)
# What an event without an error has. Staging tables have no statistics, and of this the planner
# assumes that almost every row has it.
_GOOD = sql.SQL("event_hash IS NOT NULL")


@dataclass(frozen=True, slots=True)
class EventStatements:
    """Every statement has one fixed order of rows, so that instances never wait in a circle."""

    model: EventModel

    @property
    def staged_columns(self) -> tuple[tuple[str, str], ...]:
        """(name, type) of a staging table; names are its own, whatever the model calls them."""
        return (
            *_HEAD,
            *((f"v{place}", column_type(one)) for place, one in enumerate(self.model.fields)),
            *(
                (f"d{place}", "uuid")
                for place, one in enumerate(self.model.dimensions)
                if one.id_column is not None
            ),
            *_TAIL,
        )

    def rows(self, tables: Sequence[sql.Identifier]) -> sql.Composed:
        """All that was staged, as one relation."""
        names = column_list(name for name, _ in self.staged_columns)
        return sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {} FROM {}").format(names, table) for table in tables
        )

    def months(self, rows: sql.Composable) -> sql.Composed:
        """How many events each month has; those that fail have none."""
        return sql.SQL(
            "SELECT CASE WHEN {good} THEN {month} END AS month, count(*)"
            " FROM ({rows}) s GROUP BY 1 ORDER BY 1"
        ).format(good=_GOOD, month=self._month(), rows=rows)

    def settled(self, rows: sql.Composable, missing: Sequence[datetime]) -> sql.Composable:
        """The staged events that get their status now; others wait for their month."""
        if not missing:
            return rows
        return sql.SQL(
            "SELECT * FROM ({rows}) r WHERE error IS NOT NULL OR {month} <> ALL({missing})"
        ).format(rows=rows, month=self._month(), missing=sql.Literal(list(missing)))

    def between(self, settled: sql.Composable, first: int, end: int) -> sql.Composed:
        """Those whose places in the batch lie in a range."""
        return sql.SQL("SELECT * FROM ({}) b WHERE place >= {} AND place < {}").format(
            settled, sql.Literal(first), sql.Literal(end)
        )

    def settle(self, raw: Relation, settled: sql.Composable) -> sql.Composed:
        return sql.SQL(
            "UPDATE {raw} r SET status = CASE WHEN s.error IS NULL THEN 'done' ELSE 'failed' END,"
            " payload = s.payload, error = s.error, processed_at = statement_timestamp()"
            " FROM ({rows}) s WHERE r.id = s.raw_id AND r.status = 'pending'"
        ).format(raw=qualified(raw), rows=settled)

    def insert_facts(self, settled: sql.Composable) -> sql.Composed:
        """Of one hash the event that was received first; what is there stays."""
        columns = self._fact_columns()
        return sql.SQL(
            "INSERT INTO {facts} (event_hash, {names})"
            " SELECT DISTINCT ON (event_hash) event_hash, {values} FROM ({rows}) s"
            " WHERE {good} ORDER BY event_hash, place ON CONFLICT DO NOTHING"
        ).format(
            good=_GOOD,
            facts=qualified(self.model.facts),
            names=column_list(columns),
            values=column_list(columns.values()),
            rows=settled,
        )

    def upsert_dimension(self, place: int, settled: sql.Composable) -> sql.Composed:
        """One row for each key of the batch; those that would not change are not touched."""
        dimension = self.model.dimensions[place]
        id_ = self._id_column(place)
        keys = {one.name: self._value_column(one) for one in dimension.key}
        if dimension.id_column is not None:
            keys = {dimension.id_column: id_, **keys}
        names = [*keys, "first_seen_at", "last_seen_at"]
        select: list[sql.Composable] = [sql.Identifier("k", one) for one in keys.values()]
        select += [sql.SQL("k.first_seen_at"), sql.SQL("k.last_seen_at")]
        newest: sql.Composable = sql.SQL("")
        if dimension.attributes:
            names += [one.name for one in dimension.attributes]
            names += ["attributes_at", "attributes_hash"]
            select += [sql.Identifier("n", self._value_column(one)) for one in dimension.attributes]
            select += [sql.SQL("k.attributes_at"), sql.SQL("n.attributes_hash")]
            newest = self._newest(dimension, id_)
        return sql.SQL(
            "WITH good AS NOT MATERIALIZED (SELECT * FROM ({rows}) r WHERE {good}"
            " AND {id} IS NOT NULL), k AS MATERIALIZED (SELECT {keys}, {seen} FROM good"
            " GROUP BY {keys}) INSERT INTO {table} AS t ({names}) SELECT {select} FROM k{newest}"
            " LEFT JOIN {table} t ON t.{own} = k.{id} WHERE t.{own} IS NULL OR {changed}"
            " ORDER BY k.{id} ON CONFLICT ({own}) DO UPDATE SET {sets} WHERE {changes}"
        ).format(
            rows=settled,
            good=_GOOD,
            id=sql.Identifier(id_),
            keys=column_list(keys.values()),
            seen=self._seen(dimension),
            table=qualified(dimension.table),
            names=column_list(names),
            select=sql.SQL(", ").join(select),
            newest=newest,
            own=sql.Identifier(dimension.fact_column),
            changed=_changes(dimension, "k", "n"),
            sets=_sets(dimension),
            changes=_changes(dimension, "excluded", "excluded"),
        )

    def _seen(self, dimension: Dimension) -> sql.Composed:
        """When a row was seen, and when last with any attribute."""
        seen = sql.SQL("min({moment}) AS first_seen_at, max({moment}) AS last_seen_at").format(
            moment=self._moment()
        )
        if not dimension.attributes:
            return seen
        return seen + sql.SQL(", max({}) FILTER (WHERE {}) AS attributes_at").format(
            self._moment(), self._has_any(dimension)
        )

    def _newest(self, dimension: Dimension, id_: str) -> sql.Composed:
        """The attributes of that event; of several at one moment, of the one with the last hash."""
        return sql.SQL(
            " LEFT JOIN (SELECT DISTINCT ON (g.{id}) g.{id}, {attributes},"
            " g.event_hash AS attributes_hash FROM k JOIN good g"
            " ON g.{id} = k.{id} AND g.{moment} = k.attributes_at WHERE {has_any}"
            " ORDER BY g.{id}, g.event_hash DESC, g.place) n ON n.{id} = k.{id}"
        ).format(
            id=sql.Identifier(id_),
            attributes=column_list(map(self._value_column, dimension.attributes), "g"),
            moment=self._moment(),
            has_any=self._has_any(dimension, "g"),
        )

    def _has_any(self, dimension: Dimension, prefix: str | None = None) -> sql.Composed:
        names = map(self._value_column, dimension.attributes)
        return sql.SQL("num_nonnulls({}) > 0").format(column_list(names, prefix))

    def _fact_columns(self) -> dict[str, str]:
        """The columns of the facts, each with the staged one that it comes from."""
        found = {one.name: self._value_column(one) for one in self.model.columns}
        for place, dimension in enumerate(self.model.dimensions):
            found.setdefault(dimension.fact_column, self._id_column(place))
        return found

    def _value_column(self, field: EventField) -> str:
        return f"v{[one.name for one in self.model.fields].index(field.name)}"

    def _id_column(self, place: int) -> str:
        """By which staged column an event names its row of a dimension."""
        dimension = self.model.dimensions[place]
        return f"d{place}" if dimension.id_column else self._value_column(dimension.key[0])

    def _moment(self) -> sql.Identifier:
        return sql.Identifier(self._value_column(self.model.partition_field))

    def _month(self) -> sql.Composed:
        return sql.SQL("date_trunc('month', {}, 'UTC')").format(self._moment())


def column_type(field: EventField) -> str:
    """The type of a field's column."""
    if field.type is FieldType.NUMERIC and field.precision is not None:
        return f"numeric({field.precision},{field.scale or 0})"
    return field.type.value


def _newer(seen: str, newest: str) -> sql.Composed:
    """Whether attributes are of a newer event than those in the table."""
    return sql.SQL(
        "({seen}.attributes_at IS NOT NULL AND (t.attributes_at IS NULL OR"
        " ({seen}.attributes_at, {newest}.attributes_hash) > (t.attributes_at, t.attributes_hash)))"
    ).format(seen=sql.SQL(seen), newest=sql.SQL(newest))


def _changes(dimension: Dimension, seen: str, newest: str) -> sql.Composed:
    """Whether a row of the table changes; once it would not, it never will."""
    older = sql.SQL(
        "({seen}.first_seen_at < t.first_seen_at OR {seen}.last_seen_at > t.last_seen_at"
    ).format(seen=sql.SQL(seen))
    newer = sql.SQL(" OR {})").format(_newer(seen, newest))
    return sql.Composed([older, newer if dimension.attributes else sql.SQL(")")])


def _sets(dimension: Dimension) -> sql.Composed:
    sets: list[sql.Composable] = [
        sql.SQL("first_seen_at = least(t.first_seen_at, excluded.first_seen_at)"),
        sql.SQL("last_seen_at = greatest(t.last_seen_at, excluded.last_seen_at)"),
    ]
    if dimension.attributes:
        kept = [*(one.name for one in dimension.attributes), "attributes_at", "attributes_hash"]
        newer = _newer("excluded", "excluded")
        sets += [
            sql.SQL("{name} = CASE WHEN {newer} THEN excluded.{name} ELSE t.{name} END").format(
                name=sql.Identifier(name), newer=newer
            )
            for name in kept
        ]
    return sql.SQL(", ").join(sets)


@dataclass(frozen=True, slots=True)
class AppliedEvents:
    """What was written, and the transaction that wrote it; it is not committed yet."""

    end: BatchEnd
    xid: str


def write(
    connection: Connection, statements: EventStatements, settled: sql.Composable
) -> tuple[int, int]:
    """Facts, then dimensions in the order of the model; how many rows of each changed."""
    facts = connection.execute(statements.insert_facts(settled)).rowcount
    changed = 0
    for place in range(len(statements.model.dimensions)):
        changed += connection.execute(statements.upsert_dimension(place, settled)).rowcount
    return facts, changed


@dataclass(frozen=True, slots=True)
class EventApplication:
    """One batch that was claimed and staged."""

    events: ProjectEvents
    attempt_id: str
    claimed: int
    tables: tuple[sql.Identifier, ...]

    @property
    def statements(self) -> EventStatements:
        return EventStatements(self.events.model)

    def apply(self, connection: Connection) -> AppliedEvents:
        """Write it all.

        What several instances write comes last, and so is held for the shortest time. Instances
        write the same tables in the same order, and rows of a table in the order of its key.
        """
        events, statements = self.events, self.statements
        rows = statements.rows(self.tables)
        try:
            found = connection.execute(statements.months(rows)).fetchall()
        except pg.UndefinedTable:
            found = []
        months: dict[datetime, int] = {month: count for month, count in found if month}
        total = sum(count for _, count in found)
        if total != self.claimed:
            raise self._lost(total)
        missing = self.missing(connection, list(months))
        left = sum(months[month] for month in missing)
        done = sum(months.values()) - left
        settled = statements.settled(rows, missing)
        updated = connection.execute(statements.settle(events.raw, settled)).rowcount
        if updated != total - left:
            raise self._lost(updated + left)
        facts, changed = write(connection, statements, settled) if done else (0, 0)
        end = BatchEnd(
            claimed=total,
            done=done,
            failed=total - left - done,
            facts=facts,
            missing_months=tuple(month.astimezone(UTC).date() for month in missing),
        )
        xid = self._note(connection, end)
        if facts or changed:
            # One row for all instances, so it is the last that is taken.
            connection.execute(self._statement("raise_changes"))
        return AppliedEvents(end, xid)

    def missing(self, connection: Connection, months: list[datetime]) -> list[datetime]:
        """Which of the months have no partition."""
        facts = self.events.model.facts
        rows = connection.execute(
            statement("events/processing", "missing_months"),
            {"months": months, "schema": facts.schema, "name": facts.name},
        )
        return [row[0] for row in rows]

    def _note(self, connection: Connection, end: BatchEnd) -> str:
        row = connection.execute(
            self._statement("note_batch"),
            {
                "attempt_id": self.attempt_id,
                "claimed": end.claimed,
                "done": end.done,
                "failed": end.failed,
                "facts": end.facts,
                "left_pending": end.left_pending,
            },
        ).fetchone()
        assert row is not None
        return str(row[0])

    def _statement(self, name: str) -> sql.Composed:
        schema = sql.Identifier(self.events.ledger_schema)
        return statement("events/processing", name, schema=schema)

    def _lost(self, found: int) -> StagingLost:
        return StagingLost(
            f"{self.claimed} events of {self.events.raw} were claimed, {found} were found again",
            "they are claimed again",
        )


# Values that a column does not take, constraints, and more than the server can work with.
_REFUSALS = ("22", "23", "54")
# So many events in a row are refused only where it is not the events that are wrong.
_ALL_ALIKE = 20
_MOST_PROBES = 5_000


def is_refusal(error: psycopg.Error) -> bool:
    """Whether it is about the rows, and comes again with them."""
    return (error.sqlstate or "")[:2] in _REFUSALS


@dataclass(frozen=True, slots=True)
class EventIsolation:
    """A batch that was refused as a whole, for example by a constraint that a user has added."""

    batch: EventApplication

    def isolate(self, connection: Connection) -> bool:
        """Let the events fail that are to blame; False when it cannot be told which those are."""
        settled = self._settled(connection)
        refused: dict[int, str] = {}
        taken = probes = 0
        ranges = _halves(0, self.batch.claimed)
        while ranges:
            first, end = ranges.pop()
            probes += 1
            if probes > _MOST_PROBES or (len(refused) >= _ALL_ALIKE and not taken):
                return False
            reason = self._probe(connection, settled, first, end)
            if reason is None:
                taken += 1
            elif end - first == 1:
                refused[first] = f"the tables refuse it: {reason}"
            else:
                ranges += _halves(first, end)
        if not refused or not taken:
            return False
        for table in self.batch.tables:
            connection.execute(
                statement("events/processing", "refuse_staged", staged=table),
                {"places": list(refused), "reasons": list(refused.values())},
            )
        return True

    def _settled(self, connection: Connection) -> sql.Composable:
        statements = self.batch.statements
        rows = statements.rows(self.batch.tables)
        found = connection.execute(statements.months(rows))
        missing = self.batch.missing(connection, [row[0] for row in found if row[0]])
        return statements.settled(rows, missing)

    def _probe(
        self, connection: Connection, settled: sql.Composable, first: int, end: int
    ) -> str | None:
        """Why the tables refuse these events; whatever is written is undone."""
        statements = self.batch.statements
        connection.execute("SAVEPOINT probe")
        reason = None
        try:
            write(connection, statements, statements.between(settled, first, end))
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            reason = first_line(error)
        connection.execute("ROLLBACK TO SAVEPOINT probe")
        connection.execute("RELEASE SAVEPOINT probe")
        return reason


def _halves(first: int, end: int) -> list[tuple[int, int]]:
    middle = (first + end) // 2
    return [(one, other) for one, other in ((middle, end), (first, middle)) if other > one]
