"""Reading what a slot holds, without taking it: a stream of messages, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from psycopg import errors as pg
from psycopg import sql

from tidegate.postgres.connect import Connection
from tidegate.sources.slots import slot_in_use

_ACTIVE_SECONDS = 30.0
_POLL_SECONDS = 0.1
_MOST_MESSAGES = 2**31 - 1


@dataclass(slots=True)
class Peek:
    """One look at a slot; `messages` counts what came while it is being read."""

    connection: Connection
    slot: str
    publication: str
    upto: str | None = None
    """whole transactions up to this position"""
    most: int | None = None
    """whole transactions until so many messages have come"""
    check_alive: Callable[[], None] = lambda: None
    messages: int = field(default=0, init=False)

    @property
    def was_cut(self) -> bool:
        """Whether it ended for the number of messages, so that there may be more."""
        return self.most is not None and self.messages >= self.most

    def __iter__(self) -> Generator[tuple[str, bytes]]:
        deadline = time.monotonic() + _ACTIVE_SECONDS
        while True:
            try:
                yield from self._read()
                return
            except pg.ObjectInUse:
                # A session that was killed lets go when its server process notices.
                if time.monotonic() > deadline:
                    raise slot_in_use(self.slot) from None
            self.check_alive()
            time.sleep(_POLL_SECONDS)

    def _read(self) -> Iterator[tuple[str, bytes]]:
        most = None if self.most is None else min(self.most, _MOST_MESSAGES)
        statement = sql.SQL(
            "COPY (SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes({}, {}::pg_lsn,"
            " {}, 'proto_version', '1', 'publication_names', {})) TO STDOUT (FORMAT binary)"
        ).format(
            sql.Literal(self.slot),
            sql.Literal(self.upto),
            sql.Literal(most),
            sql.Literal(sql.Identifier(self.publication).as_string(None)),
        )
        self.messages = 0
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["text", "bytea"])
            for lsn, data in copy.rows():
                self.messages += 1
                yield lsn, data
