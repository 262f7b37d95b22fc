"""The sources by how a sync is declared: opening one, and opening it again when it was changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from psycopg import errors as pg

from tidegate.config.sync import Sync
from tidegate.core.errors import SourceBusy, SourceChanged
from tidegate.core.log import log
from tidegate.load.context import Context
from tidegate.load.source import Source
from tidegate.load.sources.cdc.source import CdcSource
from tidegate.load.sources.cursor import CursorSource
from tidegate.load.sources.iceberg import IcebergSource
from tidegate.load.sources.iceberg_table import resolve_lake_source
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.resolve import resolve_source
from tidegate.load.sources.snapshot import SnapshotSource
from tidegate.postgres.connection import Connection, first_line

_TRIES = 5
_PAUSE_SECONDS = 0.25


BY_CHANGES: dict[str, Callable[[Context, Sync, PostgresSource, Connection], Source]] = {
    "cursor": CursorSource,
    "snapshot": SnapshotSource,
    "cdc": CdcSource,
}
"""how the changed rows of a database are found; those of a lake are found by its snapshots"""


@contextmanager
def open_source(context: Context, sync: Sync) -> Iterator[Source]:
    """The source as it can be read; a bad declaration is refused."""
    if context.is_lake(sync.source.connection):
        yield IcebergSource(context, sync, resolve_lake_source(context, sync))
        return
    with context.databases.connect_source(sync.source.connection) as connection:
        with locks_as_busy(sync):
            source = resolve_source(connection, sync)
        yield BY_CHANGES[sync.changes](context, sync, source, connection)


def work_through(
    context: Context,
    sync: Sync,
    source: Source,
    work: Callable[[Source], None],
    *,
    check_alive: Callable[[], None],
    progress: Callable[[], int],
) -> None:
    """Do the work; where the source was changed under it, open the source anew and go on.

    A few times in a row, with a pause; `progress` says how many loads are done.
    """
    done, tries, failed = progress(), 0, False
    with ExitStack() as reopened:
        while True:
            try:
                if failed:
                    source = reopened.enter_context(open_source(context, sync))
                with locks_as_busy(sync):
                    work(source)
                return
            except (SourceBusy, SourceChanged) as error:
                tries = tries + 1 if progress() == done else 1
                done, failed = progress(), True
                if tries == _TRIES:
                    raise
                log.info("source_read_again", sync=sync.name, reason=error.message)
            reopened.close()
            for _ in range(2**tries):
                check_alive()
                time.sleep(_PAUSE_SECONDS)


@contextmanager
def locks_as_busy(sync: Sync) -> Iterator[None]:
    """A lock of the source that we did not get in time means that the source is busy."""
    try:
        yield
    except pg.LockNotAvailable as error:
        raise SourceBusy(
            f"sync {sync.name}: another session holds a lock ({first_line(error)})",
            "run again when it has ended; pg_stat_activity of the source shows who it is",
        ) from error
