"""`why` of a sync with a transformation: what it makes of one row, when that is asked for."""

from __future__ import annotations

from typing import Any

from integration.orders import CREATE, FILL, contents
from tidegate.model.explanation import ColumnDifference, Reason

PIPELINES = (
    "import tidegate as tg\n"
    '@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at",\n'
    '         where="id <> 9")\n'
    "def orders(df):\n"
    "    return df.selectExpr('id', 'total * 2 AS double', 'updated_at').where('id <> 3')\n"
)


def test_a_transformation_is_run_on_one_row_only_when_that_is_asked_for(make_project: Any) -> None:
    project, place = make_project(databases=2, pipelines=PIPELINES)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    before = contents(place.source, place.target)
    cold = place.open()
    there, dropped = cold.why("orders", id=5), cold.why("orders", id=3)
    assert cold.context.spark.started is False
    assert (there.reason, there.differences) == (Reason.LOADED, ())
    assert there.target_row is not None
    assert there.target_row["double"] == "10.00"
    assert there.carrier is not None
    assert there.carrier.reason == "load range"
    assert dropped.reason is Reason.MAYBE_TRANSFORMED
    assert "--run-transform" in str(dropped.hint)
    assert cold.why("orders", id=9).reason is Reason.FILTERED

    assert project.why("orders", id=5, run_transform=True).reason is Reason.EQUAL
    assert project.why("orders", id=3, run_transform=True).reason is Reason.TRANSFORMED
    assert project.why("orders", id=9, run_transform=True).reason is Reason.FILTERED
    assert contents(place.source, place.target) == before
    place.target.execute(
        "UPDATE raw.orders SET double = 1 WHERE id = 5", "DELETE FROM raw.orders WHERE id = 6"
    )
    edited = project.why("orders", id=5, run_transform=True)
    assert edited.reason is Reason.CHANGED_UNSEEN
    assert edited.differences == (ColumnDifference("double", "10.00", "1.00"),)
    assert project.why("orders", id=6, run_transform=True).reason is Reason.LATE
    assert project.why("orders", id=6).reason is Reason.MAYBE_TRANSFORMED
    place.source.execute("UPDATE orders SET total = 7, updated_at = '2026-02-01' WHERE id = 7")
    assert project.why("orders", id=7).reason is Reason.CHANGED
