"""The life of a slot: made with its first reader, advanced behind its slowest, left by its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import psycopg

from tidegate.config.sync import Sync
from tidegate.core.errors import ChangesLost, DeclarationError, SourceError, TidegateError
from tidegate.core.failpoints import reach
from tidegate.core.watermark import Watermark
from tidegate.load.context import Context
from tidegate.load.declaration_changes import declaration, read_history, refuse_other_source
from tidegate.load.sources.cdc.publication import ChangeLog, drop_publication
from tidegate.load.sources.cdc.requirements import (
    server_obstacles,
    table_obstacles,
    toast_obstacles,
)
from tidegate.load.sources.cdc.slot import Slot, SlotOrigin, SlotPeek, Tables, flushed_position
from tidegate.load.sources.cdc.slot_registry import SlotReader, Slots
from tidegate.load.sources.cdc.tables import Logged, find_unlogged, read_logged, read_tables
from tidegate.load.sources.postgres import PostgresSource
from tidegate.postgres.catalog import Obstacle, read_server
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.databases import CONTROL
from tidegate.postgres.server_identity import Server

_FEW = 3


@dataclass(frozen=True, slots=True)
class Look:
    """Where a run goes on from, and what it will have to stop at when the log is loaded."""

    origin: SlotOrigin
    upto: str
    """up to here the log is loaded"""
    tables: Tables
    """as they were before that"""
    unlogged: tuple[str, ...]
    is_new: bool
    """tables are not as they are remembered, and nothing is in no log"""


class _ReadNow(Exception):
    """A run is reading the slot; what it finds, it says."""


def _read_now() -> None:
    raise _ReadNow


@dataclass(frozen=True, slots=True)
class SlotLifecycle:
    """A sync's source of changes, and what the control database knows of it."""

    context: Context
    sync: Sync
    source: PostgresSource
    log: ChangeLog

    @classmethod
    def of(
        cls, context: Context, sync: Sync, source: PostgresSource, connection: Connection
    ) -> SlotLifecycle:
        log = ChangeLog.of(sync, source, connection, context.control_id())
        return cls(context, sync, source, log)

    @property
    def slots(self) -> Slots:
        return Slots(self.context.plane)

    def declaration(self, origin: SlotOrigin | None, columns: object) -> dict[str, object]:
        """What is remembered with the watermark."""
        found = declaration(self.sync, self.source, columns)
        return found if origin is None else found | {"cdc": origin.to_json()}

    def refuse_changed(self, watermark: Watermark) -> None:
        """Refuse to go on from what another source, cursor or key left, or another way to read."""
        if watermark.version == 0 or watermark.is_refreshing:
            return
        if watermark.value is not None and "cdc" not in (watermark.declaration or {}):
            raise DeclarationError(
                f'sync {self.sync.name}: it was loaded without changes = "cdc" so far, and no '
                "slot has kept what changed since",
                f"to copy the table and go on by its changes: tidegate run {self.sync.name} "
                "--full-refresh",
            )
        refuse_other_source(watermark, self.declaration(None, None), self.sync)

    def check(self, watermark: Watermark) -> tuple[SlotOrigin, Server]:
        """Refuse to go on where changes have been lost."""
        return self.log.check(watermark, self.read_history)

    def look(self, watermark: Watermark, check_alive: Callable[[], None]) -> Look:
        """Refuse to go on where changes have been lost, and say what is in no log since."""
        refuse_obstacles(self.sync, obstacles(self.log.connection, self.sync, self.source))
        origin, _ = self.check(watermark)
        connection, before = self.log.connection, origin.tables
        found = read_tables(connection, self.source)
        unlogged = (
            []
            if before is None
            else find_unlogged(connection, before, found, partial(self._logged, check_alive))
        )
        # A repair makes good what is seen now only when all that the log has of it is loaded.
        upto = flushed_position(connection) if unlogged else read_server(connection).lsn
        later = read_tables(connection, self.source).tables
        # Of a partition that came with rows, the log may bring more, which stay when it goes again.
        good = found.tables if before is None or not unlogged else before.joined(found.tables)
        seen = origin.seen.at(later) if unlogged and origin.seen is not None else None
        return Look(
            replace(origin, tables=good.at(later), seen=seen),
            upto,
            found.tables.at(later),
            tuple(unlogged),
            is_new=not unlogged and not found.tables.is_as(before),
        )

    def refuse_unlogged(self, watermark: Watermark) -> None:
        """Refuse what a run would stop at, for those who only look."""
        with suppress(_ReadNow):
            look = self.look(watermark, _read_now)
            if look.unlogged:
                raise self.unlogged(look.unlogged, repairs=look.tables.is_as(look.origin.seen))

    def unlogged(self, said: Sequence[str], *, repairs: bool) -> ChangesLost:
        """What is said when something is in no log; a repair helps once all the rest is loaded."""
        name = self.sync.name
        again = f"to copy the table again: tidegate run {name} --full-refresh"
        repair = (
            f"tidegate verify {name} --repair"
            if repairs
            else (f"tidegate run {name}, then tidegate verify {name} --repair")
        )
        if self.sync.is_soft and self.sync.lake_target:
            hint = again
        else:
            hint = f"to load only what differs: {repair}; {again}"
        more = f", and {len(said) - _FEW} more" if len(said) > _FEW else ""
        return ChangesLost(
            f"sync {name}: {'; '.join(said[:_FEW])}{more}. No log tells of the rows", hint
        )

    def _logged(self, check_alive: Callable[[], None]) -> Logged:
        log = self.log
        upto = flushed_position(log.connection)
        peek = SlotPeek(
            log.connection, log.slot.name, log.publication.name, upto, check_alive=check_alive
        )
        with log.slot.held(check_alive), closing(iter(peek)) as messages:
            return read_logged(messages, log.slot.name, self.source.table.oid)

    def read_history(self, timeline: int) -> str | None:
        return read_history(self.context, self.sync.source.connection, timeline)

    def start(self, timeout_seconds: float, check_alive: Callable[[], None]) -> SlotOrigin:
        """Slot and publication, made where they are not there; from now on nothing is lost."""
        log = self.log
        with log.slot.held(check_alive):
            state = log.slot.look()
            usable = log.is_usable(state)
            copies = 0 if usable else 1
            refuse_obstacles(
                self.sync, obstacles(log.connection, self.sync, self.source, slots=1 + copies)
            )
            publication = log.publication.make()
            server = read_server(log.connection)
            with self.context.databases.lease(CONTROL) as control:
                self.slots.register(
                    control,
                    slot=log.slot.name,
                    project=self.sync.project,
                    source=self.sync.source.connection,
                    system=server.system,
                    database=log.database,
                )
                if usable:
                    assert state is not None
                    confirmed = state.confirmed
                else:
                    if state is not None:
                        log.slot.drop()
                    confirmed = log.slot.make(timeout_seconds)
                    self.slots.reset(control, log.slot.name, confirmed)
                reach("slot.made")
                assert confirmed is not None
                # Before the copy: meanwhile others must not let the server forget.
                self.slots.join(control, self._reader(confirmed, None))
        return log.origin(publication, server)

    def reached(self, lsn: str, read_at: datetime | None, check_alive: Callable[[], None]) -> None:
        """All up to `lsn` is published: let the server forget what every reader has behind it."""
        name = self.log.slot.name
        with self.context.databases.lease(CONTROL) as control:
            self.slots.move(control, self._reader(lsn, read_at))
            reach("slot.noted")
            with self.log.slot.held(check_alive):
                least = self.slots.least(control, name)
                if least is not None:
                    self.log.slot.advance(least, check_alive)
        reach("slot.advanced")

    def _reader(self, lsn: str, read_at: datetime | None) -> SlotReader:
        return SlotReader(
            self.log.slot.name, self.sync.pipeline, self.log.publication.name, lsn, read_at
        )


def obstacles(
    connection: Connection, sync: Sync, source: PostgresSource, *, slots: int = 0
) -> list[Obstacle]:
    """Everything that keeps this sync from being read by its changes."""
    columns = [column.name for column in source.columns]
    return [
        *server_obstacles(connection, slots=slots, senders=1 if slots else 0),
        *table_obstacles(connection, source.table, source.key, columns),
        *toast_obstacles(connection, source.table, transformed=sync.transform is not None),
    ]


def refuse_obstacles(sync: Sync, found: list[Obstacle]) -> None:
    """Refuse with the first of them; the rest is told as well."""
    if found:
        more = [f"{one.message} ({one.fix})" for one in found[1:]]
        message = "; ".join([f"sync {sync.name}: {found[0].message}", *more])
        raise SourceError(message, found[0].fix)


@dataclass(frozen=True, slots=True)
class ReleasedSlot:
    """What became of a slot that a sync has left; `by_hand` is what nobody could do for us."""

    slot: str
    publication: str
    dropped_slot: bool
    by_hand: str | None = None
    because: str | None = None


def release_slots(context: Context, control: Connection, pipeline: str) -> list[ReleasedSlot]:
    """A sync reads no slot any more: its publication goes and, with the last reader, the slot."""
    slots = Slots(context.plane)
    found: list[ReleasedSlot] = []
    readers = slots.read_by(control, pipeline)
    if not readers:
        return found
    project = context.settings.project.name
    known = {one.slot: one for one in slots.of_project(control, project)}
    everybody = slots.readers(control, project)
    for reader in readers:
        slot = known.get(reader.slot)
        if slot is None:
            continue
        others = [one for one in everybody if one.slot == reader.slot and one.pipeline != pipeline]
        try:
            left = _leave(context, control, slots, reader, slot.connection, last=not others)
        except (TidegateError, psycopg.Error) as error:
            words = first_line(error) if isinstance(error, psycopg.Error) else str(error)
            by_hand = f"DROP PUBLICATION {reader.publication}"
            if not others:
                by_hand += f"; SELECT pg_drop_replication_slot('{reader.slot}')"
            left = ReleasedSlot(
                reader.slot, reader.publication, False, by_hand, words.splitlines()[0]
            )
        slots.leave(control, reader.slot, pipeline)
        if not others:
            slots.forget(control, reader.slot)
        found.append(left)
    return found


def _leave(
    context: Context,
    control: Connection,
    slots: Slots,
    reader: SlotReader,
    connection_name: str,
    *,
    last: bool,
) -> ReleasedSlot:
    with context.databases.connect_source(connection_name) as connection:
        slot = Slot(connection, reader.slot)
        with slot.held(lambda: None):
            drop_publication(connection, reader.publication)
            dropped = slot.drop() if last else False
    return ReleasedSlot(reader.slot, reader.publication, dropped)
