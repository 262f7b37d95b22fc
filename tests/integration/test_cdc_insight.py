"""Syncs by changes, as plan, doctor, status, metrics and verify show them."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.cdc_places import (
    FILL,
    ORDERS,
    PUBLICATIONS,
    SLOTS,
    is_equal,
    loaded_orders,
    make_cdc,
    orders_sync,
    slot_of,
)
from integration.commands import DONE
from integration.conftest import Make, MakePlace, Place
from integration.queued import run_here
from integration.served import serving
from tidegate.admin.doctor.examination import DoctorReport, run_checks
from tidegate.admin.doctor.finding import FindingLevel
from tidegate.admin.status import read_status
from tidegate.config import load_settings
from tidegate.core.errors import BusyError, ChangesLost
from tidegate.load.planner import plan_project
from tidegate.project import Project
from tidegate.verify.compared_rows import UncomparedRows, send_waiting
from tidegate.verify.report import RowReason, Verdict

__all__ = ["make_cdc"]
ITEMS = orders_sync(name="items", source="shop:public.items", target="warehouse:raw.items")
MORE_LOG = "SELECT pg_logical_emit_message(false, 'busy', repeat('x', {} << 19), true)"


def document(place: Place, *arguments: str) -> Any:
    """What a command answers to a program."""
    done = run_here(place, *arguments, "--json")
    assert done.code == DONE, done
    return done.document


def words(place: Place, *arguments: str) -> str:
    """What a command says to a person."""
    return run_here(place, *arguments).said


def examination(place: Place) -> DoctorReport:
    return run_checks(
        place.folder, load=load_settings, declared=lambda s: Project(s).syncs.values()
    )


def test_plan_tells_of_the_copy_and_then_of_the_log_and_makes_nothing(make_cdc: Make) -> None:
    project, place = make_cdc(orders_sync())
    place.source.execute(ORDERS, FILL)
    sync = project.syncs["orders"]

    before = plan_project(project.context, [sync]).plans[0]
    assert before.slot is not None
    assert (before.slot.exists, before.slot.copies, before.rows) == (False, True, 9)
    assert place.source.execute(SLOTS) == place.source.execute(PUBLICATIONS) == []
    assert "will be made" in words(place, "plan")

    project.run("orders")
    place.source.execute("UPDATE orders SET note = 'y'")
    after = plan_project(project.context, [sync]).plans[0]
    assert after.slot is not None
    assert (after.slot.exists, after.slot.copies) == (True, False)
    assert after.slot.slot == slot_of(place.source)[0]
    assert after.slot.behind_bytes > 0
    assert "of the log hold of it" in words(place, "plan")
    assert after.guarantee == "exact"


def test_it_is_told_how_far_behind_a_sync_is_and_what_its_slot_keeps(make_cdc: Make) -> None:
    limits = {"cdc": {"warn_retained": "1MB", "max_retained": "2MB"}}
    project, place = loaded_orders(make_cdc, sections=limits)
    project.run("orders")
    syncs = [project.syncs["orders"]]
    found = read_status(project.context, syncs)
    assert found.is_well
    lag = found.syncs[0].lag
    assert lag is not None
    assert lag.bytes is not None
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 60
    assert found.slots[0].readers[0].sync == "orders"
    assert found.slots[0].remark is None
    assert "of the log, read" in words(place, "status")

    place.source.execute(MORE_LOG.format(3))
    found = read_status(project.context, syncs)
    assert found.slots[0].remark is not None
    assert "more than warn_retained" in found.slots[0].remark.found
    assert found.is_well

    place.source.execute(MORE_LOG.format(2))
    found = read_status(project.context, syncs)
    remark = found.slots[0].remark
    assert remark is not None
    assert "more than max_retained (2 MB)" in remark.found
    assert "held back by orders" in remark.found
    assert "tidegate run orders" in remark.fix
    assert "tidegate remove orders" in remark.fix
    assert not found.is_well
    assert "more than max_retained" in words(place, "status")
    name = slot_of(place.source)[0]
    checks = {one.name: one for one in examination(place).checks}
    assert checks[f'connection "shop": changes: {name}'].level is FindingLevel.FAIL
    warnings = plan_project(project.context, syncs).plans[0].warnings
    assert any("max_retained" in text for text in warnings)

    with serving(project) as client:
        metrics = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
        }
        assert metrics["tidegate_slot_retained_bytes", "shop", name] > 2 << 20
        assert metrics["tidegate_sync_behind_bytes", "orders"] > 2 << 20
        assert metrics["tidegate_slot_lost", "shop", name] == 0
        assert metrics["tidegate_slot_over_limit", "shop", name] == 1
        place.source.execute(f"SELECT pg_drop_replication_slot('{name}')")
        gone = f'tidegate_slot_lost{{connection="shop",slot="{name}"}} 1.0'
        assert gone in client.get("/metrics").text


def test_doctor_says_what_keeps_tables_from_telling_their_changes(make_place: MakePlace) -> None:
    place = make_place(orders_sync(), {**ITEMS, "key": ["id"]}, databases=2)
    place.source.execute(ORDERS, "CREATE TABLE items (id int NOT NULL UNIQUE, name text)")
    checks = {one.name: one for one in examination(place).checks}
    assert checks['connection "shop": changes'].level is FindingLevel.OK
    assert checks['connection "shop": changes: public.orders'].level is FindingLevel.OK
    items = checks['connection "shop": changes: public.items']
    assert items.level is FindingLevel.FAIL
    assert "no replica identity" in items.found
    assert "REPLICA IDENTITY USING INDEX" in (items.fix or "")
    assert checks['connection "shop": changes: limit'].level is FindingLevel.WARN
    assert place.source.execute(SLOTS) == []


def test_remove_drops_the_publication_and_with_the_last_reader_the_slot(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc, ITEMS)
    place.source.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    project.run("items")
    assert len(place.source.execute(PUBLICATIONS)) == 2

    # A position in the log is not moved by hand.
    for command in ("set", "rewind"):
        said = words(place, "watermark", command, "orders", "0/0", "--reason", "why")
        assert "not moved by hand" in said

    done = document(place, "remove", "items", "--yes")
    assert done["slots"][0]["dropped_slot"] is False
    assert len(place.source.execute(PUBLICATIONS)) == 1
    slot_of(place.source)
    place.source.execute("INSERT INTO orders VALUES (10, 1)")
    project.run("orders")
    assert is_equal(place)

    def remove() -> None:
        done = document(place, "remove", "orders", "--yes")
        assert done["slots"][0]["dropped_slot"] is True
        assert place.source.execute(SLOTS) == place.source.execute(PUBLICATIONS) == []
        assert place.control.execute("SELECT FROM tidegate_control.slots") == []

    remove()
    project.run("orders")
    assert is_equal(place)

    # Tidegate is not taken out before no slot is left.
    project.close()
    said = words(place, "db", "uninstall", "--yes")
    assert "tidegate remove orders" in said
    assert place.control.execute("SELECT slot FROM tidegate_control.slots")

    # What a killed removal left of a slot goes with the next.
    place.target.execute("DELETE FROM tidegate.etl_state", "DELETE FROM tidegate.watermark_log")
    remove()
    said = words(place, "db", "uninstall", "--yes")
    assert place.control.value("SELECT to_regclass('tidegate_control.slots')") is None, said


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
