"""One table of a lake and its ledger: what loading, healing and sweeping it have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tidegate.destinations.lake_healing import Healing
from tidegate.errors import FenceLost, StagingLost
from tidegate.lake.catalog import Catalog
from tidegate.lake.files import count_rows
from tidegate.lake.metadata import file_io, read_table
from tidegate.ledger.fences import Fence, Fences, publisher_name
from tidegate.ledger.ledger import Ledger
from tidegate.model.lake import LakeTable
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Relation
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class LakeHolding:
    """A table in its catalog, and the rows in the control database that belong to it."""

    catalog: Catalog
    relation: Relation
    ledger: Ledger
    open: Callable[[], AbstractContextManager[Connection]]
    """short sessions of the database that holds the ledger"""
    lock_timeout_seconds: float

    @property
    def fences(self) -> Fences:
        return Fences(self.ledger)

    @property
    def healing(self) -> Healing:
        return Healing(self.catalog, self.ledger, self.relation)

    def read(self) -> LakeTable | None:
        """The table as it is now."""
        return read_table(self.catalog, self.relation)

    def read_existing(self) -> LakeTable:
        """The table, where it has to be there."""
        table = self.read()
        if table is None:
            raise StagingLost(f"{self.relation} was dropped while it was being loaded")
        return table

    def check_counts(self, location: str, writes: Sequence[StagedWrite]) -> None:
        """Whether all that was staged is still there."""
        io = file_io(self.catalog, location)
        for write in writes:
            left = count_rows(io, location, write)
            if left != write.rows:
                raise StagingLost(
                    f"{write.rows} rows were staged for {self.relation}, but {left} are left",
                    "they are staged again",
                )

    def check_fence(self, fence: Fence) -> None:
        """Whether this attempt still holds the table."""
        with self.open() as connection:
            if self.fences.current(connection, fence.resource) != fence:
                raise FenceLost(
                    f"a newer attempt has taken {fence.resource}",
                    "this attempt publishes nothing; the newer one carries on",
                )

    def hold_fence(self, connection: Connection, fence: Fence, idle_seconds: float) -> None:
        """Hold the fence in the caller's transaction; FenceLost when it is not ours.

        A newer attempt that waits for it finds this session by its name, and may end it.
        """
        for name, value in (
            ("lock_timeout", f"{max(1, int(self.lock_timeout_seconds * 1000))}ms"),
            ("idle_in_transaction_session_timeout", f"{int(max(1.0, idle_seconds) * 1000)}ms"),
            ("application_name", publisher_name(fence.attempt_id)),
        ):
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        self.fences.lock(connection, fence)
