"""A Postgres target under test, staged by the same statements as Spark's tasks use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from psycopg import sql

from databases import Databases
from integration.conftest import Database
from integration.destination_harness import (
    DestinationHarness,
    MakeHarness,
    Row,
    make_shape,
    maker_of,
)
from tidegate.config.sync import Mode, Rules
from tidegate.core.batch import StagedWrite
from tidegate.core.identity import new_write_id
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.ledger.fences import Fence
from tidegate.ledger.ledger import Ledger
from tidegate.load.targets.postgres.table import physical_table
from tidegate.load.targets.postgres.target import PostgresTarget
from tidegate.postgres.connection import Connection, connect
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.spark.binary_copy import StagingPlace

__all__ = ["make_shape"]


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer, kept_databases: Databases) -> Iterator[Database]:
    """One database for all tables of a module."""
    name = kept_databases.make("shared")
    yield Database(server.conninfo(name))
    kept_databases.give_back(name)


def open_session(conninfo: str, application: str = "tidegate") -> Connection:
    return connect(conninfo, name="the destination", application=application)


def maker(database: Database, mode: Mode, *, keyless: bool = False) -> MakeHarness:
    """A maker of targets that are loaded in one mode."""
    return maker_of(partial(PostgresHarness, database), mode, keyless=keyless)


class PostgresHarness(DestinationHarness[PostgresTarget]):
    """A target in a database, staged by the same statements as Spark's tasks use."""

    def __init__(
        self,
        database: Database,
        shape: Shape | None = None,
        rules: Rules | None = None,
        **options: Any,
    ) -> None:
        self.database = database
        opening = partial(open_session, database.conninfo)
        destination = PostgresTarget(
            connect=opening,
            relation=Relation("raw", f"orders_{uuid4().hex[:6]}"),
            ledger=Ledger(connect=opening),
            control_id=uuid4(),
            project="shop",
            **options,
        )
        super().__init__(destination, shape or make_shape(), rules, database)

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

    def lose_staging(self) -> None:
        for table in self.staged():
            self.database.execute(f'TRUNCATE tidegate."{table}"')

    def refuse_writes(self) -> None:
        self.database.execute(f"ALTER TABLE {self.physical} ADD CHECK (false) NOT VALID")

    def rows(self) -> list[Row]:
        order = ", ".join(self.shape.key) or "1"
        names = ", ".join(self.shape.names)
        return self.database.execute(f"SELECT {names} FROM {self.table} ORDER BY {order}")

    def versions(self) -> dict[int, str]:
        """The transaction that wrote each row."""
        return dict(self.database.execute(f"SELECT id, xmin::text FROM {self.table}"))

    def staged_tables(self) -> int:
        return len(self.staged())

    def staged(self) -> list[str]:
        """The names of what was staged for this target."""
        rows = self.database.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            rf" AND relname LIKE 'stg\_%{self.destination.control_id.hex[:12]}%'"
        )
        return [row[0] for row in rows]
