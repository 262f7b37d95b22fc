"""The statements that turn staged events into dimensions, facts and statuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from tidegate.model.event_model import Dimension, EventModel, Field, FieldType
from tidegate.model.relation import Relation
from tidegate.postgres.identifiers import column_list, qualified

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

    def _value_column(self, field: Field) -> str:
        return f"v{[one.name for one in self.model.fields].index(field.name)}"

    def _id_column(self, place: int) -> str:
        """By which staged column an event names its row of a dimension."""
        dimension = self.model.dimensions[place]
        return f"d{place}" if dimension.id_column else self._value_column(dimension.key[0])

    def _moment(self) -> sql.Identifier:
        return sql.Identifier(self._value_column(self.model.partition_field))

    def _month(self) -> sql.Composed:
        return sql.SQL("date_trunc('month', {}, 'UTC')").format(self._moment())


def column_type(field: Field) -> str:
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
