"""Catalogs, files, engines."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

from tidegate.admin.doctor.databases import check_schema, in_short
from tidegate.admin.doctor.finding import Finding, fail, ok, warn
from tidegate.config import SparkSettings
from tidegate.config.sync import Sync
from tidegate.core.errors import TidegateError
from tidegate.core.relation import Relation
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.engines import ThriftEngine
from tidegate.iceberg.jars import JARS, find_jars
from tidegate.iceberg.metadata import file_io, list_namespaces, read_table
from tidegate.ledger.ledger import CATALOG_TRIGGERS
from tidegate.load.context import Context
from tidegate.maintenance.procedures import engine_of
from tidegate.postgres.connection import first_line
from tidegate.postgres.databases import CONTROL, label

_HERE = frozenset({"", "localhost", "127.0.0.1", "::1"})


def check_lakes(context: Context, syncs: Iterable[Sync]) -> list[Finding]:
    """Look at every lake that the project declares, without starting Spark."""
    names = [name for name in context.settings.connections if _is_lake(context, name)]
    if not names:
        return []
    targets: dict[str, list[Relation]] = {name: [] for name in names}
    for sync in syncs:
        if sync.target.connection in targets:
            targets[sync.target.connection].append(sync.target.relation)
    checks = [_check_pyiceberg()]
    embedded = False
    for name in names:
        try:
            catalog = context.catalog(name)
            embedded |= catalog.is_embedded
            checks += _check_lake(context, catalog, targets[name])
        except TidegateError as error:
            checks.append(fail(label(name), error.message, error.hint or "correct the connection"))
        except psycopg.Error as error:
            fix = "see the server's log; try: tidegate doctor again"
            checks.append(fail(label(name), first_line(error), fix))
    return [*checks, *_check_jars(context.settings.spark, postgres=embedded)]


def _is_lake(context: Context, name: str) -> bool:
    try:
        return context.is_lake(name)
    except TidegateError:
        return False  # the check of databases says what is wrong with it


def _check_pyiceberg() -> Finding:
    name, fix = "pyiceberg", 'pip install "pyiceberg[pyarrow]"'
    try:
        import pyiceberg.io.pyarrow
        import pyiceberg.table  # noqa: F401

        return ok(name, version("pyiceberg"))
    except (ImportError, PackageNotFoundError) as error:
        return fail(name, f"cannot be imported: {error}", fix)


def _check_lake(context: Context, catalog: Catalog, targets: list[Relation]) -> list[Finding]:
    name = label(catalog.name)
    checks = [_check_catalog(name, catalog)]
    with context.databases.connect(CONTROL, "tidegate doctor") as connection:
        checks.append(check_schema(f"{name}: ledger", connection, catalog.schema))
    if catalog.is_embedded:
        checks += [_check_reach(name, context, catalog), _check_trigger(name, catalog)]
    checks += _check_warehouse(name, context, catalog)
    if checks[0].fix is None:
        tables = [_check_target(name, catalog, one) for one in dict.fromkeys(targets)]
        checks += in_short(f"{name}: targets", tables)
    return checks


def _check_catalog(name: str, catalog: Catalog) -> Finding:
    try:
        found = list_namespaces(catalog)
    except TidegateError as error:
        return fail(name, error.message, error.hint or "correct the connection")
    return ok(name, f"catalog {catalog.kind} can be read, {len(found)} namespaces")


def _check_reach(name: str, context: Context, catalog: Catalog) -> Finding:
    """Spark's own process must find the control database, over the network."""
    name = f"{name}: from Spark"
    try:
        catalog.spark_conf()
    except TidegateError as error:
        return fail(name, error.message, error.hint or "correct project.control")
    with catalog.lease() as connection:
        host = connection.info.host
    if host in _HERE and _is_elsewhere(context.settings.spark):
        return warn(
            name,
            f"the control database is at {host or 'localhost'}, which is another machine for Spark",
            "give project.control with a host name that Spark's machines know",
        )
    return ok(name, f"the catalog is reached over TCP, at {host}")


def _check_trigger(name: str, catalog: Catalog) -> Finding:
    """Without it an attempt that was replaced could still commit."""
    name = f"{name}: fence of the catalog"
    with catalog.lease() as connection:
        row = connection.execute(
            "SELECT ARRAY(SELECT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = c.oid),"
            " ARRAY(SELECT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = c.oid"
            "       AND t.tgenabled IN ('O', 'A'))"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = 'iceberg_tables'",
            (catalog.schema,),
        ).fetchone()
        if row is None:
            return ok(name, "will be made with the catalog on first use")
        table = sql.Identifier(catalog.schema, "iceberg_tables").as_string(connection)
    there, enabled = row
    what = "so a replaced attempt could still commit"
    missing = [one for one in CATALOG_TRIGGERS if one not in there]
    if missing:
        found = f"trigger {', '.join(missing)} is not there, {what}"
        return fail(name, found, "the next load makes it again: tidegate run NAME")
    disabled = [one for one in CATALOG_TRIGGERS if one not in enabled]
    if disabled:
        fix = "; ".join(f"ALTER TABLE {table} ENABLE TRIGGER {one}" for one in disabled)
        return fail(name, f"trigger {', '.join(disabled)} is disabled, {what}", fix)
    return ok(name, "its triggers are there and enabled")


def _check_warehouse(name: str, context: Context, catalog: Catalog) -> list[Finding]:
    name = f"{name}: files"
    given = str(catalog.options.get("warehouse", ""))
    if not given and not catalog.is_embedded:
        return []  # the catalog says where its tables are
    address = urlsplit(given)
    if address.scheme in ("", "file"):
        if given and not catalog.is_embedded and not given.startswith(("/", "file:")):
            return []  # a name that the catalog knows
        folder = Path(unquote(address.path)) if given else catalog.warehouse.absolute()
        return [_check_folder(name, folder, context.settings.spark)]
    try:
        file_io(catalog, given).new_input(f"{given.rstrip('/')}/tidegate-doctor").exists()
    except Exception as error:
        # Each storage has errors of its own, and their words may hold a key.
        fix = "see that its address and its credentials among the connection's options are right"
        where = f"{address.scheme}://{address.hostname or ''}"
        return [fail(name, f"{where} cannot be reached: {type(error).__name__}", fix)]
    return [ok(name, f"{address.scheme}://{address.hostname or ''} can be reached")]


def _check_folder(name: str, folder: Path, spark: SparkSettings) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir():
        return fail(name, f"{existing} is not a folder", "move it away, or set warehouse")
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = f"let this user write there: chown or chmod {existing}, or set warehouse"
        return fail(name, f"{existing} may not be written", fix)
    if _is_elsewhere(spark):
        return warn(
            name,
            f"{folder} is a folder of this machine, and Spark runs on others",
            "set warehouse to a place that all of them reach, such as s3://…",
        )
    return ok(name, f"{folder} may be written")


def _check_target(name: str, catalog: Catalog, relation: Relation) -> Finding:
    name = f"{name}: {relation}"
    try:
        table = read_table(catalog, relation)
    except TidegateError as error:
        return fail(name, error.message, error.hint or "see the catalog")
    if table is None:
        return ok(name, "will be created on the first load")
    return ok(name, "is there")


def _check_jars(spark: SparkSettings, *, postgres: bool) -> list[Finding]:
    name = "iceberg for spark"
    if spark.remote is not None:
        found = "Spark runs at spark.remote, whose jars cannot be seen from here"
        return [warn(name, found, f"start it with: {', '.join(find_jars({}, postgres).packages)}")]
    jars = find_jars(spark.conf, postgres)
    checks = [
        fail(name, f"{file} is not there", f'correct "{JARS}" in [spark.conf]')
        for file in jars.missing
    ]
    if jars.to_fetch:
        checks.append(
            warn(
                name,
                f"Spark fetches {', '.join(jars.to_fetch)} when it first starts",
                "nothing, where the network is there; without it: bring the files here and name "
                f'them in [spark.conf], "{JARS}" = "FILE,FILE"',
            )
        )
    return checks or [ok(name, "the jars are there")]


def _is_elsewhere(spark: SparkSettings) -> bool:
    return spark.remote is not None or not (spark.master or "local").startswith("local")


_NAME = "maintenance engine"
_SECONDS = 15.0
_CONNECT_PORT = 15002


def check_engine(context: Context) -> list[Finding]:
    """Look for the engine of its own that maintenance has, if it has one."""
    address = context.settings.maintenance.engine
    if address is None:
        return []
    try:
        engine = engine_of(context)
        if isinstance(engine, ThriftEngine):
            engine.check(_SECONDS)
            return [ok(_NAME, f"{engine.address} opens sessions")]
    except TidegateError as error:
        return [fail(_NAME, error.message, error.hint or "correct maintenance.engine")]
    return [_check_connect(address)]


def _check_connect(address: str) -> Finding:
    """What comes after the host may be a token."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or _CONNECT_PORT
    except ValueError:
        return fail(_NAME, "its address cannot be read", "write sc://host:15002")
    where = f"sc://{host}:{port}"
    try:
        socket.create_connection((host, port), _SECONDS).close()
    except OSError as error:
        fix = "start the Spark Connect server, or correct maintenance.engine"
        return fail(_NAME, f"{where} cannot be reached: {error.strerror or error}", fix)
    return ok(_NAME, f"{where} can be reached")
