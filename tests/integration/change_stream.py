"""A table with a slot behind it, whose changes are landed, staged and published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from psycopg import sql

from databases import Databases
from integration.conftest import Database, Place, Rows
from integration.shared_places import shared_places
from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, Published
from tidegate.core.identity import new_attempt_id
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.shape import record_columns
from tidegate.iceberg.rows import main_rows
from tidegate.ledger.fences import Fence
from tidegate.load.engine import stage_and_publish
from tidegate.load.sources.cdc.landing import Chunks, LandedChanges, land
from tidegate.load.sources.cdc.staging import stage_landed
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.stage import Staged
from tidegate.load.target import Publication
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.catalog import describe_table
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

START = "0/0"


def peek(database: Database, slot: str, publication: str) -> Iterator[tuple[str, bytes]]:
    """What the slot holds, as a run would read it."""
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET bytea_output = 'hex'")
        with connection.cursor() as cursor:
            statement = sql.SQL(
                "COPY (SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes({}, NULL,"
                " NULL, 'proto_version', '1', 'publication_names', {})) TO STDOUT (FORMAT binary)"
            ).format(sql.Literal(slot), sql.Literal(f'"{publication}"'))
            with cursor.copy(statement) as copy:
                copy.set_types(["text", "bytea"])
                yield from copy.rows()


@dataclass(slots=True)
class ChangeStream:
    """One table of a source, and the target that follows it."""

    project: Project
    place: Place
    relation: Relation = field(default_factory=lambda: Relation("public", "orders"))
    key: tuple[str, ...] = ("id",)
    columns: tuple[str, ...] | None = None
    soft: bool = False
    chunks: Chunks = field(default_factory=Chunks)
    batch_rows: int = 1_000_000
    target: Endpoint = field(
        default_factory=lambda: Endpoint("warehouse", Relation("raw", "orders"))
    )
    transform: Any = None
    slot: str = field(default_factory=lambda: f"slot_{uuid4().hex[:12]}")
    token: int = 0
    value: str = START
    staged: Staged | None = None

    def open(self, *ddl: str) -> None:
        """Make the table, its publication and its slot."""
        self.place.source.execute(*ddl)
        table = sql.Identifier(self.relation.schema, self.relation.name)
        self.place.source.execute(
            sql.SQL(
                "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
            ).format(sql.Identifier(self.slot), table),
            sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput')").format(
                sql.Literal(self.slot)
            ),
        )

    def close(self) -> None:
        """Leave nothing in the source."""
        self.place.source.execute(
            f"SELECT pg_drop_replication_slot('{self.slot}')",
            f'DROP PUBLICATION "{self.slot}"',
            "DROP SCHEMA public CASCADE",
            "CREATE SCHEMA public",
        )

    @property
    def sync(self) -> Sync:
        return Sync(
            project="shop",
            name="orders",
            source=Endpoint("shop", self.relation),
            target=self.target,
            key=self.key,
            lake_target=self.project.context.is_lake(self.target.connection),
            transform=self.transform,
        )

    def messages(self) -> Iterator[tuple[str, bytes]]:
        return peek(self.place.source, self.slot, self.slot)

    def land(self, attempt_id: str, **options: Any) -> LandedChanges:
        given: dict[str, Any] = {
            "slot": self.slot,
            "relation": self.relation,
            "key": self.key,
            "columns": self.columns,
            "after": self.value,
            "batch_rows": self.batch_rows,
            "soft": self.soft,
            "chunks": self.chunks,
            **options,
        }
        destination = self.project.context.destination(self.target)
        destination.ledger.ensure()
        return land(given.pop("messages", self.messages()), destination, attempt_id, **given)

    def load(self, **options: Any) -> tuple[LandedChanges, Published | None]:
        """Land, stage and publish what the slot holds beyond the last load."""
        context, sync = self.project.context, self.sync
        destination = context.destination(self.target)
        self.token += 1
        fence = Fence(
            str(self.target.relation), destination.control_id, self.token, new_attempt_id()
        )
        destination.raise_fence(fence)
        landed = self.land(fence.attempt_id, **options)
        if not landed.changes:
            return landed, None
        kind = BatchKind.FULL if landed.truncated and not self.soft else BatchKind.CHANGES
        batch = Batch(kind, self.value, landed.high, rows=landed.changes)
        watermark = destination.watermark(sync.pipeline)
        with context.databases.connect("shop") as connection:
            table = describe_table(connection, self.relation)
            assert table is not None
            source = PostgresSource(
                table=table,
                columns=table.columns,
                key=self.key,
                cursor=None,
                null_policy=None,
                lookback=None,
                batch_rows=self.batch_rows,
            )

            def stage() -> Staged:
                self.staged = stage_landed(
                    landed,
                    destination,
                    context=context,
                    sync=sync,
                    source=source,
                    connection=connection,
                    batch=batch,
                    attempt_id=fence.attempt_id,
                    prepare=lambda shape: (
                        destination.prepare(shape, watermark, sync.rules, fence=fence) and None
                    ),
                    soft=self.soft,
                )
                return self.staged

            def publication(staged: Staged) -> Publication:
                return Publication(
                    update_id=uuid4().hex,
                    batch=batch,
                    shape=staged.shape,
                    writes=staged.writes,
                    watermark=watermark,
                    cursor_type=None,
                    fence=fence,
                    moved_by="test",
                    remaining_seconds=lambda: 60.0,
                    rules=sync.rules,
                    declaration={"columns": record_columns(staged.shape)},
                )

            published = stage_and_publish(destination, stage, publication, lambda: None)
        destination.discard(fence.attempt_id, ended=True)
        assert landed.high is not None
        self.value = landed.high
        return landed, published

    def lake_rows(self) -> list[dict[str, Any]]:
        """What the table of a lake holds, in the order of its keys."""
        destination = self.project.context.destination(self.target)
        assert isinstance(destination, IcebergTarget)
        found = main_rows(destination.catalog, self.target.relation)
        assert found is not None
        names = [one.name for one in found.metadata.schema().fields]
        rows = [row for _, batch in found.batches(names) for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: [row[name] for name in self.key])

    def source_rows(self, columns: str = "*") -> Rows:
        table = sql.Identifier(self.relation.schema, self.relation.name).as_string(None)
        return _texts(self.place.source, table, columns)

    def target_rows(self, columns: str = "*") -> Rows:
        table = sql.Identifier(self.target.relation.schema, self.target.relation.name)
        return _texts(self.place.target, table.as_string(None), columns)


class Streams:
    """Makes one stream after the other in the same databases, each with a target of its own."""

    def __init__(self, place: Place, project: Project) -> None:
        self.place = place
        self.project = project
        self._made: list[ChangeStream] = []

    def __call__(
        self, *ddl: str, connection: str = "warehouse", name: str = "orders", **options: Any
    ) -> ChangeStream:
        """The tables of the stream before it are gone then."""
        self.close()
        target = Endpoint(connection, Relation("raw", f"{name}_{uuid4().hex[:8]}"))
        stream = ChangeStream(self.project, self.place, target=target, **options)
        stream.open(*ddl)
        self._made.append(stream)
        return stream

    def close(self) -> None:
        while self._made:
            self._made.pop().close()


@contextmanager
def shared_streams(
    kept: Databases,
    folder: Path,
    spark: SparkSessions | None = None,
    **options: Any,
) -> Iterator[Streams]:
    """Streams for all tests of a module."""
    with shared_places(kept, folder) as make_place:
        place = make_place(databases=2, **options)
        streams = Streams(place, place.open(spark))
        try:
            yield streams
        finally:
            streams.close()


def _texts(database: Database, table: str, columns: str) -> Rows:
    """Each row as one text, whatever the order of its columns."""
    return database.execute(
        f"SELECT (SELECT string_agg(key || '=' || coalesce(value, '∅'), ', ' ORDER BY key)"
        f" FROM jsonb_each_text(to_jsonb(r))) FROM (SELECT {columns} FROM {table}) r ORDER BY 1"
    )
