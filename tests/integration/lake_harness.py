"""A table of a lake under test, staged by the same function as Spark's tasks use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.snapshots import MetadataLogEntry

from integration.conftest import Database, WarmSpark
from integration.destination_harness import (
    DestinationHarness,
    MakeHarness,
    Row,
    make_shape,
    maker_of,
)
from integration.filled_lakes import CatalogClient
from integration.postgres_harness import open_session, shared
from tidegate.config.sync import Mode, Rules
from tidegate.core.batch import StagedWrite
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape, StagedColumn
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import HADOOP
from tidegate.iceberg.session import IcebergSession, iceberg_session
from tidegate.iceberg.staged_files import arrow_schema, write_file
from tidegate.iceberg.table import EMBEDDED, IcebergTable
from tidegate.ledger.fences import Fence
from tidegate.ledger.ledger import Ledger
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.connection import Connection
from tidegate.postgres.types import lake_type
from tidegate.spark.session import SparkSessions

__all__ = ["shared"]

REWRITE = "CALL {system}.rewrite_data_files(table => {name}, options => map('rewrite-all', 'true'))"


@dataclass(frozen=True, slots=True)
class Lake:
    """A catalog, the database of its ledger, and the Spark that writes to it."""

    database: Database
    catalog: Catalog
    sessions: SparkSessions
    tables: str
    """where the catalog, ours or not, keeps what it knows"""
    backend: Database
    """the database of that"""

    @property
    def schema(self) -> str:
        return self.catalog.schema

    def open(self) -> AbstractContextManager[Connection]:
        return open_session(self.database.conninfo)

    def ledger(self) -> Ledger:
        return Ledger(
            connect=self.open, schema=self.schema, lake=True, catalog=self.catalog.is_embedded
        )

    @contextmanager
    def without_triggers(self) -> Iterator[None]:
        """Like a catalog that knows nothing of fences."""
        alter = f"ALTER TABLE {self.schema}.iceberg_tables {{}} TRIGGER USER"
        self.database.execute(alter.format("DISABLE"))
        try:
            yield
        finally:
            self.database.execute(alter.format("ENABLE"))


def make_lake(
    database: Database,
    folder: Path,
    sessions: SparkSessions,
    kind: str = EMBEDDED,
    **options: str,
) -> Lake:
    """A lake whose ledger, and whose catalog if it is ours, lies in the database."""
    catalog = Catalog(
        name="lake",
        kind=kind,
        options=options,
        warehouse=folder / "lake",
        schema="tidegate_lake_shop",
        control=lambda: spelled_out(database),
        lease=partial(open_session, database.conninfo),
    )
    return Lake(database, catalog, sessions, f"{catalog.schema}.iceberg_tables", database)


@pytest.fixture(scope="module")
def lake(shared: Database, tmp_path_factory: pytest.TempPathFactory, warm_spark: WarmSpark) -> Lake:
    """One lake for all tables of a module."""
    return make_lake(shared, tmp_path_factory.mktemp("lake"), warm_spark)


def spelled_out(database: Database) -> str:
    """The address with its password, for a driver that knows no password file."""
    with database.connect() as connection:
        info = connection.info
        return make_conninfo(
            host=info.host, port=info.port, user=info.user, password=info.password,
            dbname=info.dbname,
        )  # fmt: skip


def lake_shape(shape: Shape) -> Shape:
    columns = (
        StagedColumn(one.name, lake_type(one.staged_type), lake_type(one.target_type))
        for one in shape.columns
    )
    return replace(shape, columns=tuple(columns))


def maker(lake: Lake, mode: Mode, *, keyless: bool = False) -> MakeHarness:
    """A maker of tables that are loaded in one mode."""
    return maker_of(partial(LakeHarness, lake), mode, keyless=keyless)


def append_harness(lake: Lake, **options: Any) -> LakeHarness:
    """What is put in twice shows in an append."""
    shape = make_shape(key="", unique=False)
    return LakeHarness(lake, shape, Rules(mode=Mode.APPEND), **options)


class LakeHarness(DestinationHarness[IcebergTarget]):
    """A table of a lake with the ledger beside it."""

    def __init__(
        self, lake: Lake, shape: Shape | None = None, rules: Rules | None = None, **options: Any
    ) -> None:
        self.lake = lake
        destination = IcebergTarget(
            catalog=lake.catalog,
            relation=Relation("raw", f"orders_{uuid4().hex[:6]}"),
            ledger=lake.ledger(),
            control_id=uuid4(),
            sessions=lake.sessions,
            lease=lake.open,
            project="shop",
            **options,
        )
        super().__init__(destination, lake_shape(shape or make_shape()), rules, lake.database)
        self._client = CatalogClient(lake.database, lake.schema)

    def stage(self, fence: Fence, *parts: Sequence[Row]) -> tuple[StagedWrite, ...]:
        place = self.destination.place(self.shape, fence.attempt_id)
        schema = arrow_schema(place)
        writes = []
        for rows in parts:
            columns = [
                pa.array([row[number] for row in rows], schema.field(number).type)
                for number in range(len(schema))
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            written = write_file(place, [batch])
            writes.append(StagedWrite(written["write_id"], written["rows"]))
        return tuple(writes)

    def lose_staging(self) -> None:
        for file in self._staged():
            file.unlink()

    def refuse_writes(self) -> None:
        """A catalog that commits nothing to this table any more."""
        name = self.destination.relation.name
        self.lake.backend.execute(
            f"CREATE FUNCTION refuse_{name}() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RAISE EXCEPTION ''the disk is full''; END'",
            f"CREATE TRIGGER refuse_{name} BEFORE UPDATE ON {self.lake.tables}"
            f" FOR EACH ROW WHEN (OLD.table_name = '{name}') EXECUTE FUNCTION refuse_{name}()",
        )

    def rows(self) -> list[Row]:
        """Read by another implementation of Iceberg than the one that wrote."""
        names = self.shape.names
        found = [
            tuple(row[name] for name in names)
            for row in self.static().scan().to_arrow().to_pylist()
        ]
        order = [names.index(name) for name in self.shape.key] or range(len(names))
        return sorted(found, key=lambda row: [(row[at] is None, row[at]) for at in order])

    def intents(self) -> list[Row]:
        """Which loads attempts are about to publish, and whether they were given up."""
        return self.lake.database.execute(
            f"SELECT update_id, abandoned FROM {self.lake.schema}.intents"
            f" WHERE target_table = '{self.table}'"
        )

    def staged_tables(self) -> int:
        return len(self._staged())

    def read(self) -> IcebergTable:
        found = self.destination.read()
        assert found is not None
        return found

    def static(self) -> StaticTable:
        """The table as its newest metadata file tells it."""
        return StaticTable.from_metadata(self.metadata_location())

    def metadata_location(self) -> str:
        if self.lake.catalog.kind == HADOOP:
            location = Path(self.read().location.removeprefix("file:"))
            files = (location / "metadata").glob("v*.metadata.json")
            return str(max(files, key=lambda file: int(file.name.split(".")[0][1:])))
        return str(
            self.lake.backend.value(
                f"SELECT metadata_location FROM {self.lake.tables}"
                f" WHERE table_name = '{self.destination.relation.name}'"
            )
        )

    def session(self, attempt_id: str | None = None) -> AbstractContextManager[IcebergSession]:
        return iceberg_session(self.lake.sessions, self.lake.catalog, attempt_id)

    def foreign(self) -> Table:
        """The table as it is now, for somebody else to write to without Spark."""
        return self._client.open(self.destination.relation)

    def insert(self, key: int = 9) -> None:
        """A row of somebody else's."""
        table = self.foreign()
        row = {"id": key, "name": "external", "c": 0}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))

    def expire(self, *, by_pyiceberg: bool = False) -> None:
        """All but the newest snapshots are forgotten; those still name their parents.

        PyIceberg takes these names out as well.
        """
        table = self.foreign()
        now = table.metadata
        kept = {ref.snapshot_id for ref in now.refs.values()}
        if by_pyiceberg:
            gone = [one.snapshot_id for one in now.snapshots if one.snapshot_id not in kept]
            table.maintenance.expire_snapshots().by_ids(gone).commit()
            return
        before = MetadataLogEntry(
            metadata_file=table.metadata_location, timestamp_ms=now.last_updated_ms
        )
        most = int(now.properties.get("write.metadata.previous-versions-max", 100))
        forgotten = {
            "snapshots": [one for one in now.snapshots if one.snapshot_id in kept],
            "snapshot_log": [one for one in now.snapshot_log if one.snapshot_id in kept],
            "metadata_log": [*now.metadata_log, before][-most:],
        }
        self._client.put(table, now.model_copy(update=forgotten))

    def statement(self, text: str) -> str:
        """A statement over {table}, or a procedure of {system} over {name}."""
        relation = self.destination.relation
        return text.format(
            table=self.lake.catalog.quoted(relation),
            system="`lake`.system",
            name=f"'raw.{relation.name}'",
        )

    def maintain(self, *statements: str) -> None:
        """Somebody else's work on the table."""
        with self.session() as session:
            for text in statements:
                session.run(self.statement(text))

    def _staged(self) -> list[Path]:
        folder = Path(self.read().location.removeprefix("file:")) / "data"
        return list(folder.glob("tidegate-*/*.parquet"))
