"""The slots of a project as they stand in its sources: what they keep, and who holds them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg

from tidegate.control.slots import KnownSlot, SlotReader, Slots
from tidegate.errors import TidegateError
from tidegate.model.identity import sync_of
from tidegate.model.lsn import lsn_value
from tidegate.model.slot import SlotState
from tidegate.pipeline.context import Context
from tidegate.pipeline.slot_remarks import SlotRemark, slot_remark
from tidegate.postgres.connect import Connection, connect, translate
from tidegate.postgres.conninfo import merge
from tidegate.postgres.databases import label
from tidegate.sources.slots import list_slots

# Who asks for figures every few seconds does not wait for a server that is away.
_SECONDS = 2


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """One sync that reads a slot; `behind_bytes` counts the whole log, not only its table."""

    sync: str
    lsn: str
    behind_bytes: int
    read_at: datetime | None
    seconds: float | None
    """how long ago it saw all that there was"""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot; without `retained_bytes` it is not there, or its server was not reached."""

    slot: str
    connection: str
    readers: tuple[ReaderStatus, ...]
    retained_bytes: int | None = None
    wal_status: str | None = None
    remark: SlotRemark | None = None
    unreachable: str | None = None

    @property
    def is_well(self) -> bool:
        return self.unreachable is None and not (self.remark is not None and self.remark.severe)

    @property
    def is_lost(self) -> bool:
        return self.unreachable is None and (
            self.retained_bytes is None or self.wal_status == "lost"
        )


Open = Callable[[str], AbstractContextManager[Connection]]


def read_slots(context: Context, control: Connection, open_source: Open) -> list[SlotStatus]:
    """Every slot that the control database knows, asked of its server."""
    slots, project = Slots(context.plane), context.settings.project.name
    readers = slots.readers(control, project)
    return [
        _Look(context, known, [one for one in readers if one.slot == known.slot]).status(
            open_source
        )
        for known in slots.of_project(control, project)
    ]


def quick_source(context: Context) -> Open:
    """A session of a source that answers soon, or not at all."""

    @contextmanager
    def open_source(name: str) -> Iterator[Connection]:
        address = merge(context.databases.conninfo(name), connect_timeout=_SECONDS)
        with connect(address, name=label(name), application="tidegate inspect") as connection:
            connection.execute(f"SET statement_timeout = '{_SECONDS}s'")
            yield connection

    return open_source


@dataclass(frozen=True, slots=True)
class _Look:
    context: Context
    known: KnownSlot
    readers: list[SlotReader]

    def status(self, open_source: Open) -> SlotStatus:
        name = self.known.connection
        try:
            with open_source(name) as connection:
                found = list_slots(connection, [self.known.slot])
                row = connection.execute(
                    "SELECT pg_current_wal_lsn()::text, clock_timestamp()"
                ).fetchone()
        except (TidegateError, psycopg.Error) as error:
            problem = (
                translate(error, f"reading the slot of {name}")
                if isinstance(error, psycopg.Error)
                else error
            )
            readers = tuple(self._reader(one, None, None) for one in self.readers)
            return SlotStatus(self.known.slot, name, readers, unreachable=problem.message)
        assert row is not None
        readers = tuple(self._reader(one, *row) for one in self.readers)
        if not found:
            return SlotStatus(self.known.slot, name, readers, remark=self._gone())
        return self._of(found[0], readers)

    def _of(self, state: SlotState, readers: tuple[ReaderStatus, ...]) -> SlotStatus:
        project = self.context.settings.project.name
        return SlotStatus(
            slot=state.name,
            connection=self.known.connection,
            readers=readers,
            retained_bytes=state.retained_bytes,
            wal_status=state.wal_status,
            remark=slot_remark(self.context.settings.cdc, state, self.readers, project),
        )

    def _gone(self) -> SlotRemark:
        return SlotRemark(
            f"slot {self.known.slot} is gone",
            "copy its tables again: tidegate run NAME --full-refresh",
            severe=True,
        )

    def _reader(self, one: SlotReader, lsn: str | None, now: datetime | None) -> ReaderStatus:
        behind = 0 if lsn is None else max(0, lsn_value(lsn) - lsn_value(one.lsn))
        seconds = None
        if one.read_at is not None and now is not None:
            seconds = max(0.0, (now - one.read_at).total_seconds())
        sync = sync_of(self.context.settings.project.name, one.pipeline)
        return ReaderStatus(sync, one.lsn, behind, one.read_at, seconds)
