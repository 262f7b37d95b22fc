"""What must hold of the orders' pipeline, on databases that live as long as a test."""

from pathlib import Path

import pytest

from tidegate.testing import assert_crash_safe, assert_idempotent


@pytest.fixture
def project(tidegate_project):
    """The project with a small shop in its source."""
    with tidegate_project.connect("shop") as shop:
        shop.execute((Path(__file__).parent / "schema.sql").read_text())
    return tidegate_project


def test_addresses_leave_the_shop_as_a_hash(project):
    assert project.run("orders").rows == 200
    with project.connect("warehouse") as warehouse:
        rows = warehouse.execute("SELECT length(email), count(*) FROM raw.orders GROUP BY 1")
        assert rows.fetchall() == [(64, 200)]


def test_a_changed_order_arrives_changed(project):
    project.run("orders")
    with project.connect("shop") as shop:
        shop.execute("UPDATE orders SET quantity = 9, updated_at = now() WHERE id = 7")
    project.run("orders")
    with project.connect("warehouse") as warehouse:
        rows = warehouse.execute("SELECT quantity, total FROM raw.orders WHERE id = 7").fetchall()
        assert [(quantity, str(total)) for quantity, total in rows] == [(9, "71.91")]


def test_orders_may_be_run_again_and_loaded_anew(project):
    assert_idempotent(project, "orders")


def test_orders_may_be_killed_anywhere(project):
    assert_crash_safe(project, "orders")
