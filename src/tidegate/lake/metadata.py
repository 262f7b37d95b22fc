"""What a table's metadata says, read without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import ConnectionFailed, DestinationError
from tidegate.lake.catalog import Catalog
from tidegate.model.lake import Field, LakeTable, Snapshot, spark_type
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

READABLE = frozenset({"rest", "hive", "glue", "dynamodb", "bigquery"})


def read_table(catalog: Catalog, relation: Relation) -> LakeTable | None:
    """The table as it is now; None when there is none."""
    metadata = read_metadata(catalog, relation)
    return None if metadata is None else lake_table(relation, metadata)


def read_metadata(catalog: Catalog, relation: Relation) -> TableMetadata | None:
    """Iceberg's own document about a table."""
    find = _embedded if catalog.is_embedded else _other
    return find(catalog, relation)


def list_tables(catalog: Catalog) -> list[Relation]:
    """The tables of the catalog."""
    if catalog.is_embedded:
        with catalog.lease() as connection:
            try:
                rows = connection.execute(
                    sql.SQL(
                        "SELECT table_namespace, table_name FROM {}.iceberg_tables"
                        " WHERE catalog_name = %s ORDER BY 1, 2"
                    ).format(sql.Identifier(catalog.schema)),
                    (catalog.name,),
                ).fetchall()
            except (pg.UndefinedTable, pg.InvalidSchemaName):
                return []
        return [Relation(*row) for row in rows]
    found = _load(catalog)
    return [
        Relation(".".join(table[:-1]), table[-1])
        for namespace in found.list_namespaces()
        for table in found.list_tables(namespace)
    ]


def file_io(catalog: Catalog, location: str) -> Any:
    """Reads and writes the files of a table, wherever they are."""
    from pyiceberg.io import load_file_io

    return load_file_io(dict(catalog.options), location)


def lake_table(relation: Relation, metadata: TableMetadata) -> LakeTable:
    """Iceberg's own document in our words."""
    plain = metadata.spec().is_unpartitioned() and metadata.sort_order().is_unsorted
    return LakeTable(
        relation=relation,
        uuid=str(metadata.table_uuid),
        location=metadata.location,
        fields=tuple(
            Field(one.field_id, one.name, spark_type(str(one.field_type)), one.required)
            for one in metadata.schema().fields
        ),
        snapshots={one.snapshot_id: _snapshot(one) for one in metadata.snapshots},
        refs={name: ref.snapshot_id for name, ref in metadata.refs.items()},
        is_plain=plain,
        properties=dict(metadata.properties),
        identifier=tuple(
            one.name
            for one in metadata.schema().fields
            if one.field_id in metadata.schema().identifier_field_ids
        ),
        schemas={
            schema.schema_id: {one.field_id: one.name for one in schema.fields}
            for schema in metadata.schemas
        },
    )


def _snapshot(found: Any) -> Snapshot:
    summary = {} if found.summary is None else dict(found.summary.additional_properties)
    operation = "" if found.summary is None else found.summary.operation.value
    return Snapshot(
        found.snapshot_id, found.parent_snapshot_id, summary, operation, found.schema_id
    )


def _embedded(catalog: Catalog, relation: Relation) -> TableMetadata | None:
    with catalog.lease() as connection:
        try:
            row = connection.execute(
                sql.SQL(
                    "SELECT metadata_location FROM {}.iceberg_tables WHERE catalog_name = %s"
                    " AND table_namespace = %s AND table_name = %s"
                ).format(sql.Identifier(catalog.schema)),
                (catalog.name, relation.schema, relation.name),
            ).fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return None
    if row is None:
        return None
    from pyiceberg.serializers import FromInputFile

    try:
        return FromInputFile.table_metadata(file_io(catalog, row[0]).new_input(row[0]))
    except FileNotFoundError as error:
        raise DestinationError(
            f"{catalog.name}:{relation} has lost its metadata: {row[0]} is not there",
            "restore the warehouse folder, or drop the table and load it anew",
        ) from error


def _other(catalog: Catalog, relation: Relation) -> TableMetadata | None:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    found = _load(catalog)
    try:
        metadata: TableMetadata = found.load_table((relation.schema, relation.name)).metadata
        return metadata
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except OSError as error:
        raise ConnectionFailed(
            f'the catalog of connection "{catalog.name}" cannot be read: {type(error).__name__}',
            "see that it is running, and that the options of the connection are right",
        ) from error


def _load(catalog: Catalog) -> Any:
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(catalog.name, **{"type": catalog.kind, **catalog.options})
    except (OSError, ValueError) as error:
        raise ConnectionFailed(
            f'the catalog of connection "{catalog.name}" cannot be opened: {type(error).__name__}',
            "see that it is running, and that the options of the connection are right",
        ) from error
