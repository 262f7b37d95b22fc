"""Comparing a sync by its changes while its source is being written."""

from __future__ import annotations

from typing import Any

import pytest

from integration.cdc_places import is_equal, loaded_orders, make_cdc, slot_of
from integration.without_spark import Make
from tidegate.core.errors import BusyError, ChangesLost
from tidegate.verify.compared_rows import UncomparedRows, send_waiting
from tidegate.verify.report import RowReason, Verdict

__all__ = ["make_cdc"]

WAITING = (
    "INSERT INTO orders VALUES (20, 20, 'new')",
    "UPDATE orders SET note = 'other' WHERE id = 1",
    "UPDATE orders SET id = 30 WHERE id = 3",
    "DELETE FROM orders WHERE id = 4",
)


def test_what_waits_in_the_slot_is_not_compared_and_explains_rows(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc)
    place.source.execute(*WAITING)
    found = project.verify("orders")
    assert found.verdict is Verdict.EQUAL
    # 20, 1, 3 and what it became, 4.
    assert found.not_yet_loaded == 5
    assert (found.source_rows, found.target_rows) == (6, 6)

    place.target.execute(
        "DELETE FROM raw.orders WHERE id = 7",
        "UPDATE raw.orders SET note = 'wrong' WHERE id IN (1, 8)",
        "INSERT INTO raw.orders (id) VALUES (99)",
    )
    found = project.verify("orders")
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    assert found.difference.missing_keys == ("(7)",)
    assert found.difference.extra_keys == ("(99)",)
    assert found.difference.different_keys == ("(8)",)
    assert {id_: project.why("orders", id=id_).reason for id_ in (1, 3, 4, 5, 8, 20, 30, 99)} == {
        1: RowReason.CHANGED,
        3: RowReason.DELETED,
        4: RowReason.DELETED,
        5: RowReason.EQUAL,
        8: RowReason.EDITED,
        20: RowReason.NOT_YET,
        30: RowReason.NOT_YET,
        99: RowReason.EDITED,
    }
    hint = "to put right what differs: tidegate verify orders --repair"
    assert project.why("orders", id=8).hint == hint

    place.target.execute("DELETE FROM raw.orders WHERE id = 1")
    project.verify("orders", repair=True)
    project.run("orders")
    assert is_equal(place)
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_what_happens_meanwhile_does_not_look_like_a_difference(
    make_cdc: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = loaded_orders(make_cdc)
    ran: list[int] = []

    def run_first(*given: Any) -> UncomparedRows:
        # The target's snapshot has been taken, and the slot not yet looked at.
        if not ran:
            ran.append(1)
            place.source.execute(*WAITING)
            project.run("orders")
        return send_waiting(*given)

    monkeypatch.setattr("tidegate.verify.verify.send_waiting", run_first)
    found = project.verify("orders")
    assert ran
    assert found.verdict is Verdict.EQUAL
    assert found.not_yet_loaded == 0

    # A truncate that waits leaves nothing to compare.
    place.source.execute("TRUNCATE orders")
    with pytest.raises(BusyError, match="emptied by TRUNCATE"):
        project.verify("orders")
    project.run("orders")
    assert project.verify("orders").verdict is Verdict.EQUAL

    # Changes that are lost are told as such.
    place.source.execute("INSERT INTO orders VALUES (1, 1)")
    name, _ = slot_of(place.source)
    place.source.execute(f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
    with pytest.raises(ChangesLost, match="there is a gap"):
        project.verify("orders")


def test_rows_marked_as_deleted_are_not_there(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc, deletes="soft")
    place.source.execute("DELETE FROM orders WHERE id <= 2")
    project.run("orders")
    assert project.verify("orders").verdict is Verdict.EQUAL

    place.target.execute(
        "UPDATE raw.orders SET deleted_at = now() WHERE id = 5",
        "UPDATE raw.orders SET deleted_at = NULL WHERE id = 2",
    )
    found = project.verify("orders", repair=True)
    assert found.repair is not None
    assert found.repair.difference is not None
    assert found.repair.difference.missing_keys == ("(5)",)
    assert found.repair.difference.extra_keys == ("(2)",)
    marked = "SELECT id, note FROM raw.orders WHERE deleted_at IS NOT NULL ORDER BY 1"
    assert place.target.execute(marked) == [(1, "x"), (2, "x")]
    assert project.verify("orders").verdict is Verdict.EQUAL
