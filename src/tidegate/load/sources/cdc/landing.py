"""Landing: the changes of whole transactions, written aside in folded chunks as they are read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import ChangesLost, SourceError
from tidegate.core.failpoints import reach
from tidegate.core.identity import new_write_id, staging_table
from tidegate.core.relation import Relation
from tidegate.core.watermark import lsn_text, lsn_value
from tidegate.load.sources.cdc import pgoutput
from tidegate.load.sources.cdc.fold import Fold, FoldedRows, LandingTable, Twice
from tidegate.load.sources.cdc.pgoutput import (
    Damaged,
    Field,
    StreamColumn,
    StreamRelation,
    damaged,
    read_row,
)
from tidegate.load.target import Target


@dataclass(frozen=True, slots=True)
class Chunks:
    """How many rows, and bytes of rows, are folded in memory before they are written."""

    rows: int = 100_000
    bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class LandedChanges:
    """What was landed, in a table that is swept and discarded like any staging table."""

    write_id: str = ""
    """of the landing table; "" where no row was landed"""
    rows: int = 0
    """of the landing table: changes that are folded, chunk by chunk"""
    high: str | None = None
    """end LSN of the last whole transaction that was read; None: none was there"""
    changes: int = 0
    """row changes that were read; a truncate counts as one"""
    truncated: bool = False
    """with hard deletes the load is then a BatchKind.FULL"""
    more: bool = False
    """stopped before the messages were at their end: for batch_rows, or for a changed relation"""
    columns: tuple[StreamColumn, ...] = ()
    """of the relation as last told, as far as they are wanted; none where no change came"""
    committed_at: datetime | None = None
    """when the last transaction was committed, by the source's clock"""
    deletes: bool = False
    """some rows say that a key is gone"""
    chunks: int = 0
    unfilled: tuple[tuple[int, int], ...] = ()
    """(first, last) number of chunks with values that are those of the row as it was before"""
    places: tuple[str, ...] = ()
    """the columns in the order of the marks of what is unchanged"""
    emptied_at: datetime | None = None
    """soft deletes: commit time of the first truncate, which marks what the target held"""
    parts: tuple[tuple[int, str], ...] = ()
    """(oid, name) of the partitions whose rows changed"""


def land(
    messages: Iterable[tuple[str, bytes]],
    destination: Target,
    attempt_id: str,
    *,
    slot: str,
    relation: Relation,
    key: tuple[str, ...],
    columns: Collection[str] | None = None,
    after: str,
    upto: str | None = None,
    batch_rows: int,
    soft: bool = False,
    chunks: Chunks | None = None,
) -> LandedChanges:
    """Read whole transactions and write their folded changes aside, in the ledger's database.

    `messages` are (LSN, pgoutput message of protocol 1). Transactions that end at or before
    `after`, and those that end beyond `upto`, are passed over. Without `upto` it stops at the
    first commit once `batch_rows` changes are in, and before a transaction that begins with other
    columns. `columns` are those that are wanted; None: all. `soft`: rows stay, and are marked.
    Landing is one transaction of the destination: a killed one leaves nothing.
    """
    write_id = new_write_id()
    table = sql.Identifier(
        destination.ledger.schema, staging_table(destination.control_id, attempt_id, write_id)
    )
    with destination.open() as connection, connection.transaction():
        landing = _Landing(
            slot=slot,
            relation=relation,
            key=key,
            wanted=columns,
            after=lsn_value(after),
            upto=None if upto is None else lsn_value(upto),
            batch_rows=batch_rows,
            limits=chunks or Chunks(),
            table=LandingTable(connection, table, key, soft),
            write_id=write_id,
        )
        return landing.run(iter(messages))


def is_whole(landed: LandedChanges, destination: Target, attempt_id: str) -> bool:
    """Whether the landed rows are still there: a server's crash and `discard` take them.

    To be asked at the beginning of every call of the `stage` that Load.run is given, which stages
    again after StagingLost; where they are gone, land again with `upto` = the batch's high.
    """
    if not landed.write_id:
        return True
    table = landing_table(landed, destination, attempt_id)
    with destination.open() as connection:
        try:
            row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(table)).fetchone()
        except pg.UndefinedTable:
            return False
    return row is not None and row[0] == landed.rows


def landing_table(landed: LandedChanges, destination: Target, attempt_id: str) -> sql.Identifier:
    return sql.Identifier(
        destination.ledger.schema,
        staging_table(destination.control_id, attempt_id, landed.write_id),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the rows of a relation are read and written."""

    columns: tuple[StreamColumn, ...]
    """those that are wanted"""
    key: tuple[int, ...]
    """the places of the key among them"""
    places: range
    """of all columns"""
    pick: Callable[[list[Field]], list[Field]] | None
    """takes out those that are wanted, where not all are"""
    tells_key: bool
    """an old row is told by its key at the least"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def row(self, data: bytes, at: int) -> tuple[list[Field], int]:
        fields, end = read_row(data, at, self.places)
        return fields if self.pick is None else self.pick(fields), end

    def last_row(self, data: bytes, at: int) -> list[Field]:
        """The row that a message ends with."""
        fields, end = self.row(data, at)
        pgoutput.check_end(data, end)
        return fields


class _Stop(Exception):
    """The batch ends before this transaction."""


@dataclass(slots=True)
class _Landing:
    """One pass over the messages."""

    slot: str
    relation: Relation
    key: tuple[str, ...]
    wanted: Collection[str] | None
    after: int
    upto: int | None
    batch_rows: int
    limits: Chunks
    table: LandingTable
    write_id: str
    layouts: dict[bytes, _Layout] = field(default_factory=dict)
    others: dict[bytes, Relation] = field(default_factory=dict)
    """tables that were described and are not the sync's"""
    parts: dict[int, str] = field(default_factory=dict)
    """those of them whose rows changed, which are its partitions"""
    layout: _Layout | None = None
    fold: Fold = field(default_factory=lambda: Fold((), 0))
    high: int | None = None
    committed: int = 0
    """when the transaction at hand was committed"""
    settled: int = 0
    """changes up to the last commit"""
    settled_at: int = 0
    changes: int = 0
    rows: int = 0
    numbered: int = 0
    chunks: int = 0
    unfilled: list[tuple[int, int]] = field(default_factory=list)
    deletes: bool = False
    truncated: bool = False
    emptied_at: datetime | None = None

    def run(self, messages: Iterator[tuple[str, bytes]]) -> LandedChanges:
        lsn = "its beginning"
        more = False
        is_open = passes = False
        limits = self.limits
        try:
            for lsn, data in messages:  # noqa: B007
                kind = data[0]
                if kind == pgoutput.INSERT or kind == pgoutput.UPDATE or kind == pgoutput.DELETE:
                    if passes:
                        continue
                    layout = self.layouts.get(data[1:5])
                    if layout is None:
                        raise self._unknown(data[1:5])
                    if layout is not self.layout:
                        self._switch(layout)
                    self.changes += 1
                    fold = self.fold
                    if kind == pgoutput.INSERT:
                        # As last_row() does it, but most of all rows come this way.
                        fields, end = read_row(data, 6, layout.places)
                        if end != len(data):
                            pgoutput.check_end(data, end)
                        fold.insert(fields if layout.pick is None else layout.pick(fields))
                    else:
                        self._change(kind, data, layout)
                    if fold.size >= limits.bytes or len(fold.entries) >= limits.rows:
                        self._flush()
                elif kind == pgoutput.BEGIN:
                    final, self.committed = pgoutput.read_begin(data)
                    if self.upto is not None and final >= self.upto:
                        break
                    is_open, passes = True, final < self.after
                elif kind == pgoutput.COMMIT:
                    end, _ = pgoutput.read_commit(data)
                    is_open = False
                    if passes:
                        continue
                    self.high, self.settled = end, self.changes
                    self.settled_at = self.committed
                    if self.upto is None and self.changes >= self.batch_rows:
                        more = True
                        break
                elif kind == pgoutput.RELATION:
                    described = pgoutput.read_relation(data)
                    self._describe(described, data[1:5])
                    # After a partition was attached, it is described anew with its next change.
                    if not passes and described.relation != self.relation:
                        self.parts[described.oid] = str(described.relation)
                elif kind == pgoutput.TRUNCATE:
                    if not passes:
                        self._truncate(pgoutput.read_truncate(data))
                elif kind not in pgoutput.PASSED_OVER:
                    raise Damaged(f"it is of the unknown kind {chr(kind)!r}")
        except _Stop:
            more = True
            is_open = False
        except Damaged as error:
            raise damaged(self.slot, lsn, str(error)) from None
        except Twice:
            raise ChangesLost(
                f"slot {self.slot}: two rows had one key ({', '.join(self.key)}) of "
                f"{self.relation} at {lsn}: its constraint was DEFERRABLE then, or was dropped",
                "nothing was published; load everything again: tidegate run NAME --full-refresh",
            ) from None
        except (IndexError, ValueError, struct.error) as error:
            raise damaged(self.slot, lsn, "it is cut off") from error
        finally:
            close = getattr(messages, "close", None)
            if close is not None:
                close()
        if is_open:
            raise damaged(self.slot, lsn, "the stream ends within a transaction")
        self._flush()
        return self._landed(more)

    def _landed(self, more: bool) -> LandedChanges:
        return LandedChanges(
            write_id=self.write_id if self.rows else "",
            rows=self.rows,
            high=None if self.high is None else lsn_text(self.high),
            changes=self.settled,
            truncated=self.truncated,
            more=more,
            columns=() if self.layout is None else self.layout.columns,
            committed_at=None if self.high is None else pgoutput.moment(self.settled_at),
            deletes=self.deletes,
            chunks=self.chunks,
            unfilled=tuple(self.unfilled),
            places=tuple(self.table.names),
            emptied_at=self.emptied_at,
            parts=tuple(self.parts.items()),
        )

    def _change(self, kind: int, data: bytes, layout: _Layout) -> None:
        """A row that was changed or that went."""
        tag = data[5]
        if not layout.tells_key:
            raise SourceError(
                f"slot {self.slot}: rows of {self.relation} were changed, and their key "
                f"({', '.join(self.key)}) is not part of its replica identity",
                f"ALTER TABLE {self.relation} REPLICA IDENTITY FULL, or declare the key that it "
                "has; then load everything again: tidegate run NAME --full-refresh",
            )
        whole = tag == pgoutput.OLD_ROW
        if kind == pgoutput.DELETE:
            if not whole and tag != pgoutput.OLD_KEY:
                raise Damaged(f"a deleted row of the unknown kind {chr(tag)!r}")
            self.fold.delete(layout.last_row(data, 6), whole=whole, at=self.committed)
            return
        if tag == pgoutput.NEW_ROW:
            fields = layout.last_row(data, 6)
            if None in fields:
                self.fold.update(fields, None, whole=False, at=self.committed)
            else:
                self.fold.put(fields)
            return
        if not whole and tag != pgoutput.OLD_KEY:
            raise Damaged(f"a changed row of the unknown kind {chr(tag)!r}")
        old, at = layout.row(data, 6)
        if data[at] != pgoutput.NEW_ROW:
            raise Damaged("a changed row without what it became")
        self.fold.update(layout.last_row(data, at + 1), old, whole=whole, at=self.committed)

    def _describe(self, described: StreamRelation, oid: bytes) -> None:
        if described.relation != self.relation:
            # A partition is described as well, though its rows are those of the whole.
            self.others[oid] = described.relation
            return
        names = described.names
        chosen = [
            place
            for place, name in enumerate(names)
            if self.wanted is None or name in self.wanted or name in self.key
        ]
        columns = tuple(described.columns[place] for place in chosen)
        missing = next((name for name in self.key if name not in names), None)
        if missing is not None:
            raise SourceError(
                f"slot {self.slot}: {self.relation} had no key column {missing} when its rows "
                "were changed",
                "load everything again: tidegate run NAME --full-refresh",
            )
        kept = [column.name for column in columns]
        found = _Layout(
            columns=columns,
            key=tuple(kept.index(name) for name in self.key),
            places=range(len(names)),
            pick=None if len(chosen) == len(names) else lambda row: [row[one] for one in chosen],
            tells_key=described.identity.issuperset(self.key),
        )
        self.layouts[oid] = found

    def _unknown(self, oid: bytes) -> Exception:
        other = self.others.get(oid)
        if other is None:
            return Damaged("it is about a table that was not described")
        return SourceError(
            f"slot {self.slot} tells of {other}, and the sync's table is {self.relation}",
            "its publication must hold that table and no other; after a table was renamed: "
            "tidegate run NAME --full-refresh",
        )

    def _switch(self, layout: _Layout) -> None:
        """Go on with other columns, or leave them to the next batch."""
        if self.layout is None or self.layout.columns != layout.columns:
            if self.upto is None and self.settled and self.settled == self.changes:
                raise _Stop
            self._flush()
            self.fold = Fold(layout.key, len(layout.columns), self.table.soft)
        self.layout = layout

    def _truncate(self, oids: tuple[int, ...]) -> None:
        found = [oid.to_bytes(4, "big") for oid in oids]
        if not any(oid in self.layouts for oid in found):
            raise self._unknown(found[0] if found else b"")
        self.changes += 1
        self.truncated = True
        if self.table.soft:
            self._flush()
            emptied_at = pgoutput.moment(self.committed)
            self.table.mark_all(emptied_at)
            self.emptied_at = self.emptied_at or emptied_at
            return
        self.fold.clear()
        self.table.clear()
        self.rows = self.chunks = 0
        self.unfilled.clear()
        self.deletes = False

    def _flush(self) -> None:
        if not self.fold.entries:
            return
        assert self.layout is not None
        names = self.layout.names
        self.table.provide(names)
        reach("stage.write")
        rows = FoldedRows(
            self.fold, [self.table.names.index(name) for name in names], self.numbered
        )
        count = self.table.write(rows, names)
        if rows.unfilled:
            self.unfilled.append((self.numbered, self.numbered + count - 1))
        self.deletes = self.deletes or rows.deletes
        self.numbered += count
        self.rows += count
        self.chunks += 1
        self.fold.clear()
