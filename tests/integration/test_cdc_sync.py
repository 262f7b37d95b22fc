"""A sync by its changes: the first copy, what follows it, and the slot behind it."""

from __future__ import annotations

from integration.cdc_places import ORDERS, orders_sync, rows, slot_of
from integration.conftest import MakeProject
from tidegate.model.batch import BatchKind


def test_the_first_run_copies_the_table_and_leaves_a_slot(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, "INSERT INTO orders SELECT i, i, 'x' FROM generate_series(1, 9) i")

    report = project.run("orders")

    assert report.status == "done"
    assert [load.batch.kind for load in report.loads] == [BatchKind.FULL]
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")
    assert slot_of(place.source)[1] == report.watermark


def test_what_changed_follows_in_whole_transactions(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, "INSERT INTO orders SELECT i, i, 'x' FROM generate_series(1, 9) i")
    first = project.run("orders")
    place.source.execute(
        "INSERT INTO orders VALUES (10, 10, 'new')",
        "UPDATE orders SET note = 'changed' WHERE id <= 3",
        "DELETE FROM orders WHERE id = 5",
        "UPDATE orders SET id = 77 WHERE id = 7",
    )

    second = project.run("orders")

    assert [load.batch.kind for load in second.loads] == [BatchKind.CHANGES]
    assert second.loads[0].batch.low == first.watermark
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")
    assert slot_of(place.source)[1] == second.watermark

    third = project.run("orders")
    assert third.found_nothing
    assert third.watermark == second.watermark
