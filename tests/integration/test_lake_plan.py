"""`plan` and `status` of a sync into a lake: they say what a run would do, and start no Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from integration.commands import DONE, USAGE, tidegate
from integration.conftest import MakePlace, Place
from integration.lakes import COLUMNS, ORDERS, fill_table, lake_place, make_table
from integration.orders import CREATE, FILL, contents, plan_all, plan_one


def orders(numbers: range, columns: pa.Schema = COLUMNS) -> pa.Table:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "id": list(numbers),
            "total": [Decimal(n) for n in numbers],
            "updated_at": [start + timedelta(minutes=n) for n in numbers],
        },
        schema=columns,
    )


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    return place


def test_x(place):
    done = tidegate(place.folder, "plan")
    print(done.said)
    fill_table(place, orders(range(1, 6)))
    done = tidegate(place.folder, "plan")
    print(done.said)
    print(tidegate(place.folder, "status").said)
    assert 0
