"""Where the ledger is and how it is created."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import DestinationError
from tidegate.core.identity import staging_prefix
from tidegate.core.relation import Relation
from tidegate.postgres.connection import Connection, first_line, own_path
from tidegate.postgres.queries import qualified, script, statement
from tidegate.postgres.queries import statements as named

# What two creators at once, or a creator after another, may run into.
_ALREADY_THERE = (pg.DuplicateTable, pg.DuplicateSchema, pg.DuplicateObject, pg.UniqueViolation)

# What refuses a replaced attempt, and a commit that is sent a second time.
CATALOG_TRIGGERS = ("refuse_stale_attempt", "refuse_lost_race")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Names of the ledger's tables, and a way to open sessions of its own."""

    connect: Callable[[], AbstractContextManager[Connection]]
    schema: str = "tidegate"
    marker_table: str = "table_updates"
    client_timestamps: bool = False
    lake: bool = False
    """it is that of a lake, and holds what could not be committed together with its rows"""
    catalog: bool = False
    """the lake's catalog lies beside it"""

    @property
    def schema_identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema)

    @property
    def tables(self) -> tuple[str, ...]:
        """What it is made of, besides the markers."""
        lake = ("intents", "staged_folders", "catalog_moves") if self.lake else ()
        catalog = ("iceberg_tables",) if self.catalog else ()
        return ("etl_state", "watermark_log", "fences", *lake, *catalog)

    def ensure(self) -> Relation:
        """Create what is missing over a session of its own, so that no load is disturbed."""
        with self.connect() as connection:
            if not self._complete(connection):
                self._create(connection)
            return self.find_markers(connection) or self._marker_name()

    def find_markers(self, connection: Connection) -> Relation | None:
        """The marker table: ours, or one that Luigi made anywhere in the search path."""
        wanted = self._marker_name()
        if _exists(connection, wanted):
            return wanted
        # Markers of a lake are of its tables alone: "raw.orders" elsewhere is another table.
        if "." in self.marker_table or self.lake:
            return None
        with own_path(connection):
            place = connection.execute(
                "SELECT pg_catalog.to_regclass(pg_catalog.quote_ident(%s))::oid",
                (self.marker_table,),
            ).fetchone()
        row = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s::oid AND 2 = (SELECT count(*)"
            " FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped"
            " AND a.attname IN ('update_id', 'target_table'))",
            place,
        ).fetchone()
        return Relation(*row) if row else None

    def _marker_name(self) -> Relation:
        if "." in self.marker_table:
            return Relation.parse(self.marker_table)
        return Relation(self.schema, self.marker_table)

    def _complete(self, connection: Connection) -> bool:
        names = list(self.tables)
        row = connection.execute(
            "SELECT count(DISTINCT c.oid), count(a.attname)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'declaration'"
            " WHERE n.nspname = %s AND c.relname = ANY(%s)",
            (self.schema, names),
        ).fetchone()
        # The column came later than its table.
        complete = row == (len(names), 1) and (not self.catalog or self._is_fenced(connection))
        return complete and self.find_markers(connection) is not None

    def _is_fenced(self, connection: Connection) -> bool:
        """Whether the catalog has the triggers that stand in front of its commits."""
        row = connection.execute(
            "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s"
            " AND c.relname = 'iceberg_tables' AND t.tgname = ANY(%s)",
            (self.schema, list(CATALOG_TRIGGERS)),
        ).fetchone()
        return row == (len(CATALOG_TRIGGERS),)

    def _create(self, connection: Connection) -> None:
        try:
            self._run(connection)
        except pg.InvalidSchemaName as error:
            raise DestinationError(
                f"the marker table {self.marker_table} cannot be made: {first_line(error)}",
                "create its schema, or set ledger.marker_table without one",
            ) from None
        except pg.InsufficientPrivilege as error:
            user = connection.info.user
            raise DestinationError(
                f"role {user} may not create the ledger (schema {self.schema}) in database "
                f"{connection.info.dbname}: {first_line(error)}",
                f"as its owner: CREATE SCHEMA {self.schema} AUTHORIZATION {user}",
            ) from None

    def _run(self, connection: Connection) -> None:
        schema = self.schema_identifier
        statements: list[sql.Composed] = []
        if not _schema_exists(connection, self.schema):
            statements.append(sql.SQL("CREATE SCHEMA {}").format(schema))
        if self.find_markers(connection) is None:
            create = named("ledger/table_updates")["create_table"]
            statements.append(sql.SQL(create).format(markers=qualified(self._marker_name())))
        for text in script("ledger/schema").split(";\n"):
            if text.strip():
                statements.append(sql.SQL(text).format(schema=schema))
        for piece in statements:
            try:
                connection.execute(piece)
            except _ALREADY_THERE:
                continue
        for file, wanted in (
            ("ledger/iceberg_schema", self.lake),
            ("ledger/iceberg_catalog", self.catalog),
        ):
            if not wanted:
                continue
            # One creator at a time: IF NOT EXISTS does not keep two of them apart.
            with connection.transaction():
                connection.execute(
                    "SELECT set_config('lock_timeout', '30s', true),"
                    " pg_advisory_xact_lock(hashtextextended(%s, 0::bigint))",
                    (f"tidegate ledger {self.schema}",),
                )
                connection.execute(sql.SQL(script(file)).format(schema=schema))


def _exists(connection: Connection, relation: Relation) -> bool:
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s)",
        (relation.schema, relation.name),
    ).fetchone()
    return bool(row and row[0])


def _schema_exists(connection: Connection, schema: str) -> bool:
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", (schema,)
    ).fetchone()
    return bool(row and row[0])


@dataclass(frozen=True, slots=True)
class Staging:
    """Finds and drops the staging tables of one ledger."""

    ledger: Ledger

    def tables(
        self, connection: Connection, control_id: UUID, attempt_id: str | None = None
    ) -> list[str]:
        rows = connection.execute(
            statement("ledger/staging", "list_staging"),
            {"schema": self.ledger.schema, "prefix": staging_prefix(control_id, attempt_id)},
        )
        return [row[0] for row in rows]

    def discard(self, connection: Connection, control_id: UUID, attempt_id: str) -> int:
        """Drop what an attempt staged."""
        return self._drop(connection, self.tables(connection, control_id, attempt_id))

    def sweep(self, connection: Connection, control_id: UUID, live: Callable[[], set[str]]) -> int:
        """Drop what attempts of this control plane left behind that are not live any more.

        The tables are listed before the live attempts are: a table is made after its claim, so
        one that was seen and whose attempt is not live then belongs to nobody.
        """
        tables = self.tables(connection, control_id)
        prefixes = {staging_prefix(control_id, attempt_id) for attempt_id in live()}
        length = len(staging_prefix(control_id, "0" * 16))
        orphans = [table for table in tables if table[:length] not in prefixes]
        return self._drop(connection, orphans)

    def _drop(self, connection: Connection, tables: list[str]) -> int:
        dropped = 0
        for table in tables:
            try:
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = '2s'")
                    connection.execute(
                        sql.SQL("DROP TABLE IF EXISTS {}").format(
                            sql.Identifier(self.ledger.schema, table)
                        )
                    )
                dropped += 1
            except pg.LockNotAvailable:
                # Somebody still writes it: a lost attempt that will notice. The next sweep has it.
                continue
        return dropped
