"""A project's slots and their readers, with warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg

from tidegate.config.sections import CdcSettings
from tidegate.core.errors import TidegateError
from tidegate.core.identity import sync_of
from tidegate.core.units import in_bytes
from tidegate.core.watermark import lsn_value
from tidegate.jobs.control_database import ControlDatabase
from tidegate.load.context import Context
from tidegate.load.sources.cdc.slot import SlotState, list_slots
from tidegate.postgres.connection import Connection, connect, merge, translate
from tidegate.postgres.databases import label


@dataclass(frozen=True, slots=True)
class KnownSlot:
    """A slot that this control plane has made, or was about to make."""

    slot: str
    connection: str
    system: str
    database: str
    made_at: datetime


@dataclass(frozen=True, slots=True)
class SlotReader:
    """A pipeline that reads a slot; `read_at` is when it last saw all that there was."""

    slot: str
    pipeline: str
    publication: str
    lsn: str
    read_at: datetime | None


@dataclass(frozen=True, slots=True)
class Slots:
    """Reads and writes what the control database knows of slots."""

    plane: ControlDatabase

    def register(
        self,
        connection: Connection,
        *,
        slot: str,
        project: str,
        source: str,
        system: str,
        database: str,
    ) -> None:
        """Know a slot, before it is made."""
        connection.execute(
            self.plane.statement("load/slots", "register_slot"),
            {
                "slot": slot,
                "project": project,
                "connection": source,
                "system": system,
                "database": database,
            },
        )

    def join(self, connection: Connection, reader: SlotReader) -> None:
        """Hold the slot where it is for a new reader; one that is known stays as it is."""
        connection.execute(
            self.plane.statement("load/slots", "register_reader"), self._parameters(reader)
        )

    def move(self, connection: Connection, reader: SlotReader) -> None:
        """A reader has published up to its position."""
        connection.execute(
            self.plane.statement("load/slots", "move_reader"), self._parameters(reader)
        )

    def reset(self, connection: Connection, slot: str, lsn: str) -> None:
        """The slot begins anew at `lsn`, for all of its readers."""
        connection.execute(
            self.plane.statement("load/slots", "reset_readers"), {"slot": slot, "lsn": lsn}
        )

    def least(self, connection: Connection, slot: str) -> str | None:
        """What all readers of a slot have behind them."""
        row = connection.execute(
            self.plane.statement("load/slots", "least_lsn"), {"slot": slot}
        ).fetchone()
        return row[0] if row else None

    def of_project(self, connection: Connection, project: str) -> list[KnownSlot]:
        rows = connection.execute(
            self.plane.statement("load/slots", "list_slots"), {"project": project}
        )
        return [KnownSlot(*row) for row in rows]

    def readers(self, connection: Connection, project: str) -> list[SlotReader]:
        """Who reads the slots of a project, those that hold them back first."""
        rows = connection.execute(
            self.plane.statement("load/slots", "list_readers"), {"project": project}
        )
        return [SlotReader(*row) for row in rows]

    def read_by(self, connection: Connection, pipeline: str) -> list[SlotReader]:
        """What a pipeline reads."""
        rows = connection.execute(
            self.plane.statement("load/slots", "readers_of"), {"pipeline": pipeline}
        )
        return [SlotReader(*row) for row in rows]

    def leave(self, connection: Connection, slot: str, pipeline: str) -> None:
        connection.execute(
            self.plane.statement("load/slots", "forget_reader"),
            {"slot": slot, "pipeline": pipeline},
        )

    def forget(self, connection: Connection, slot: str) -> bool:
        """Forget a slot that nobody reads; False when somebody does."""
        done = connection.execute(self.plane.statement("load/slots", "forget_slot"), {"slot": slot})
        return done.rowcount == 1

    def _parameters(self, reader: SlotReader) -> dict[str, object]:
        return {
            "slot": reader.slot,
            "pipeline": reader.pipeline,
            "publication": reader.publication,
            "lsn": reader.lsn,
            "read_at": reader.read_at,
        }


@dataclass(frozen=True, slots=True)
class SlotRemark:
    """What is wrong with a slot, and what to do; `severe` when it cannot stay so."""

    found: str
    fix: str
    severe: bool

    @property
    def text(self) -> str:
        return f"{self.found}; {self.fix}"


def slot_remark(
    settings: CdcSettings, state: SlotState, readers: Sequence[SlotReader], project: str = ""
) -> SlotRemark | None:
    """The gravest remark; `readers` are in the order of what they have read, the last one first."""
    if state.is_lost:
        return SlotRemark(
            f"the server has given up slot {state.name} ({state.lost_because})",
            "copy its tables again: tidegate run NAME --full-refresh",
            severe=True,
        )
    slowest = sync_of(project, readers[0].pipeline) if readers else None
    what = f"slot {state.name} keeps {in_bytes(state.retained_bytes)} of its server's log"
    if slowest is not None:
        what += f", held back by {slowest}"
    name = slowest or "NAME"
    if state.retained_bytes >= settings.max_retained:
        return SlotRemark(
            f"{what}: more than max_retained ({in_bytes(settings.max_retained)}), and it grows "
            "until the server's disk is full",
            f"run it: tidegate run {name}; or give it up, and with it its place in the log: "
            f"tidegate remove {name}. Nothing is ever dropped by itself",
            severe=True,
        )
    if state.wal_status == "unreserved":
        return SlotRemark(
            f"{what}, and the server may give it up at its next checkpoint "
            "(max_slot_wal_keep_size)",
            f"run it now: tidegate run {name}",
            severe=True,
        )
    if state.retained_bytes >= settings.warn_retained:
        return SlotRemark(
            f"{what}: more than warn_retained ({in_bytes(settings.warn_retained)})",
            f"run it: tidegate run {name}; see docs/guides/cdc.md",
            severe=False,
        )
    return None


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
