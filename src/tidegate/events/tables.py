"""The tables, as they should be and created."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import BusyError, DeclarationError
from tidegate.core.relation import Relation
from tidegate.events.model import Dimension, EventField, EventModel, FieldType
from tidegate.events.project_events import ProjectEvents
from tidegate.postgres.connection import Connection, translate
from tidegate.postgres.queries import column_list, qualified, script, statement

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


def event_tables(events: ProjectEvents) -> list[EventTable]:
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


def column_type(field: EventField) -> str:
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


def _column(field: EventField, *, required: bool = False) -> EventColumn:
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


PARTITIONER = "create_monthly_partition"
MOMENT = "event_moment"
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)
_GAVE_WAY = (pg.LockNotAvailable, pg.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class _Found:
    """A table as it is in the database."""

    kind: str
    types: dict[str, str]
    obligatory: frozenset[str]
    """columns that an INSERT must name"""
    key: tuple[str, ...]
    partition_column: str | None


@dataclass(slots=True)
class _Standing:
    """All that there is of what events need."""

    tables: dict[int, _Found] = field(default_factory=dict)
    schemas: set[str] = field(default_factory=set)
    functions: dict[tuple[str, str], str] = field(default_factory=dict)


def ensure_tables(connection: Connection, events: ProjectEvents) -> list[str]:
    """Create what is missing and return what was made; one round trip when nothing is.

    Columns that the model has gained are added, without NOT NULL. A table whose columns or key
    differ from the model in another way is refused.
    """
    wanted = event_tables(events)
    try:
        if not _missing(events, wanted, _read(connection, events, wanted)):
            return []
        for pause in (*_PAUSES_SECONDS, None):
            try:
                return _make(connection, events, wanted)
            except _GAVE_WAY as error:
                if pause is None:
                    raise BusyError(
                        f"the tables of the events could not be changed: {error}",
                        "see pg_stat_activity for who reads them; run again when it is done",
                    ) from error
                time.sleep(pause)
    except psycopg.Error as error:
        raise translate(error, "making the tables of the events") from error
    raise AssertionError("the last try returns or raises")


def missing_tables(connection: Connection, events: ProjectEvents) -> list[str]:
    """What ensure_tables would make; DeclarationError for what it would refuse."""
    wanted = event_tables(events)
    return [one.name for one in _missing(events, wanted, _read(connection, events, wanted))]


def _make(connection: Connection, events: ProjectEvents, wanted: list[EventTable]) -> list[str]:
    with connection.transaction():
        connection.execute(
            statement("events/tables", "lock_tables"),
            {"lock": f"tidegate events {events.ledger_schema} {events.model.facts}"},
        )
        # Read again: another process may have made it all meanwhile.
        missing = _missing(events, wanted, _read(connection, events, wanted))
        for one in missing:
            for text in one.statements:
                connection.execute(text)
        if any(one.is_ledger for one in missing):
            schema = sql.Identifier(events.ledger_schema)
            connection.execute(statement("events/tables", "insert_changes", schema=schema))
        return [one.name for one in missing]


@dataclass(frozen=True, slots=True)
class _Missing:
    """One thing to be made, and how."""

    name: str
    statements: tuple[sql.Composed, ...]
    is_ledger: bool = False


def _read(connection: Connection, events: ProjectEvents, wanted: list[EventTable]) -> _Standing:
    """What there is, in one statement."""
    rows = connection.execute(
        statement("events/tables", "read_tables"),
        {
            "schemas": [one.relation.schema for one in wanted],
            "names": [one.relation.name for one in wanted],
            "homes": _schemas(events, wanted),
            "functions": [PARTITIONER, MOMENT],
        },
    ).fetchall()
    standing = _Standing()
    for place, kind, names, types, obligatory, key, last in rows:
        if kind == "s":
            standing.schemas.add(last)
        elif kind == "f":
            standing.functions[names[0], types[0]] = last
        else:
            needed = (name for name, must in zip(names, obligatory, strict=True) if must)
            standing.tables[place - 1] = _Found(
                kind,
                dict(zip(names, types, strict=True)),
                frozenset(needed),
                tuple(key),
                last,
            )
    return standing


def _schemas(events: ProjectEvents, wanted: list[EventTable]) -> list[str]:
    """Every schema that holds a table or a view of the events, once."""
    relations = [one.relation for one in wanted] + [one.name for one in events.model.views]
    return list(dict.fromkeys(one.schema for one in relations))


def _missing(
    events: ProjectEvents, wanted: list[EventTable], standing: _Standing
) -> list[_Missing]:
    """What must be made or changed, in order; DeclarationError where that is not possible."""
    made = [
        _Missing(f"schema {name}", (sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)),))
        for name in _schemas(events, wanted)
        if name not in standing.schemas
    ]
    for place, table in enumerate(wanted):
        found = standing.tables.get(place)
        if found is None:
            ledger = table.relation.schema == events.ledger_schema
            made.append(_Missing(str(table.relation), tuple(_create(table)), ledger))
        else:
            _refuse(table, found)
            made += _changes(table, found)
    made += _functions(events, standing)
    return made


def _refuse(table: EventTable, found: _Found) -> None:
    """Refuse what cannot be followed without rewriting rows."""
    name = table.relation
    rename = "rename that table, or name another one in the model"
    if found.kind != ("p" if table.partition_column else "r"):
        kind = "a table partitioned by range" if table.partition_column else "an ordinary table"
        raise DeclarationError(f"{name} is there already and is not {kind}", rename)
    if found.partition_column != table.partition_column:
        raise DeclarationError(
            f"{name} is partitioned by {found.partition_column}; the model says "
            f"{table.partition_column}",
            "a partitioned table keeps its column; name another table in the model",
        )
    if found.key != table.key:
        raise DeclarationError(
            f"the primary key of {name} is ({', '.join(found.key)}); the model says "
            f"({', '.join(table.key)})",
            "a key is not changed under rows that have it; name another table in the model",
        )
    for column in table.columns:
        type_ = found.types.get(column.name)
        if type_ is not None and type_ != column.type:
            raise DeclarationError(
                f"{name}.{column.name} is {type_}; the model says {column.type}",
                "give the column the old type again, or a new name",
            )
        if type_ is None and not table.follows_model and column.required:
            raise DeclarationError(f"{name} is there already and has no {column.name}", rename)
    unknown = sorted(found.obligatory - {one.name for one in table.columns})
    if unknown and not table.follows_model:
        raise DeclarationError(
            f"{name}.{unknown[0]} is NOT NULL, and nothing here would fill it",
            "give that column a default, or let it be empty",
        )


def _changes(table: EventTable, found: _Found) -> Iterable[_Missing]:
    """Columns to be added, and those that rows may now leave empty."""
    name = qualified(table.relation)
    for column in table.columns:
        if column.name not in found.types:
            parts = sql.Identifier(column.name), _raw(column.type)
            texts = [sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(name, *parts)]
            if column.default is not None:
                # By itself: together with the column it might have every row written anew.
                texts.append(
                    sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET DEFAULT {}").format(
                        name, parts[0], _raw(column.default)
                    )
                )
            yield _Missing(f"{table.relation}.{column.name}", tuple(texts))
    filled = {one.name for one in table.columns if one.required} | set(table.key)
    for left in sorted(found.obligatory - filled):
        drop = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL").format(
            name, sql.Identifier(left)
        )
        yield _Missing(f"{table.relation}.{left} may be empty", (drop,))


def _create(table: EventTable) -> Iterable[sql.Composed]:
    name = qualified(table.relation)
    parts: list[sql.Composable] = [_definition(one) for one in table.columns]
    parts.append(sql.SQL("PRIMARY KEY ({})").format(column_list(table.key)))
    create = sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(parts))
    if table.partition_column is not None:
        column = sql.Identifier(table.partition_column)
        create += sql.SQL(" PARTITION BY RANGE ({})").format(column)
    yield create
    for index in table.indexes:
        yield _index(table, index)


def _definition(column: EventColumn) -> sql.Composed:
    parts: list[sql.Composable] = [sql.Identifier(column.name), _raw(column.type)]
    if column.default == "identity":
        parts.append(sql.SQL("GENERATED ALWAYS AS IDENTITY"))
    elif column.default is not None:
        parts.append(_raw(f"DEFAULT {column.default}"))
    if column.required:
        parts.append(sql.SQL("NOT NULL"))
    if column.check is not None:
        parts.append(
            sql.SQL("CHECK ({} IN ({}))").format(sql.Identifier(column.name), _raw(column.check))
        )
    return sql.SQL(" ").join(parts)


def _index(table: EventTable, index: EventIndex) -> sql.Composed:
    create = sql.SQL("CREATE INDEX {} ON {} ({})").format(
        sql.Identifier(index.name), qualified(table.relation), column_list(index.columns)
    )
    if index.status is not None:
        create += sql.SQL(" WHERE status = {}").format(sql.Literal(index.status))
    return create


def _functions(events: ProjectEvents, standing: _Standing) -> Iterable[_Missing]:
    facts = events.model.facts
    text = qualified(facts).as_string(None)
    parts: dict[tuple[str, str], dict[str, Any]] = {
        (facts.schema, PARTITIONER): {"facts": sql.SQL("{}::regclass").format(sql.Literal(text))},
        (events.ledger_schema, MOMENT): {},
    }
    for (schema, name), more in parts.items():
        create = sql.SQL(script(f"events/{name}")).format(schema=sql.Identifier(schema), **more)
        if standing.functions.get((schema, name)) != _body(create.as_string(None)):
            yield _Missing(f"function {schema}.{name}", (create,))


def _body(create: str) -> str:
    return create.split("$body$")[1]


def _raw(text: str) -> sql.SQL:
    """A piece of SQL that this package has written."""
    return sql.SQL(text)
