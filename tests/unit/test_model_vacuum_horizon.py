"""When a holder of vacuum is late, and a queue crowded."""

from __future__ import annotations

import pytest

from tidegate.admin.vacuum_horizon import (
    MANY_TRANSACTIONS,
    HolderKind,
    QueueRows,
    VacuumHolder,
    find_late,
)

LIMIT = 300.0


def holder(
    seconds: float | None,
    transactions: int = 5,
    kind: HolderKind = HolderKind.SESSION,
    state: str = "active",
    *,
    only_catalogs: bool = False,
) -> VacuumHolder:
    return VacuumHolder(
        kind, only_catalogs, 1, "ana", "psql", None, state, None, None, seconds, transactions
    )


OLD, YOUNG = holder(LIMIT), holder(LIMIT - 1, MANY_TRANSACTIONS)
IN_USE = holder(None, MANY_TRANSACTIONS - 1, HolderKind.SLOT)
FAR_BEHIND = holder(None, MANY_TRANSACTIONS, HolderKind.SLOT)
ABANDONED = holder(None, 1, HolderKind.SLOT, "inactive")
OF_NO_WEIGHT = holder(None, 0, HolderKind.SLOT, "inactive")
POLLED = holder(None, 1, HolderKind.SLOT, "inactive", only_catalogs=True)


@pytest.mark.parametrize(
    ("found", "late"),
    [
        ([], None),
        ([OLD], OLD),
        ([YOUNG], None),
        ([FAR_BEHIND], FAR_BEHIND),
        ([ABANDONED], ABANDONED),
        ([OF_NO_WEIGHT], None),
        ([POLLED], None),
        # A slot in use says nothing about who comes after it; a young session does.
        ([IN_USE, OLD], OLD),
        ([IN_USE, YOUNG, OLD], None),
        ([YOUNG, OLD], None),
    ],
)
def test_the_oldest_holder_is_late_by_its_age_or_by_the_transactions_behind_it(
    found: list[VacuumHolder], late: VacuumHolder | None
) -> None:
    assert find_late(found, LIMIT) is late


@pytest.mark.parametrize(
    ("dead", "live", "crowded"),
    [(10_000, 0, False), (10_001, 0, True), (10_001, 1_001, False), (10_011, 1_001, True)],
)
def test_a_queue_is_crowded_by_many_dead_rows_for_each_live_one(
    dead: int, live: int, crowded: bool
) -> None:
    assert QueueRows(dead, live).is_crowded is crowded
