"""Columns that change in the source while no row does: a run lets the target follow, once."""

from __future__ import annotations

from typing import Any

import pytest

from integration.cdc_places import orders_sync
from integration.conftest import Make
from integration.orders import CREATE, FILL, ORDERS
from tidegate.core.errors import DestinationError
from tidegate.verify.report import Verdict


@pytest.mark.parametrize(
    "declared",
    [
        ORDERS,
        pytest.param({**ORDERS, "mode": "append", "key": ["id"]}, marks=pytest.mark.chaos),
        orders_sync(changes="snapshot"),
        orders_sync(),
        pytest.param(orders_sync(deletes="soft"), marks=pytest.mark.chaos),
    ],
    ids=["cursor", "versions", "snapshot", "cdc", "soft"],
)
def test_a_new_column_and_no_new_row(make: Make, declared: dict[str, Any]) -> None:
    project, place = make(declared)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    assert project.run("orders").outcome.notes == []
    place.source.execute("ALTER TABLE orders ADD note text")
    with pytest.raises(DestinationError, match="tidegate run orders; then verify again"):
        project.verify("orders")
    report = project.run("orders")
    assert report.found_nothing
    (note,) = report.outcome.notes
    assert "column note text is new" in note
    assert project.verify("orders").verdict is Verdict.EQUAL
    # That was all: it is neither done nor said again, and no marker was written for it.
    twice = [project.run("orders").outcome for _ in range(2)]
    assert [one.notes for one in twice] == [[], []]
    assert twice[0].watermark == twice[1].watermark
    place.source.execute("UPDATE orders SET note = 'x', updated_at = now() WHERE id = 3")
    assert project.run("orders").outcome.notes == []
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_a_frozen_target_lets_runs_without_rows_pass(make: Make) -> None:
    project, place = make({**ORDERS, "drift": "freeze"})
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("ALTER TABLE orders ADD note text")
    assert project.run("orders").found_nothing
