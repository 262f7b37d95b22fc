"""The catalog behind a lake connection: what Spark and readers without Spark are told of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

from psycopg.conninfo import conninfo_to_dict

from tidegate.errors import SettingsError
from tidegate.ledger.fences import publisher_name
from tidegate.model.lake import EMBEDDED
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connect import Connection

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
