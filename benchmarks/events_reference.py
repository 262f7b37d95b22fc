"""The design as published: 100 claimed events, then for each its upserts and its insert."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from benchmarks.events_project import EventsProject
from tidegate.events.model import Dimension, EventModel
from tidegate.events.reader import EventReader, RawEvent, ReadEvent
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, qualified

CLAIM = """
SELECT id, body, received_at FROM raw_events WHERE status = 'pending'
ORDER BY received_at LIMIT 100 FOR UPDATE SKIP LOCKED
"""
DONE = (
    "UPDATE raw_events SET status = 'done', payload = %s, processed_at = clock_timestamp()"
    " WHERE id = %s"
)
FAILED = (
    "UPDATE raw_events SET status = 'failed', error = %s, processed_at = clock_timestamp()"
    " WHERE id = %s"
)


class Reference:
    """One connection, one event at a time; every statement is prepared once."""

    def __init__(self, bench: EventsProject, connection: Connection) -> None:
        self._connection = connection
        self._connection.prepare_threshold = 0
        self._model = bench.events.model
        self._reader = EventReader(bench.events.model, bench.events.limits)
        self._places = {one.name: place for place, one in enumerate(self._model.fields)}
        self._upserts = [_upsert(one).as_string(None) for one in self._model.dimensions]
        self._insert = _insert(self._model).as_string(None)

    def run(self) -> int:
        """Drain the queue; returns how many events there were."""
        count = 0
        while True:
            with self._connection.transaction():
                rows = self._connection.execute(CLAIM).fetchall()
                for row in rows:
                    self._process(RawEvent(*row))
            if not rows:
                return count
            count += len(rows)

    def _process(self, raw: RawEvent) -> None:
        event = self._reader.read(raw)
        execute = self._connection.execute
        if event.error is not None:
            execute(FAILED, (event.error, raw.id))
            return
        moment = event.values[self._places[self._model.partition_column]]
        for place, dimension in enumerate(self._model.dimensions):
            if event.ids[place] is not None:
                execute(self._upserts[place], (*self._row(dimension, event, place), moment, moment))
        columns = [event.values[self._places[one.name]] for one in self._model.columns]
        execute(self._insert, (event.event_hash, *columns, *event.ids))
        execute(DONE, (event.payload, raw.id))

    def _row(self, dimension: Dimension, event: ReadEvent, place: int) -> list[Any]:
        ids = [event.ids[place]] if dimension.id_column else []
        fields = (*dimension.key, *dimension.attributes)
        return [*ids, *(event.values[self._places[one.name]] for one in fields)]


def _upsert(dimension: Dimension) -> sql.Composed:
    ids = [dimension.id_column] if dimension.id_column else []
    attributes = [one.name for one in dimension.attributes]
    names = [*ids, *(one.name for one in dimension.key), *attributes]
    sets = [
        sql.SQL("{name} = coalesce(excluded.{name}, t.{name})").format(name=sql.Identifier(one))
        for one in attributes
    ]
    sets += [
        sql.SQL("first_seen_at = least(t.first_seen_at, excluded.first_seen_at)"),
        sql.SQL("last_seen_at = greatest(t.last_seen_at, excluded.last_seen_at)"),
    ]
    return sql.SQL(
        "INSERT INTO {} AS t ({}, first_seen_at, last_seen_at) VALUES ({})"
        " ON CONFLICT ({}) DO UPDATE SET {}"
    ).format(
        qualified(dimension.table),
        column_list(names),
        sql.SQL(", ").join([sql.SQL("%s")] * (len(names) + 2)),
        sql.Identifier(dimension.fact_column),
        sql.SQL(", ").join(sets),
    )


def _insert(model: EventModel) -> sql.Composed:
    names = [one.name for one in model.columns]
    names += [one.fact_column for one in model.dimensions]
    return sql.SQL("INSERT INTO {} (event_hash, {}) VALUES ({}) ON CONFLICT DO NOTHING").format(
        qualified(model.facts),
        column_list(names),
        sql.SQL(", ").join([sql.SQL("%s")] * (len(names) + 1)),
    )
