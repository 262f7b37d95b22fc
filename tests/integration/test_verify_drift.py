"""`verify` while the source has drifted and no run has followed yet: it says what `plan` says."""

from __future__ import annotations

from typing import Any

import pytest

from integration.commands import DONE, FAILED, tidegate
from integration.orders import CREATE, FILL, ORDERS, plan_all, plan_one
from tidegate.errors import DestinationError
from tidegate.pipeline.verify import verify_sync
from tidegate.project import Project

TRANSFORMED = """
import tidegate as tg
@tg.sync(source='shop:public.orders', target='warehouse:raw.orders', cursor='updated_at')
def orders(df):
    return df
"""


def loaded(make_project: Any, **declared: Any) -> tuple[Project, Any]:
    project, place = make_project({**ORDERS, **declared}, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    return project, place


@pytest.mark.parametrize("mode", ["merge", "append"])
@pytest.mark.parametrize(
    "change", ["ADD note text", "ALTER total TYPE numeric(12,2), ALTER total SET DEFAULT 1"]
)
def test_a_drift_that_the_next_run_follows_is_told_as_plan_tells_it(
    make_project: Any, mode: str, change: str
) -> None:
    key = {"key": ["id"]} if mode == "append" else {}
    project, place = loaded(make_project, mode=mode, **key)
    place.source.execute(f"ALTER TABLE orders {change}")
    (note,) = plan_one(place.open()).target_table.notes
    done = tidegate(place.folder, "verify", "orders")
    assert done.code == FAILED
    assert f"changed since the last load: {note}" in done.err
    assert "tidegate run orders; then verify again" in done.err
    assert "cannot take" not in done.err
    place.source.execute("UPDATE orders SET updated_at = now()")
    project.run("orders")
    assert tidegate(place.folder, "verify", "orders").code == DONE


def test_a_drift_that_is_in_nobodys_way_is_a_note(make_project: Any) -> None:
    _, place = loaded(make_project)
    place.source.execute("ALTER TABLE orders DROP COLUMN total")
    (note,) = plan_one(place.open()).target_table.notes
    done = tidegate(place.folder, "verify", "orders")
    assert done.code == DONE
    assert "10 rows equal" in done.out
    assert f"note: {note}" in done.out


def test_a_drift_that_a_run_refuses_is_refused_in_the_same_words(make_project: Any) -> None:
    _, place = loaded(make_project, drift="freeze")
    place.source.execute("ALTER TABLE orders ADD note text")
    (refusal,) = plan_all(place.open()).refusals
    done = tidegate(place.folder, "verify", "orders", "--json")
    assert done.code == FAILED
    (found,) = done.document
    assert (found["error"], found["hint"]) == (refusal.message, refusal.hint)
    place.source.execute("ALTER TABLE orders DROP COLUMN note, DROP COLUMN total")
    (refusal,) = plan_all(place.open()).refusals
    done = tidegate(place.folder, "verify", "orders", "--json")
    assert (done.code, done.document[0]["verdict"]) == (DONE, "equal")
    assert refusal.message in done.document[0]["notes"]


def test_a_target_that_somebody_changed_is_no_drift(make_project: Any) -> None:
    _, place = loaded(make_project)
    place.target.execute("ALTER TABLE raw.orders DROP COLUMN total")
    done = tidegate(place.folder, "verify", "orders")
    assert done.code == FAILED
    assert "raw.orders cannot take these rows: it has no column total" in done.err


def test_a_drift_behind_a_transformation_is_told_too(make_project: Any) -> None:
    project, place = make_project(databases=2, pipelines=TRANSFORMED)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("ALTER TABLE orders ADD note text")
    with place.open(project.context.spark) as opened:
        with pytest.raises(DestinationError) as raised:
            verify_sync(opened.context, opened.sync("orders"))
        told = raised.value.message
        place.source.execute("UPDATE orders SET updated_at = now()")
        (note,) = opened.run("orders").outcome.notes
        assert told == f"the source of raw.orders changed since the last load: {note}"
        assert verify_sync(opened.context, opened.sync("orders")).intact
