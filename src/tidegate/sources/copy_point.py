"""A point in the log and the snapshot that belongs to it: where a copy ends, changes begin."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import SourceError
from tidegate.postgres.connect import Connection, Snapshot, connect, first_line
from tidegate.postgres.conninfo import merge
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.reading import reading
from tidegate.sources.slots import PLUGIN, waited_too_long


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """All that was committed up to `lsn`, and nothing else, is seen under `snapshot`."""

    lsn: str
    snapshot: Snapshot


@contextmanager
def replication_session(conninfo: str, name: str) -> Iterator[Connection]:
    """A session that also speaks the language of replication; `name` is the connection's."""
    with connect(
        merge(conninfo, replication="database"), name=name, application="tidegate copy"
    ) as session:
        yield session


@contextmanager
def copy_point(
    conninfo: str,
    name: str,
    connection: Connection,
    source: PostgresSource,
    *,
    timeout_seconds: float,
    lock_seconds: float,
) -> Iterator[CopyPoint]:
    """Hold such a snapshot in `connection`, under a name that any number of readers can import.

    The temporary slot that gave it goes with its session, which must stay until the snapshot
    is held elsewhere. A lock cannot be taken first: making the slot waits for the transaction of
    an ALTER, which would wait for that lock.
    """
    positions: list[str] = []

    @contextmanager
    def slot() -> Iterator[str]:
        with replication_session(conninfo, name) as session:
            lsn, given = _make(session, connection, timeout_seconds)
            positions.append(lsn)
            yield given

    with reading(connection, source, lock_seconds, given=slot) as snapshot:
        yield CopyPoint(positions[-1], snapshot)


def read_history(conninfo: str, name: str, timeline: int) -> str | None:
    """The history of a timeline, from its beginning; None where the server does not tell."""
    try:
        with replication_session(conninfo, name) as session:
            row = session.execute(
                sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline))
            ).fetchone()
    except psycopg.Error:
        return None
    content = None if row is None else row[1]
    return content.decode() if isinstance(content, bytes) else content


def _make(session: Connection, beside: Connection, timeout_seconds: float) -> tuple[str, str]:
    slot = f"tidegate_copy_{uuid.uuid4().hex[:16]}"
    # A statement_timeout does not hold for these commands, and any other ends the snapshot.
    timer = threading.Timer(timeout_seconds, session.cancel_safe)
    timer.start()
    try:
        row = session.execute(
            sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL {} EXPORT_SNAPSHOT").format(
                sql.Identifier(slot), sql.Identifier(PLUGIN)
            )
        ).fetchone()
    except pg.QueryCanceled:
        raise waited_too_long(beside, timeout_seconds) from None
    except (pg.ConfigurationLimitExceeded, pg.InsufficientPrivilege) as error:
        raise SourceError(
            f"the source gives no snapshot for the first copy: {first_line(error)}",
            "raise max_replication_slots, drop a slot that nobody uses, or grant the right "
            "REPLICATION; tidegate doctor says which",
        ) from None
    finally:
        timer.cancel()
    assert row is not None
    return str(row[1]), str(row[2])
