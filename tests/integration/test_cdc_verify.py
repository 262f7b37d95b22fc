"""Comparing a sync by its changes while its source is being written."""

from __future__ import annotations

from typing import Any

import pytest

from integration.cdc_places import FILL, ORDERS, orders_sync, rows, slot_of
from integration.conftest import MakePlace, MakeProject, Place
from integration.filled_lakes import lake_place
from tidegate.errors import BusyError, ChangesLost, DeclarationError
from tidegate.model.explanation import Reason
from tidegate.model.verification import Verdict
from tidegate.pipeline.cdc_waiting import send_waiting
from tidegate.pipeline.repair import refuse_repair
from tidegate.pipeline.sides import LeftOut
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

WAITING = (
    "INSERT INTO orders VALUES (20, 20, 'new')",
    "UPDATE orders SET note = 'other' WHERE id = 1",
    "UPDATE orders SET id = 30 WHERE id = 3",
    "DELETE FROM orders WHERE id = 4",
)


def started(make_project: MakeProject, **values: str) -> tuple[Project, Place]:
    project, place = make_project(orders_sync(**values), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    return project, place


def test_what_waits_in_the_slot_is_not_compared(make_project: MakeProject) -> None:
    project, place = started(make_project)
    place.source.execute(*WAITING)
    found = project.verify("orders")
    assert found.verdict is Verdict.EQUAL
    # 20, 1, 3 and what it became, 4.
    assert found.not_yet_loaded == 5
    assert (found.source_rows, found.target_rows) == (6, 6)


def test_what_differs_is_seen_beside_what_waits(make_project: MakeProject) -> None:
    project, place = started(make_project)
    place.source.execute(*WAITING)
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


def test_a_repair_beside_what_waits_ends_well(make_project: MakeProject) -> None:
    project, place = started(make_project)
    place.source.execute(*WAITING)
    place.target.execute(
        "DELETE FROM raw.orders WHERE id IN (1, 7)", "UPDATE raw.orders SET note = id::text"
    )
    project.verify("orders", repair=True)
    project.run("orders")
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_a_run_that_publishes_meanwhile_does_not_look_like_a_difference(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = started(make_project)
    ran: list[int] = []

    def run_first(*given: Any) -> LeftOut:
        # The target's snapshot has been taken, and the slot not yet looked at.
        if not ran:
            ran.append(1)
            place.source.execute(*WAITING)
            project.run("orders")
        return send_waiting(*given)

    monkeypatch.setattr("tidegate.pipeline.verify.send_waiting", run_first)
    found = project.verify("orders")
    assert ran
    assert found.verdict is Verdict.EQUAL
    assert found.not_yet_loaded == 0


def test_changes_that_are_lost_are_told_as_such(make_project: MakeProject) -> None:
    project, place = started(make_project)
    place.source.execute(*WAITING)
    name, _ = slot_of(place.source)
    place.source.execute(f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
    with pytest.raises(ChangesLost, match="there is a gap"):
        project.verify("orders")


def test_a_truncate_that_waits_leaves_nothing_to_compare(make_project: MakeProject) -> None:
    project, place = started(make_project)
    place.source.execute("TRUNCATE orders")
    with pytest.raises(BusyError, match="emptied by TRUNCATE"):
        project.verify("orders")
    project.run("orders")
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_rows_marked_as_deleted_are_not_there(make_project: MakeProject) -> None:
    project, place = started(make_project, deletes="soft")
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


def test_a_lake_is_compared_beside_what_waits(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = lake_place(make_place, orders_sync(target="lake:raw.orders", deletes="soft"))
    place.source.execute(ORDERS, FILL)
    with place.open(warm_spark) as project:
        project.run("orders")
        place.source.execute("DELETE FROM orders WHERE id = 9")
        project.run("orders")
        place.source.execute(*WAITING)
        found = project.verify("orders")
        assert found.verdict is Verdict.EQUAL
        assert found.not_yet_loaded == 5
        assert found.notes == ()
        with pytest.raises(DeclarationError, match="is not repaired"):
            refuse_repair(project.sync("orders"))


def test_a_row_is_explained_by_what_waits(make_project: MakeProject) -> None:
    project, place = started(make_project)
    place.source.execute(*WAITING)
    place.target.execute(
        "UPDATE raw.orders SET note = 'wrong' WHERE id = 8",
        "INSERT INTO raw.orders (id) VALUES (99)",
    )
    reasons = {id_: project.why("orders", id=id_).reason for id_ in (1, 3, 4, 5, 8, 20, 30, 99)}
    assert reasons == {
        1: Reason.CHANGED,
        3: Reason.DELETED,
        4: Reason.DELETED,
        5: Reason.EQUAL,
        8: Reason.EDITED,
        20: Reason.NOT_YET,
        30: Reason.NOT_YET,
        99: Reason.EDITED,
    }
    assert project.why("orders", id=8).hint == (
        "to put right what differs: tidegate verify orders --repair"
    )
