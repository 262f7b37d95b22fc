"""A JDBC catalog: Iceberg's own tables in a Postgres, the project's or another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidegate.errors import SettingsError
from tidegate.lake.catalog import Catalog
from tidegate.model.relation import Relation
from tidegate.postgres.connect import Connection, connect
from tidegate.postgres.identifiers import OwnSQL

JDBC = "jdbc"
_POSTGRES = "jdbc:postgresql:"


def list_registered(catalog: Catalog) -> list[Relation]:
    """The tables of the catalog; none where it is not made yet."""
    return list(all_registered(catalog))


def all_registered(catalog: Catalog) -> dict[Relation, str | None]:
    """The tables of the catalog in order, each with the metadata file that counts."""
    with _session(catalog) as (connection, tables):
        try:
            rows = connection.execute(
                sql.SQL(
                    "SELECT table_namespace, table_name, metadata_location FROM {}"
                    " WHERE catalog_name = %s ORDER BY 1, 2"
                ).format(tables),
                (catalog.name,),
            ).fetchall()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return {}
    return {Relation(namespace, name): location for namespace, name, location in rows}


def registered_metadata(catalog: Catalog, relation: Relation) -> str | None:
    """The metadata file that counts; None when there is no such table."""
    with _session(catalog) as (connection, tables):
        try:
            row = connection.execute(
                sql.SQL(
                    "SELECT metadata_location FROM {} WHERE catalog_name = %s"
                    " AND table_namespace = %s AND table_name = %s"
                ).format(tables),
                (catalog.name, relation.schema, relation.name),
            ).fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return None
    return None if row is None else str(row[0])


@contextmanager
def _session(catalog: Catalog) -> Iterator[tuple[Connection, sql.Composable]]:
    """A session of the catalog's database, and its table there."""
    if catalog.is_embedded:
        with catalog.lease() as connection:
            yield connection, sql.Identifier(catalog.schema, "iceberg_tables")
        return
    address = _address(catalog)
    with connect(address, name=f'the catalog of connection "{catalog.name}"') as connection:
        yield connection, OwnSQL("iceberg_tables")


def _address(catalog: Catalog) -> str:
    """What the driver for Java is given, as libpq takes it."""
    uri = catalog.options.get("uri", "")
    if not uri.startswith(_POSTGRES):
        raise SettingsError(
            f'connection "{catalog.name}": catalog = "jdbc" is read in Postgres only',
            'give uri = "jdbc:postgresql://host:5432/database"',
        )
    parts = urlsplit(uri.removeprefix("jdbc:"))
    given = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    schema = given.get("currentSchema")
    user = catalog.options.get("jdbc.user", given.get("user"))
    password = catalog.options.get("jdbc.password", given.get("password"))
    values = {
        "host": parts.hostname,
        "port": parts.port,
        "dbname": unquote(parts.path.lstrip("/")) or user,
        "user": user,
        "password": password,
        "sslmode": given.get("sslmode"),
        "sslrootcert": given.get("sslrootcert"),
        "options": None if schema is None else f"-c search_path={schema}",
    }
    return make_conninfo("", **{key: value for key, value in values.items() if value})
