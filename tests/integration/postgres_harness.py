"""A Postgres target under test, staged by the same statements as Spark's tasks use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from psycopg import sql

from integration.conftest import Database
from integration.destination_conformance import MakeHarness, Row
from tidegate.destinations.postgres import PostgresDestination
from tidegate.destinations.publication import Publication
from tidegate.destinations.target import physical_table
from tidegate.ledger.fences import Fence
from tidegate.ledger.ledger import Ledger
from tidegate.model.batch import Batch
from tidegate.model.cursor import CursorType
from tidegate.model.identity import new_attempt_id
from tidegate.model.load import Published, StagedWrite
from tidegate.model.relation import Relation
from tidegate.model.rules import Duplicates, Mode, Rules
from tidegate.model.shape import Shape, StagedColumn
from tidegate.model.staging import new_write_id
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import Connection, connect
from tidegate.spark.copying import StagingPlace


def open_session(conninfo: str, application: str = "tidegate") -> Connection:
    return connect(conninfo, name="the destination", application=application)


def make_shape(
    columns: str, key: str, cursor: str | None, *, unique: bool, deletes: bool = False
) -> Shape:
    pairs = [part.split(maxsplit=1) for part in columns.split(", ")]
    staged = tuple(StagedColumn(name, kind, kind) for name, kind in pairs)
    deleted = "is gone" if deletes else None
    return Shape(staged, tuple(key.split(", ")) if key else (), cursor, unique, deleted)


def maker(database: Database, mode: Mode, *, keyless: bool = False) -> MakeHarness:
    """A maker of targets that are loaded in one mode."""

    def make(
        columns: str = "id integer, name text, c bigint",
        key: str = "id",
        cursor: str | None = "c",
        *,
        unique: bool = True,
        deletes: bool = False,
    ) -> PostgresHarness:
        key, unique = ("", False) if keyless else (key, unique)
        shape = make_shape(columns, key, cursor, unique=unique, deletes=deletes)
        return PostgresHarness(database, shape, Rules(mode=mode))

    return make


class PostgresHarness:
    """A target in a database, staged by the same statements as Spark's tasks use."""

    def __init__(
        self, database: Database, shape: Shape, rules: Rules | None = None, **options: Any
    ) -> None:
        self.database = database
        self.shape = shape
        self.rules = rules or Rules()
        ledger = Ledger(connect=partial(open_session, database.conninfo))
        self.destination = PostgresDestination(
            connect=partial(open_session, database.conninfo),
            relation=Relation("raw", f"orders_{uuid4().hex[:6]}"),
            ledger=ledger,
            control_id=uuid4(),
            project="shop",
            **options,
        )
        self.token = 0
        ledger.ensure()
        self.destination.prepare(shape, self.watermark(), self.rules)

    @property
    def table(self) -> str:
        return str(self.destination.relation)

    @property
    def physical(self) -> str:
        """The table that holds the rows."""
        return str(physical_table(self.destination.relation, self.shape, self.rules))

    def attempt(self) -> Fence:
        self.token += 1
        fence = Fence(self.table, self.destination.control_id, self.token, new_attempt_id())
        self.destination.raise_fence(fence)
        return fence

    def place(self, fence: Fence) -> StagingPlace:
        """Where an attempt stages its rows."""
        return StagingPlace(
            self.database.conninfo,
            "tidegate",
            fence.control_id,
            fence.attempt_id,
            self.shape.staged,
        )

    def stage(self, fence: Fence, *parts: Sequence[Row]) -> tuple[StagedWrite, ...]:
        place, writes = self.place(fence), []
        with self.database.connect() as session:
            for rows in parts:
                write_id = new_write_id()
                session.execute(place.create_statement(write_id))
                into = sql.SQL("COPY {} FROM STDIN").format(place.table(write_id))
                with session.cursor().copy(into) as copy:
                    for row in rows:
                        copy.write_row(row)
                writes.append(StagedWrite(write_id, len(rows)))
        return tuple(writes)

    def check(self, fence: Fence, writes: Sequence[StagedWrite], *, newest: bool = False) -> None:
        self.destination.check(self.shape, writes, fence, self._rules(newest))

    def publish(
        self,
        fence: Fence,
        writes: Sequence[StagedWrite],
        batch: Batch,
        *,
        update_id: str | None = None,
        watermark: Watermark | None = None,
        newest: bool = False,
    ) -> Published:
        return self.destination.publish(
            Publication(
                update_id=update_id or uuid4().hex,
                batch=batch,
                shape=self.shape,
                writes=tuple(writes),
                watermark=watermark or self.watermark(),
                cursor_type=CursorType.BIGINT,
                fence=fence,
                moved_by="test",
                remaining_seconds=lambda: 60.0,
                rules=self._rules(newest),
            )
        )

    def exists(self, update_id: str) -> bool:
        return self.destination.exists(update_id)

    def watermark(self) -> Watermark:
        return self.destination.watermark("shop.orders")

    def discard(self, fence: Fence) -> int:
        return self.destination.discard(fence.attempt_id)

    def sweep(self, *live: Fence) -> int:
        return self.destination.sweep(lambda: {fence.attempt_id for fence in live})

    def lose_staging(self, fence: Fence) -> None:
        for table in self._staged():
            self.database.execute(f'TRUNCATE tidegate."{table}"')

    def refuse_writes(self) -> None:
        self.database.execute(f"ALTER TABLE {self.physical} ADD CHECK (false) NOT VALID")

    def rows(self) -> list[Row]:
        order = ", ".join(self.shape.key) or "1"
        names = ", ".join(self.shape.names)
        return self.database.execute(f"SELECT {names} FROM {self.table} ORDER BY {order}")

    def markers(self) -> list[str]:
        rows = self.database.execute(
            f"SELECT update_id FROM tidegate.table_updates WHERE target_table = '{self.table}'"
            " ORDER BY inserted, update_id"
        )
        return [row[0] for row in rows]

    def staged_tables(self) -> int:
        return len(self._staged())

    def _rules(self, newest: bool) -> Rules:
        duplicates = Duplicates.NEWEST if newest else self.rules.duplicates
        return replace(self.rules, duplicates=duplicates)

    def _staged(self) -> list[str]:
        rows = self.database.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'stg\\_%' AND relkind = 'r'"
        )
        return [row[0] for row in rows]
