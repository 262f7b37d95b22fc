"""The lake of a trial: what is in it, and what a load has left around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import sql

from tidegate.errors import DeclarationError
from tidegate.lake.files import has_files
from tidegate.lake.jars import lake_conf
from tidegate.lake.metadata import file_io, lake_table, read_metadata
from tidegate.lake.reading import LakeRowsAt
from tidegate.ledger.intents import Intents
from tidegate.ledger.markers import Markers
from tidegate.ledger.staged_folders import StagedFolders
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.lake import MAIN, LakeTable
from tidegate.model.relation import Endpoint
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.lake_mirror import field_kinds, mirror
from tidegate.postgres.connect import Connection
from tidegate.testing.oracle import Content, make_content


def embedded_lake(folder: Path) -> dict[str, Any]:
    """A lake of one's own in place of a declared one, whatever catalog that has."""
    return {"type": "iceberg", "catalog": "embedded", "warehouse": folder.absolute().as_uri()}


def trial_conf(context: Context) -> dict[str, str]:
    """What Spark must start with for trials, whose lakes are embedded ones."""
    settings = context.settings
    has_lake = any(settings.is_lake(name) for name in settings.connections)
    return lake_conf(settings.spark.conf, postgres=True) if has_lake else {}


def read_lake(context: Context, target: Endpoint) -> list[dict[str, Any]]:
    """The rows of a lake's table as Python values; a table that is not there has none."""
    catalog = context.catalog(target.connection)
    metadata = read_metadata(catalog, target.relation)
    if metadata is None:
        return []
    rows = LakeRowsAt(catalog, target.relation, metadata, metadata.current_snapshot_id)
    names = [one.name for one in metadata.schema().fields]
    return [row for _, batch in rows.batches(names) for row in batch.to_pylist()]


@dataclass(frozen=True, slots=True)
class LakeTrial:
    """Looks at the target of a sync, without Spark."""

    context: Context
    sync: Sync

    def content(self, key: Sequence[str], columns: Sequence[str] | None = None) -> Content:
        """What main holds; its values are printed by Postgres, as the source's are."""
        relation = self.sync.target.relation
        catalog = self.context.catalog(self.sync.target.connection)
        metadata = read_metadata(catalog, relation)
        if metadata is None:
            return Content(tuple(columns or ()), {})
        table = lake_table(relation, metadata)
        names = tuple(columns if columns is not None else (one.name for one in table.fields))
        missing = [name for name in names if table.field(name) is None]
        if missing:
            raise DeclarationError(f"{relation} has no column {', '.join(missing)}", None)
        rows = LakeRowsAt(catalog, relation, metadata, table.main)
        with (
            self._session() as connection,
            mirror(connection, "tidegate_trial", field_kinds(table, names)) as found,
        ):
            found.fill(batch for _, batch in rows.batches(names))
            texts = (sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
            printed = connection.execute(
                sql.SQL("SELECT {} FROM ({}) t").format(sql.SQL(", ").join(texts), found.rows)
            ).fetchall()
        return make_content(names, printed, key)

    def leftovers(self) -> list[str]:
        """What should not be there once a run has come to its end."""
        relation = self.sync.target.relation
        metadata = read_metadata(self.context.catalog(self.sync.target.connection), relation)
        if metadata is None:
            return []
        table = lake_table(relation, metadata)
        left = [f"branch {name}" for name in table.refs if name != MAIN]
        with self._session() as connection:
            return [*left, *self._unsettled(connection), *self._unrecorded(connection, table)]

    def _unsettled(self, connection: Connection) -> Iterator[str]:
        ledger = self.context.ledger(self.sync.target.connection)
        name = str(self.sync.target.relation)
        for intent in Intents(ledger).of_table(connection, name):
            if not intent.abandoned:
                yield f"the intent to publish {intent.update_id}"
        catalog = self.context.catalog(self.sync.target.connection)
        for one in StagedFolders(ledger).of_table(connection, name):
            # A folder of the dead stays noted for a while, in case that they still write.
            if not one.adopted and has_files(
                file_io(catalog, one.location), one.location, one.folder
            ):
                yield f"staged files of attempt {one.attempt_id}"

    def _unrecorded(self, connection: Connection, table: LakeTable) -> Iterator[str]:
        ledger = self.context.ledger(self.sync.target.connection)
        loads = {one.update_id for one in table.ancestors() if one.update_id is not None}
        watermark = Watermarks(ledger).get(connection, self.sync.pipeline, str(table.relation))
        if watermark.update_id is not None:
            loads.add(watermark.update_id)
        for update_id in sorted(loads):
            if not Markers(ledger).exists(connection, update_id, table.relation):
                yield f"load {update_id} without a marker"

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        with self.context.databases.connect(self.sync.target.connection) as connection:
            yield connection
