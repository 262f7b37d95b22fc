"""Projects with a lake, and tables in it that somebody else has filled, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql
from pyiceberg.catalog import Catalog as Client
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

from databases import Databases
from integration.conftest import Database, MakePlace, Place
from integration.shared_places import shared_places
from tidegate.core.relation import Endpoint, Relation
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import read_table
from tidegate.iceberg.table import IcebergTable
from tidegate.jobs.attempt import hold_table
from tidegate.project import Project

ORDERS = {"source": "shop:public.orders", "target": "lake:raw.orders", "cursor": "updated_at"}
RELATION = Relation("raw", "orders")
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("total", pa.decimal128(10, 2)),
        ("updated_at", pa.timestamp("us", tz="UTC")),
    ]
)


@pytest.fixture(scope="module")
def make_shared(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakePlace]:
    """A maker of projects that all tests of a module share."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("shared")) as places:
        yield places


def lake_place(
    make_place: MakePlace,
    *syncs: Mapping[str, Any],
    lake: str = 'type = "iceberg"',
    **options: Any,
) -> Place:
    """A project whose connection "lake" has these lines, its databases apart from each other."""
    place = make_place(*(syncs or (ORDERS,)), **{"databases": 3, **options})
    file = place.folder / "tidegate.toml"
    file.write_text(f"{file.read_text()}\n[connections.lake]\n{lake}\n")
    return place


def catalog_of(place: Place) -> Catalog:
    return Project.open(place.folder).context.catalog("lake")


def table_of(place: Place, relation: Relation = RELATION) -> IcebergTable:
    found = read_table(catalog_of(place), relation)
    assert found is not None
    return found


def schema_of(place: Place, lake: str = "lake") -> str:
    """Where a lake's ledger is, in the control database."""
    return Project.open(place.folder).context.catalog(lake).schema


def held(place: Place) -> AbstractContextManager[Any]:
    """The table is held, as by a load that is at work."""
    return hold_table(
        place.open().context,
        Endpoint.parse("lake:raw.orders"),
        {"kind": "sync", "name": "orders"},
        result={},
        command="tidegate test",
    )


class CatalogClient(NoopCatalog):
    """Commits as another engine would: a new document, and the catalog's row that points to it."""

    def __init__(self, database: Database, schema: str) -> None:
        super().__init__("lake")
        self._database = database
        self._tables = sql.Identifier(schema, "iceberg_tables")

    def open(self, relation: Relation) -> Table:
        """A table as it is now."""
        location = self._database.value(
            sql.SQL(
                "SELECT metadata_location FROM {} WHERE table_namespace = {} AND table_name = {}"
            ).format(self._tables, relation.schema, relation.name)
        )
        static = StaticTable.from_metadata(location)
        name = ("lake", relation.schema, relation.name)
        return Table(name, static.metadata, location, static.io, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates, False, table.metadata_location)
        return CommitTableResponse(metadata=metadata, metadata_location=self.put(table, metadata))

    def put(self, table: Table, metadata: TableMetadata) -> str:
        location = f"{metadata.location}/metadata/{uuid.uuid4()}.metadata.json"
        ToOutputFile.table_metadata(metadata, table.io.new_output(location))
        self._database.execute(
            sql.SQL(
                "UPDATE {} SET metadata_location = {} WHERE table_namespace = {}"
                " AND table_name = {}"
            ).format(self._tables, location, *table.name()[-2:])
        )
        return location


def make_table(place: Place, columns: pa.Schema = COLUMNS, relation: Relation = RELATION) -> Table:
    """An empty table of the embedded lake, made by hand."""
    project = Project.open(place.folder)
    project.context.ledger("lake").ensure()
    catalog = project.context.catalog("lake")
    folder = Path(catalog.warehouse) / relation.schema / relation.name
    (folder / "metadata").mkdir(parents=True)
    (folder / "data").mkdir()
    schema: Schema = Client._convert_schema_if_needed(columns)
    metadata = new_table_metadata(
        location=folder.as_uri(),
        schema=schema,
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        properties={"format-version": "2"},
    )
    location = f"{folder.as_uri()}/metadata/00000.metadata.json"
    io = load_file_io({}, location)
    ToOutputFile.table_metadata(metadata, io.new_output(location))
    place.control.execute(
        sql.SQL("INSERT INTO {} VALUES ({}, {}, {}, {}, NULL, 'TABLE')").format(
            sql.Identifier(catalog.schema, "iceberg_tables"),
            catalog.name,
            relation.schema,
            relation.name,
            location,
        )
    )
    return open_table(place, relation)


def open_table(place: Place, relation: Relation = RELATION, lake: str = "lake") -> Table:
    """The table as it is now, for somebody else to write to."""
    return CatalogClient(place.control, schema_of(place, lake)).open(relation)


def fill_table(place: Place, rows: pa.Table, relation: Relation = RELATION) -> Table:
    """A table with these rows."""
    table = make_table(place, rows.schema, relation)
    table.append(rows)
    return table


def rows_of(table: Table, *columns: str) -> list[tuple[Any, ...]]:
    """Its rows in order."""
    found = table.scan(selected_fields=columns).to_arrow().to_pylist()
    rows = (tuple(row[name] for name in columns) for row in found)
    return sorted(rows, key=lambda row: [(one is None, one) for one in row])


def orders(numbers: Iterable[int], columns: pa.Schema = COLUMNS) -> pa.Table:
    """Rows as the source of the tests has them, a minute apart."""
    listed = list(numbers)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    values = {
        "id": listed,
        "total": [Decimal(n) for n in listed],
        "updated_at": [start + timedelta(minutes=n) for n in listed],
    }
    return pa.table({name: values[name] for name in columns.names}, schema=columns)
