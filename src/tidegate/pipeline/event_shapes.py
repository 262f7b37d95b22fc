"""The tables that events need, as they should be."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.model.event_model import Dimension, EventModel, Field, FieldType
from tidegate.model.relation import Relation
from tidegate.pipeline.events import Events

BATCHES = "event_batches"
CHANGES = "event_changes"
_TYPES = {FieldType.TIMESTAMPTZ: "timestamp with time zone"}
_MOMENT = "timestamp with time zone"


@dataclass(frozen=True, slots=True)
class EventColumn:
    """A column, with its type as Postgres prints it."""

    name: str
    type: str
    required: bool = False
    default: str | None = None
    """an SQL expression"""
    check: str | None = None
    """values that it may have, as an SQL list"""


@dataclass(frozen=True, slots=True)
class EventIndex:
    """An index that comes with its table."""

    name: str
    columns: tuple[str, ...]
    status: str | None = None
    """only rows of this status are in it"""


@dataclass(frozen=True, slots=True)
class EventTable:
    """A table, what it must have, and by what it is cut into months."""

    relation: Relation
    columns: tuple[EventColumn, ...]
    key: tuple[str, ...]
    partition_column: str | None = None
    indexes: tuple[EventIndex, ...] = ()
    follows_model: bool = False
    """its columns are those of the model, and new ones are added"""


def event_tables(events: Events) -> list[EventTable]:
    """Every table of a project's events; views are not among them."""
    model = events.model
    log = events.refresh_log
    return [
        _raw_table(events.raw),
        *(_dimension_table(one) for one in model.dimensions),
        _fact_table(model),
        *([] if log is None else [_log_table(log)]),
        _batches_table(Relation(events.ledger_schema, BATCHES)),
        _changes_table(Relation(events.ledger_schema, CHANGES)),
    ]


def column_type(field: Field) -> str:
    """The type of a field's column, as Postgres prints it."""
    if field.type is FieldType.NUMERIC and field.precision is not None:
        return f"numeric({field.precision},{field.scale or 0})"
    return _TYPES.get(field.type, field.type.value)


def fact_columns(model: EventModel) -> tuple[EventColumn, ...]:
    """The columns of the facts in order, without event_hash and loaded_in."""
    found = {one.name: _column(one, required=one.required) for one in model.columns}
    for dimension in model.dimensions:
        name = dimension.fact_column
        type_ = "uuid" if dimension.id_column else column_type(dimension.key[0])
        found.setdefault(name, EventColumn(name, type_))
    return tuple(found.values())


def _column(field: Field, *, required: bool = False) -> EventColumn:
    return EventColumn(field.name, column_type(field), required)


def _raw_table(relation: Relation) -> EventTable:
    waiting = ("received_at", "id")
    return EventTable(
        relation,
        (
            EventColumn("id", "uuid", True),
            EventColumn("body", "text", True),
            EventColumn("payload", "jsonb"),
            EventColumn("received_at", _MOMENT, True, "clock_timestamp()"),
            EventColumn("status", "text", True, "'pending'", "'pending', 'done', 'failed'"),
            EventColumn("processed_at", _MOMENT),
            EventColumn("error", "text"),
            EventColumn("sender", "text"),
        ),
        key=("id",),
        indexes=(
            EventIndex(_short(relation.name, "_pending"), waiting, "pending"),
            EventIndex(_short(relation.name, "_failed"), waiting, "failed"),
        ),
    )


def _dimension_table(dimension: Dimension) -> EventTable:
    """The key, the attributes with the event that they came from, and when it was seen."""
    composite = dimension.id_column is not None
    columns = [EventColumn(dimension.id_column, "uuid", True)] if dimension.id_column else []
    columns += [_column(one, required=not composite) for one in dimension.key]
    columns += [_column(one) for one in dimension.attributes]
    columns += [
        EventColumn("first_seen_at", _MOMENT, True),
        EventColumn("last_seen_at", _MOMENT, True),
    ]
    if dimension.attributes:
        columns += [EventColumn("attributes_at", _MOMENT), EventColumn("attributes_hash", "bytea")]
    return EventTable(
        dimension.table, tuple(columns), key=(dimension.fact_column,), follows_model=True
    )


def _fact_table(model: EventModel) -> EventTable:
    return EventTable(
        model.facts,
        (
            EventColumn("event_hash", "bytea", True),
            *fact_columns(model),
            EventColumn("loaded_in", "xid8", True, "pg_current_xact_id()"),
        ),
        key=("event_hash", model.partition_column),
        partition_column=model.partition_column,
        indexes=(EventIndex(_short(model.facts.name, "_loaded_in"), ("loaded_in",)),),
        follows_model=True,
    )


def _log_table(relation: Relation) -> EventTable:
    return EventTable(
        relation,
        (
            EventColumn("mv_name", "text", True),
            EventColumn("refreshed_at", _MOMENT),
            EventColumn("duration", "interval"),
            EventColumn("rows", "bigint"),
            EventColumn("changes", "bigint"),
            EventColumn("definition", "text"),
            EventColumn("failed_at", _MOMENT),
            EventColumn("error", "text"),
        ),
        key=("mv_name",),
    )


def _batches_table(relation: Relation) -> EventTable:
    counts = ("claimed", "done", "failed", "facts", "left_pending")
    return EventTable(
        relation,
        (
            EventColumn("id", "bigint", True, "identity"),
            EventColumn("attempt_id", "text", True),
            EventColumn("started_at", _MOMENT, True),
            EventColumn("committed_at", _MOMENT, True, "clock_timestamp()"),
            *(EventColumn(one, "bigint", True) for one in counts),
        ),
        key=("id",),
        indexes=(EventIndex(_short(relation.name, "_committed_at"), ("committed_at",)),),
    )


def _changes_table(relation: Relation) -> EventTable:
    return EventTable(
        relation,
        (
            EventColumn("id", "integer", True, "1", "1"),
            EventColumn("changes", "bigint", True, "0"),
        ),
        key=("id",),
    )


def _short(name: str, suffix: str) -> str:
    """A name with a suffix that Postgres would not cut off."""
    return name.encode()[: 63 - len(suffix)].decode(errors="ignore") + suffix
