"""A table's metadata, read without Spark and consistently."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.core.errors import (
    BusyError,
    ConnectionFailed,
    DestinationError,
    SettingsError,
    TidegateError,
)
from tidegate.core.relation import Relation
from tidegate.iceberg.catalog import (
    JDBC,
    Catalog,
    all_registered,
    has_folder,
    list_folders,
    list_registered,
    newest_metadata,
    registered_metadata,
)
from tidegate.iceberg.table import EMBEDDED, IcebergField, IcebergTable, Snapshot, spark_type

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

HADOOP = "hadoop"
READABLE = frozenset({HADOOP, JDBC, "rest", "hive", "glue", "dynamodb", "bigquery"})


def read_table(catalog: Catalog, relation: Relation) -> IcebergTable | None:
    """The table as it is now; None when there is none."""
    table = open_table(catalog, relation)
    return None if table is None else lake_table(relation, table.metadata)


def open_table(catalog: Catalog, relation: Relation) -> Table | None:
    """The table with its files within reach; None when there is none."""
    if _is_registered(catalog):
        return _registered(catalog, relation)
    return _in_folders(catalog, relation) if catalog.kind == HADOOP else _other(catalog, relation)


def read_metadata(catalog: Catalog, relation: Relation) -> TableMetadata | None:
    """Iceberg's own document of the table as it is now."""
    table = open_table(catalog, relation)
    return None if table is None else table.metadata


def list_tables(catalog: Catalog) -> list[Relation]:
    """The tables of the catalog."""
    if _is_registered(catalog):
        return list_registered(catalog)
    if catalog.kind == HADOOP:
        warehouse = _warehouse(catalog)
        return list_folders(file_io(catalog, warehouse), warehouse)
    found = _load(catalog)
    with _asking(catalog):
        return [
            Relation(".".join(table[:-1]), table[-1])
            for namespace in found.list_namespaces()
            for table in found.list_tables(namespace)
        ]


def list_locations(catalog: Catalog) -> dict[Relation, str | None]:
    """The tables, each with its metadata file where the catalog tells that with the list."""
    if _is_registered(catalog):
        return all_registered(catalog)
    if catalog.kind == HADOOP and not has_folder(
        file_io(catalog, _warehouse(catalog)), _warehouse(catalog)
    ):
        # No folder is no empty one: a disk that is not mounted has lost no table.
        raise ConnectionFailed(
            f'the warehouse of connection "{catalog.name}" is not there',
            "see that its folder can be reached from here; the first load makes it",
        )
    return dict.fromkeys(list_tables(catalog))


def list_namespaces(catalog: Catalog) -> list[str]:
    """The namespaces of the catalog; none where the embedded one is not made yet."""
    if _is_registered(catalog) or catalog.kind == HADOOP:
        return sorted({relation.schema for relation in list_tables(catalog)})
    found = _load(catalog)
    with _asking(catalog):
        return [".".join(namespace) for namespace in found.list_namespaces()]


def file_io(catalog: Catalog, location: str) -> Any:
    """Reads and writes the files of a table, wherever they are."""
    from pyiceberg.io import load_file_io

    return load_file_io(dict(catalog.options), location)


def lake_table(relation: Relation, metadata: TableMetadata) -> IcebergTable:
    """Iceberg's own document in our words."""
    plain = metadata.spec().is_unpartitioned() and metadata.sort_order().is_unsorted
    return IcebergTable(
        relation=relation,
        uuid=str(metadata.table_uuid),
        location=metadata.location,
        fields=tuple(
            IcebergField(one.field_id, one.name, spark_type(str(one.field_type)), one.required)
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


def _is_registered(catalog: Catalog) -> bool:
    return catalog.is_embedded or catalog.kind == JDBC


def _snapshot(found: Any) -> Snapshot:
    summary, operation = {}, ""
    if found.summary is not None:
        operation = found.summary.operation.value
        summary = {"operation": operation, **found.summary.additional_properties}
    return Snapshot(
        found.snapshot_id,
        found.parent_snapshot_id,
        summary,
        operation,
        found.schema_id,
        found.sequence_number or 0,
    )


def _registered(catalog: Catalog, relation: Relation) -> Table | None:
    location = registered_metadata(catalog, relation)
    if location is None:
        return None
    from pyiceberg.table import StaticTable

    try:
        return StaticTable.from_metadata(location, dict(catalog.options))
    except FileNotFoundError as error:
        raise DestinationError(
            f"{catalog.name}:{relation} has lost its metadata: {location} is not there",
            "restore the warehouse folder, or drop the table and load it anew",
        ) from error
    except OSError as error:
        raise DestinationError(
            f"the metadata of {catalog.name}:{relation} cannot be read: {type(error).__name__}",
            f"see that {location} can be reached from here",
        ) from None


def _in_folders(catalog: Catalog, relation: Relation) -> Table | None:
    from pyiceberg.table import StaticTable

    warehouse = _warehouse(catalog)
    location = newest_metadata(file_io(catalog, warehouse), warehouse, relation)
    return None if location is None else StaticTable.from_metadata(location, dict(catalog.options))


def _warehouse(catalog: Catalog) -> str:
    if "warehouse" not in catalog.options:
        raise SettingsError(
            f'connection "{catalog.name}": catalog = "{HADOOP}" needs the folder of its tables',
            'add warehouse = "…" to the connection',
        )
    return catalog.options["warehouse"]


def _other(catalog: Catalog, relation: Relation) -> Table | None:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    found = _load(catalog)
    with _asking(catalog):
        try:
            table: Table = found.load_table((relation.schema, relation.name))
            return table
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def check_kind(catalog: Catalog) -> None:
    """Refuse a catalog whose tables could not be seen without Spark."""
    if catalog.is_embedded or catalog.kind in READABLE:
        return
    near = difflib.get_close_matches(catalog.kind, (EMBEDDED, *sorted(READABLE)), n=1)
    raise SettingsError(
        f'connection "{catalog.name}": catalog = "{catalog.kind}" is not one that Tidegate can '
        "read" + (f'; did you mean "{near[0]}"?' if near else ""),
        f"one of {EMBEDDED}, {', '.join(sorted(READABLE))}; others often speak rest as well",
    )


def _load(catalog: Catalog) -> Any:
    from pyiceberg.catalog import load_catalog

    check_kind(catalog)
    with _asking(catalog):
        return load_catalog(catalog.name, **{"type": catalog.kind, **catalog.options})


@contextmanager
def _asking(catalog: Catalog) -> Iterator[None]:
    """Translate what a catalog's client raises; its words may hold the options, so none is told."""
    from pyiceberg.exceptions import (
        ForbiddenError,
        NotInstalledError,
        OAuthError,
        UnauthorizedError,
    )

    name = f'the catalog of connection "{catalog.name}" ({catalog.kind})'
    try:
        yield
    except (NotInstalledError, ImportError):
        raise SettingsError(
            f"{name} needs a package that is not installed",
            f'pip install "pyiceberg[{catalog.kind}]"',
        ) from None
    except (UnauthorizedError, ForbiddenError, OAuthError) as error:
        raise ConnectionFailed(
            f"{name} refuses us: {type(error).__name__}",
            "correct the credential or token among the options of the connection",
        ) from None
    except Exception as error:
        # Each client has errors of its own.
        raise ConnectionFailed(
            f"{name} cannot be read: {type(error).__name__}",
            "see that it is running, and that the options of the connection are right",
        ) from None


T = TypeVar("T")
_TRIES = 5


def read_consistently(catalog: Catalog, relation: Relation, read: Callable[[Table], T]) -> T | None:
    """What `read` tells of the table at one moment; None when there is none."""
    seen = None
    for _ in range(_TRIES):
        table = open_table(catalog, relation)
        if table is None:
            return None
        try:
            return read(table)
        except FileNotFoundError as error:
            if table.metadata_location == seen:
                raise DestinationError(
                    f"the metadata of {catalog.name}:{relation} names a file that is not there",
                    f"restore what is missing below {table.metadata.location}, or roll the table "
                    "back to a snapshot that is whole",
                ) from error
            seen = table.metadata_location
        except TidegateError:
            raise
        except Exception as error:
            # Each storage has errors of its own, and so has a file that is not what it should be.
            raise DestinationError(
                f"the metadata of {catalog.name}:{relation} cannot be read: {type(error).__name__}",
                f"see that the files below {table.metadata.location} can be reached from here, and "
                "are whole",
            ) from error
    raise BusyError(
        f"{catalog.name}:{relation} is being changed faster than it can be read", "try again"
    )
