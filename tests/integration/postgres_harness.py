"""A Postgres target under test, staged by the same statements as Spark's tasks use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from psycopg import sql

from integration.conftest import Database
from integration.destination_conformance import MakeHarness, Row
from integration.destination_harness import DestinationHarness
from tidegate.destinations.postgres import PostgresDestination
from tidegate.destinations.target import physical_table
from tidegate.ledger.fences import Fence
from tidegate.ledger.ledger import Ledger
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Relation
from tidegate.model.rules import Mode, Rules
from tidegate.model.shape import Shape, StagedColumn
from tidegate.model.staging import new_write_id
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


class PostgresHarness(DestinationHarness[PostgresDestination]):
    """A target in a database, staged by the same statements as Spark's tasks use."""

    def __init__(
        self, database: Database, shape: Shape, rules: Rules | None = None, **options: Any
    ) -> None:
        self.database = database
        opening = partial(open_session, database.conninfo)
        destination = PostgresDestination(
            connect=opening,
            relation=Relation("raw", f"orders_{uuid4().hex[:6]}"),
            ledger=Ledger(connect=opening),
            control_id=uuid4(),
            project="shop",
            **options,
        )
        super().__init__(destination, shape, rules)

    @property
    def physical(self) -> str:
        """The table that holds the rows."""
        return str(physical_table(self.destination.relation, self.shape, self.rules))

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

    def _staged(self) -> list[str]:
        rows = self.database.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'stg\\_%' AND relkind = 'r'"
        )
        return [row[0] for row in rows]
