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
    ("payload", "jsonb"),
    ("event_hash", "bytea"),
)


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
            "SELECT CASE WHEN error IS NULL THEN {month} END AS month, count(*)"
            " FROM ({rows}) s GROUP BY 1 ORDER BY 1"
        ).format(month=self._month(), rows=rows)

    def settled(self, rows: sql.Composable, missing: Sequence[datetime]) -> sql.Composable:
        """The staged events that get their status now; others wait for their month."""
        if not missing:
            return rows
        return sql.SQL(
            "SELECT * FROM ({rows}) r WHERE error IS NOT NULL OR {month} <> ALL({missing})"
        ).format(rows=rows, month=self._month(), missing=sql.Literal(list(missing)))

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
            " WHERE error IS NULL ORDER BY event_hash, place ON CONFLICT DO NOTHING"
        ).format(
            facts=qualified(self.model.facts),
            names=column_list(columns),
            values=column_list(columns.values()),
            rows=settled,
        )

    def upsert_dimension(self, place: int, settled: sql.Composable) -> sql.Composed:
        """One row for each key of the batch; those that would not change are not touched."""
        dimension = self.model.dimensions[place]
        id_ = sql.Identifier(self._id_column(place))
        names = [*([dimension.id_column] if dimension.id_column else [])]
        values = [*([self._id_column(place)] if dimension.id_column else [])]
        names += [one.name for one in dimension.key]
        values += [self._value_column(one) for one in dimension.key]
        select: list[sql.Composable] = [sql.Identifier("k", one) for one in values]
        newest: sql.Composable = sql.SQL("")
        if dimension.attributes:
            names += [one.name for one in dimension.attributes]
            select += [sql.Identifier("n", self._value_column(one)) for one in dimension.attributes]
            names += ["attributes_at", "attributes_hash"]
            select += [
                sql.Identifier("n", "attributes_at"),
                sql.Identifier("n", "attributes_hash"),
            ]
            newest = self._newest(dimension, id_, settled)
        names += ["first_seen_at", "last_seen_at"]
        select += [sql.SQL("k.first_seen_at"), sql.SQL("k.last_seen_at")]
        return sql.SQL(
            "INSERT INTO {table} AS t ({names}) SELECT {select} FROM (SELECT {keys},"
            " min({moment}) AS first_seen_at, max({moment}) AS last_seen_at FROM ({rows}) s"
            " WHERE error IS NULL AND {id} IS NOT NULL GROUP BY {keys}) k{newest}"
            " LEFT JOIN {table} t ON t.{own} = k.{id} WHERE t.{own} IS NULL OR {changed}"
            " ORDER BY k.{id} ON CONFLICT ({own}) DO UPDATE SET {sets} WHERE {changes}"
        ).format(
            table=qualified(dimension.table),
            names=column_list(names),
            select=sql.SQL(", ").join(select),
            keys=column_list(values),
            moment=self._moment(),
            rows=settled,
            id=id_,
            newest=newest,
            own=sql.Identifier(dimension.fact_column),
            changed=_changes(dimension, "k", "n"),
            sets=_sets(dimension),
            changes=_changes(dimension, "excluded", "excluded"),
        )

    def _newest(
        self, dimension: Dimension, id_: sql.Identifier, settled: sql.Composable
    ) -> sql.Composed:
        """The attributes of the newest event that has any."""
        attributes = column_list(self._value_column(one) for one in dimension.attributes)
        return sql.SQL(
            " LEFT JOIN (SELECT DISTINCT ON ({id}) {id} AS id, {attributes},"
            " {moment} AS attributes_at, event_hash AS attributes_hash FROM ({rows}) s"
            " WHERE error IS NULL AND {id} IS NOT NULL AND num_nonnulls({attributes}) > 0"
            " ORDER BY {id}, {moment} DESC, event_hash DESC, place) n ON n.id = k.{id}"
        ).format(id=id_, attributes=attributes, moment=self._moment(), rows=settled)

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


def _newer(new: str) -> sql.Composed:
    """Whether attributes are of a newer event than those in the table."""
    return sql.SQL(
        "({new}.attributes_at IS NOT NULL AND (t.attributes_at IS NULL OR"
        " ({new}.attributes_at, {new}.attributes_hash) > (t.attributes_at, t.attributes_hash)))"
    ).format(new=sql.SQL(new))


def _changes(dimension: Dimension, seen: str, newest: str) -> sql.Composed:
    """Whether a row of the table changes; once it would not, it never will."""
    older = sql.SQL(
        "({seen}.first_seen_at < t.first_seen_at OR {seen}.last_seen_at > t.last_seen_at"
    ).format(seen=sql.SQL(seen))
    end = sql.SQL(" OR {})").format(_newer(newest)) if dimension.attributes else sql.SQL(")")
    return sql.Composed([older, end])


def _sets(dimension: Dimension) -> sql.Composed:
    sets: list[sql.Composable] = [
        sql.SQL("first_seen_at = least(t.first_seen_at, excluded.first_seen_at)"),
        sql.SQL("last_seen_at = greatest(t.last_seen_at, excluded.last_seen_at)"),
    ]
    if dimension.attributes:
        kept = [*(one.name for one in dimension.attributes), "attributes_at", "attributes_hash"]
        sets += [
            sql.SQL("{name} = CASE WHEN {newer} THEN excluded.{name} ELSE t.{name} END").format(
                name=sql.Identifier(name), newer=_newer("excluded")
            )
            for name in kept
        ]
    return sql.SQL(", ").join(sets)
