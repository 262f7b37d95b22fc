"""Soft deletes by changes: the first copy and a refresh know the mark that changes set."""

from __future__ import annotations

import pytest

from integration.cdc_places import FILL, ORDERS, orders_sync
from integration.conftest import MakePlace, MakeProject
from integration.filled_lakes import lake_place, open_table
from tidegate.errors import SourceError
from tidegate.spark.session import SparkSessions

PIPELINES = """
import tidegate as tg

@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", changes="cdc", deletes="soft")
def orders(df):
    return df.drop("note")
"""


def test_marks_into_a_lake(make_place: MakePlace, warm_spark: SparkSessions) -> None:
    place = lake_place(make_place, orders_sync(target="lake:raw.orders", deletes="soft"))
    place.source.execute(ORDERS, FILL)
    with place.open(warm_spark) as project:
        project.run("orders")
        place.source.execute("DELETE FROM orders WHERE id <= 2")
        project.run("orders")
        rows = open_table(place).scan().to_arrow().to_pylist()
        assert len(rows) == 9
        assert sorted(row["id"] for row in rows if row["deleted_at"] is not None) == [1, 2]

        place.source.execute("INSERT INTO orders VALUES (1, 1, 'back')")
        project.run("orders", full_refresh=True)
        rows = open_table(place).scan().to_arrow().to_pylist()
        assert [row["id"] for row in rows if row["deleted_at"] is not None] == []
        assert sorted(row["id"] for row in rows) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_marks_beside_a_transformation(make_project: MakeProject) -> None:
    project, place = make_project(databases=2, pipelines=PIPELINES)
    place.source.execute(ORDERS, FILL, "ALTER TABLE orders REPLICA IDENTITY FULL")
    project.run("orders")
    place.source.execute(
        "DELETE FROM orders WHERE id <= 2", "UPDATE orders SET id = 30 WHERE id = 3"
    )
    project.run("orders")
    marked = "SELECT id FROM raw.orders WHERE deleted_at IS NOT NULL ORDER BY 1"
    assert place.target.execute(marked) == [(1,), (2,), (3,)]
    assert place.target.value("SELECT count(*) FROM raw.orders") == 10


def test_a_transformation_needs_values_that_do_not_change(make_project: MakeProject) -> None:
    project, place = make_project(databases=2, pipelines=PIPELINES)
    place.source.execute(ORDERS, FILL)
    with pytest.raises(SourceError, match="too large for a row"):
        project.run("orders")
