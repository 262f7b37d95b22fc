"""Landing: the changes of whole transactions, written aside in folded chunks as they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from tidegate.destinations.destination import Destination
from tidegate.model.relation import Relation


@dataclass(frozen=True, slots=True)
class LandedColumn:
    """A column as the source described it when the changes were made."""

    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class Chunks:
    """How many rows, and bytes of rows, are folded in memory before they are written."""

    rows: int = 100_000
    bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Landed:
    """What was landed, in a table that is swept and discarded like any staging table."""

    write_id: str
    """of the landing table; "" where no row was landed"""
    rows: int
    """of the landing table: changes that are folded, chunk by chunk"""
    high: str | None
    """end LSN of the last whole transaction that was read; None: none was there"""
    changes: int
    """row changes that were read; a truncate counts as one"""
    truncated: bool
    """with hard deletes the load is then a BatchKind.FULL"""
    more: bool
    """stopped before the messages were at their end: for batch_rows, or for a changed relation"""
    columns: tuple[LandedColumn, ...] = ()
    """of the relation as last told, as far as they are wanted; none where no change came"""
    committed_at: datetime | None = None
    """when the last transaction was committed, by the source's clock"""
    deletes: bool = False
    """some rows say that a key is gone"""
    unfilled: tuple[int, ...] = ()
    """the chunks in which values are to be filled from the row as it was before"""
    emptied_at: datetime | None = None
    """soft deletes: commit time of the first truncate, which marks what the target held"""


def land(
    messages: Iterable[tuple[str, bytes]],
    destination: Destination,
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
    chunks: Chunks = Chunks(),
) -> Landed:
    """Read whole transactions and write their folded changes aside, in the ledger's database.

    `messages` are (LSN, pgoutput message of protocol 1). Transactions that end at or before
    `after`, and those that end beyond `upto`, are passed over. Without `upto` it stops at the
    first commit once `batch_rows` changes are in, and before a transaction that begins with other
    columns. `columns` are those that are wanted; None: all. `soft`: rows stay, and are marked.
    Landing is one transaction of the destination: a killed one leaves nothing.
    """
    raise NotImplementedError


def is_whole(landed: Landed, destination: Destination, attempt_id: str) -> bool:
    """Whether the landed rows are still there: a server's crash and `discard` take them.

    To be asked at the beginning of every call of the `stage` that Load.run is given, which stages
    again after StagingLost; where they are gone, land again with `upto` = the batch's high.
    """
    raise NotImplementedError
