"""The catalogs: embedded, JDBC, Hadoop, others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit
from uuid import uuid4

from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidegate.core.errors import SettingsError
from tidegate.core.relation import Relation
from tidegate.iceberg.table import EMBEDDED
from tidegate.ledger.fences import publisher_name
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connection import Connection, connect
from tidegate.postgres.queries import OwnSQL

SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_IDLE_MILLISECONDS = 15 * 60 * 1000
# What the driver for Java calls as libpq does.
_SSL = ("sslmode", "sslrootcert", "sslcert", "sslkey")


@dataclass(frozen=True, slots=True)
class Catalog:
    """One lake; `name` is that of its connection, by which Spark knows it as well."""

    name: str
    kind: str
    """`embedded`, or a kind that Iceberg knows: rest, hive, glue, jdbc, hadoop …"""
    options: Mapping[str, str]
    warehouse: Path
    """where the embedded one keeps its tables"""
    schema: str
    """where the control database keeps what it knows of this lake"""
    control: Callable[[], str]
    """the address of the control database, everything spelled out"""
    lease: Callable[[], AbstractContextManager[Connection]]
    """short sessions of the control database"""

    def __repr__(self) -> str:
        return f"Catalog({self.name}, {self.kind})"

    @property
    def is_embedded(self) -> bool:
        """Whether its commits pass our own trigger, which knows the fences."""
        return self.kind == EMBEDDED

    @property
    def needs_postgres(self) -> bool:
        """Whether Spark reaches it through the Postgres driver for Java."""
        return self.is_embedded or self.options.get("uri", "").startswith("jdbc:postgresql:")

    @property
    def identity(self) -> str:
        """What stays the same under any name; no secret is in it."""
        if self.is_embedded:
            with self.lease() as connection:
                return f"{database_identity(connection)}/{self.schema}"
        return f"{self.kind}/{catalog_digest(self.kind, self.options)}"

    def quoted(self, relation: Relation, *parts: str) -> str:
        """A table, or a branch of it or something below it, as Spark's SQL writes it."""
        return ".".join(backticked(part) for part in (self.name, *_parts(relation), *parts))

    def procedure_name(self, relation: Relation) -> str:
        """A table as a procedure of this catalog wants it."""
        return ".".join(backticked(part) for part in _parts(relation))

    def spark_conf(
        self, attempt_id: str | None = None, *, maintains: bool = False
    ) -> dict[str, str]:
        """The settings of a session that works with this catalog, for one attempt or for none."""
        prefix = f"spark.sql.catalog.{self.name}"
        own = self._own_options(attempt_id)
        if self.is_embedded and maintains:
            # Its own name, by which the catalog tells its commits from those of another session.
            own["jdbc.options"] += f" -c tidegate.maintains={uuid4().hex[:16]}"
        # A table that is kept would not show what others commit.
        options = {"cache-enabled": "false", **own, **self.options}
        return {prefix: SPARK_CATALOG} | {f"{prefix}.{key}": v for key, v in options.items()}

    def _own_options(self, attempt_id: str | None) -> dict[str, str]:
        if not self.is_embedded:
            kind = "catalog-impl" if "." in self.kind else "type"
            return {kind: self.kind}
        address = conninfo_to_dict(self.control())
        host = str(address.get("host", ""))
        if host.startswith(("/", "@")):
            raise SettingsError(
                f'connection "{self.name}": its catalog is in the control database, which Java '
                "cannot reach over a Unix socket",
                "give project.control with a host name, such as localhost",
            )
        ssl = "".join(
            f"&{key}={quote(str(address[key]), safe='')}" for key in _SSL if address.get(key)
        )
        found = {
            "type": "jdbc",
            "uri": f"jdbc:postgresql://{host}:{address.get('port', 5432)}/"
            f"{quote(str(address.get('dbname')), safe='')}"
            f"?currentSchema={quote(backslashed(self.schema), safe='')}{ssl}",
            "jdbc.user": str(address.get("user", "")),
            "jdbc.password": str(address.get("password", "")),
            "jdbc.schema-version": "V1",
            "clients": "1",
            # Of a session in a Spark Connect server nobody can close the connection. One that
            # is needed after a long pause is opened again.
            "jdbc.options": f"-c idle_session_timeout={_IDLE_MILLISECONDS}",
            "retryable_status_codes": "57P05,57P01",
            "warehouse": self.warehouse.absolute().as_uri(),
        }
        if attempt_id is not None:
            found["jdbc.options"] += f" -c tidegate.attempt={attempt_id}"
            # By which its session can be found and ended.
            found["jdbc.ApplicationName"] = publisher_name(attempt_id)
        return found


def catalog_digest(kind: str, options: Mapping[str, str]) -> str:
    """Where a catalog is, without what is said to get in."""
    address = urlsplit(options.get("uri", ""))
    host = address.netloc.rpartition("@")[2]
    uri = urlunsplit((address.scheme, host, address.path, "", ""))
    content = "\n".join((kind, uri, options.get("warehouse", "")))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def backticked(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A text as Spark's SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def backslashed(schema: str) -> str:
    """A schema for `currentSchema`, which is a search path."""
    return '"' + schema.replace('"', '""') + '"'


def _parts(relation: Relation) -> tuple[str, str]:
    return relation.schema, relation.name


def newest_metadata(io: Any, warehouse: str, relation: Relation) -> str | None:
    """The metadata file that counts; None when there is no such table."""
    folder = f"{warehouse.rstrip('/')}/{relation.schema}/{relation.name}/metadata"
    version = _hint(io, f"{folder}/version-hint.text")
    # The hint is written after the commit, and not by one who was gone between the two.
    while io.new_input(_file(folder, version + 1)).exists():
        version += 1
    return _file(folder, version) if version else None


def has_folder(io: Any, location: str) -> bool:
    """Whether a folder is there, empty or not."""
    from pyarrow.fs import FileType

    scheme, netloc, plain = io.parse_location(location, io.properties)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(plain)
    return bool(found.type == FileType.Directory)


def list_folders(io: Any, warehouse: str) -> list[Relation]:
    """The tables below a warehouse."""
    from pyarrow.fs import FileSelector

    scheme, netloc, plain = io.parse_location(warehouse, io.properties)
    files = io.fs_by_scheme(scheme, netloc)

    def below(path: str) -> list[Any]:
        found = files.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted((one for one in found if not one.is_file), key=lambda one: one.path)

    return [
        Relation(namespace.base_name, table.base_name)
        for namespace in below(plain)
        for table in below(namespace.path)
        if any(one.base_name == "metadata" for one in below(table.path))
    ]


def _hint(io: Any, path: str) -> int:
    try:
        with io.new_input(path).open() as stream:
            return int(stream.read().decode())
    except (FileNotFoundError, ValueError):
        return 0


def _file(folder: str, version: int) -> str:
    return f"{folder}/v{version}.metadata.json"


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
