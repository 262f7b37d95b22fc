"""Opening a sync's source, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import resolve_source
from tidegate.pipeline.lake_declaration import resolve_lake_source
from tidegate.postgres.connect import Connection
from tidegate.sources.lake import LakeSource
from tidegate.sources.postgres import PostgresSource


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source in a database, and the session in which it is read."""

    source: PostgresSource
    connection: Connection


Source = OpenSource | LakeSource


@contextmanager
def open_source(context: Context, sync: Sync) -> Iterator[Source]:
    """The source as it can be read; a bad declaration is refused."""
    if context.is_lake(sync.source.connection):
        yield resolve_lake_source(context, sync)
        return
    with context.databases.connect(sync.source.connection, "tidegate source") as connection:
        yield OpenSource(resolve_source(connection, sync), connection)
