"""`verify --repair` of a lake: one commit that merges the differing ranges and removes keys."""

from __future__ import annotations

from typing import Any

from integration.conftest import MakePlace, Place
from integration.lakes import CREATE, FILL, ORDERS, change, make_lake_project
from tidegate.lake.reading import main_rows
from tidegate.model.relation import Relation
from tidegate.model.verification import Verdict
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

PIPELINES = """
import tidegate as tg

@tg.sync(source="shop:public.orders", target="lake:raw.orders", cursor="updated_at")
def orders(df):
    return df.where("total <> 6").selectExpr("id", "note", "total * 2 AS twice", "updated_at")
"""


def rows(project: Project, *names: str) -> list[tuple[Any, ...]]:
    found = main_rows(project.context.catalog("lake"), Relation("raw", "orders"))
    assert found is not None
    taken = [
        tuple(row[name] for name in names)
        for _, batch in found.batches(names)
        for row in batch.to_pylist()
    ]
    return sorted(taken)


def damage(project: Project, place: Place) -> None:
    place.source.execute(
        "DELETE FROM orders WHERE id IN (7, 8)",
        "INSERT INTO orders VALUES (50, 50, 'late', '2026-01-01 00:05:30+00')",
        "UPDATE orders SET note = 'silent' WHERE id = 2",
    )
    change(
        project,
        "DELETE FROM lake.raw.orders WHERE id = 4",
        # A cursor above the source's, which the guard of a merge would keep.
        "UPDATE lake.raw.orders SET note = 'newer', updated_at = timestamp '2026-01-01 09:00:00Z'"
        " WHERE id = 9",
    )


def test_a_damaged_lake_is_put_right_in_one_load(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, ORDERS, databases=2)
    place.source.execute(CREATE, FILL)
    project.run("orders")
    before = project.watermark("orders").value
    damage(project, place)
    found = project.verify("orders", repair=True)
    assert found.verdict is Verdict.EQUAL
    assert found.repair is not None
    was = found.repair.difference
    assert was is not None
    assert (was.missing, was.extra, was.different) == (2, 2, 2)
    assert found.repair.loads == 1
    assert rows(project, "id", "note") == place.source.execute(
        "SELECT id, note FROM orders ORDER BY id"
    )
    assert project.watermark("orders").value == before
    place.source.execute("INSERT INTO orders VALUES (60, 1, 'new')")
    assert project.run("orders").rows == 1
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_a_transformation_is_applied_again_to_what_differs_in_a_lake(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, databases=2, pipelines=PIPELINES)
    place.source.execute(CREATE, FILL)
    project.run("orders")
    damage(project, place)
    place.source.execute("UPDATE orders SET total = 6 WHERE id = 1")
    found = project.verify("orders", repair=True)
    assert (found.verdict, found.used_spark) == (Verdict.EQUAL, True)
    assert rows(project, "id", "twice", "note") == place.source.execute(
        "SELECT id, total * 2, note FROM orders WHERE total <> 6 ORDER BY id"
    )
