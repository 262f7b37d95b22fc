"""What is shown of slots: by plan, doctor, status and metrics; and how they are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import FAST
from integration.cdc_places import FILL, ORDERS, orders_sync, place_on, rows, slot_of
from integration.commands import DONE, tidegate
from integration.conftest import MakePlace, MakeProject, Place
from integration.served import serving
from tidegate.insight.doctor import Examination, examine
from tidegate.insight.metrics import Metric
from tidegate.insight.slot_metrics import measure_slots
from tidegate.insight.slots import quick_source, read_slots
from tidegate.insight.status import read_status
from tidegate.model.check import Level
from tidegate.pipeline.plan import plan_project
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project
from tidegate.settings import load_settings
from tidegate.spark.session import SparkSessions

ITEMS = orders_sync(name="items", source="shop:public.items", target="warehouse:raw.items")
MORE_LOG = "CREATE TABLE busy AS SELECT repeat(md5(i::text), 30) FROM generate_series(1, 4000) i"


def document(place: Place, *arguments: str) -> Any:
    """What a command answers to a program."""
    done = tidegate(place.folder, *arguments, "--json")
    assert done.code == DONE, done
    return done.document


def words(place: Place, *arguments: str) -> str:
    """What a command says to a person."""
    return tidegate(place.folder, *arguments).said


def examination(place: Place) -> Examination:
    return examine(place.folder, load=load_settings, declared=lambda s: Project(s).syncs.values())


def slots_in(place: Place) -> list[tuple[Any, ...]]:
    return place.source.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )


def test_plan_tells_of_the_copy_and_then_of_the_log_and_makes_nothing(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    sync = project.syncs["orders"]

    before = plan_project(project.context, [sync]).plans[0]
    assert before.slot is not None
    assert (before.slot.exists, before.slot.copies, before.rows) == (False, True, 9)
    assert slots_in(place) == []
    assert place.source.execute("SELECT FROM pg_publication") == []
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


def test_status_tells_how_far_behind_a_sync_is_and_what_its_slot_keeps(
    make_project: MakeProject,
) -> None:
    project, place = make_project(
        orders_sync(), databases=2, cdc={"warn_retained": "1MB", "max_retained": "2MB"}
    )
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    project.run("orders")
    sync = project.syncs["orders"]

    found = read_status(project.context, [sync])
    assert found.is_well
    lag = found.syncs[0].lag
    assert lag is not None
    assert lag.bytes is not None
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 60
    assert found.slots[0].readers[0].sync == "orders"
    assert found.slots[0].remark is None
    assert "of the log, read" in words(place, "status")

    place.source.execute(MORE_LOG)
    found = read_status(project.context, [sync])
    remark = found.slots[0].remark
    assert remark is not None
    assert "more than max_retained (2 MB)" in remark.found
    assert "held back by orders" in remark.found
    assert "tidegate run orders" in remark.fix
    assert "tidegate remove orders" in remark.fix
    assert not found.is_well
    assert "more than max_retained" in words(place, "status")
    assert slot_of(place.source)
    checks = {one.name: one for one in examination(place).checks}
    kept = checks[f'connection "shop": changes: {slot_of(place.source)[0]}']
    assert kept.level is Level.FAIL
    assert any(
        "max_retained" in text for text in plan_project(project.context, [sync]).plans[0].warnings
    )


def test_a_slot_that_keeps_much_is_worth_a_warning(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2, cdc={"warn_retained": "1MB"})
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    place.source.execute(MORE_LOG)
    found = read_status(project.context, [project.syncs["orders"]])
    assert found.slots[0].remark is not None
    assert "more than warn_retained" in found.slots[0].remark.found
    assert found.is_well


def test_metrics_tell_of_slots_and_of_their_readers(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    place.source.execute(MORE_LOG)
    name = slot_of(place.source)[0]
    with serving(project) as client:
        text = client.get("/metrics").text
        found = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert found["tidegate_slot_retained_bytes", "shop", name] > 1 << 20
        assert found["tidegate_sync_behind_bytes", "orders"] > 1 << 20
        assert found["tidegate_slot_lost", "shop", name] == 0
        assert found["tidegate_slot_over_limit", "shop", name] == 0
        place.source.execute(f"SELECT pg_drop_replication_slot('{name}')")
        assert (
            f'tidegate_slot_lost{{connection="shop",slot="{name}"}} 1.0'
            in client.get("/metrics").text
        )


def test_a_source_that_is_away_does_not_keep_figures_waiting(
    make_place: MakePlace, tmp_path: Path, warm_spark: SparkSessions
) -> None:
    server = EmbeddedServer(tmp_path / "own", FAST)
    server.start()
    place = place_on(make_place, server)
    try:
        with place.open(warm_spark) as project:
            project.run("orders")
            server.stop("fast")
            with project.context.plane.connect() as control:
                found = read_slots(project.context, control, quick_source(project.context))
            assert "cannot connect" in (found[0].unreachable or "")
            assert not read_status(project.context, [project.syncs["orders"]]).is_well
            metrics = {one.name: one for one in measure_slots_of(project)}
            assert list(metrics["tidegate_slot_unreachable"].values.values()) == [True]
            assert metrics["tidegate_slot_retained_bytes"].values == {}
    finally:
        server.stop("immediate")


def measure_slots_of(project: Project) -> list[Metric]:
    with project.context.plane.connect() as control:
        return list(measure_slots(project.context, control))


def test_doctor_says_what_keeps_tables_from_telling_their_changes(
    make_place: MakePlace,
) -> None:
    place = make_place(orders_sync(), {**ITEMS, "key": ["id"]}, databases=2)
    items_table = "CREATE TABLE items (id int NOT NULL UNIQUE, name text)"
    place.source.execute(ORDERS, items_table)
    found = examination(place)
    checks = {one.name: one for one in found.checks}
    assert checks['connection "shop": changes'].level is Level.OK
    assert checks['connection "shop": changes: public.orders'].level is Level.OK
    items = checks['connection "shop": changes: public.items']
    assert items.level is Level.FAIL
    assert "no replica identity" in items.found
    assert "REPLICA IDENTITY USING INDEX" in (items.fix or "")
    limit = checks['connection "shop": changes: limit']
    assert limit.level is Level.WARN
    assert slots_in(place) == []


def test_remove_drops_the_publication_and_with_the_last_reader_the_slot(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(), ITEMS, databases=2)
    place.source.execute(ORDERS, FILL, "CREATE TABLE items (id int PRIMARY KEY, name text)")
    project.run("orders")
    project.run("items")
    publications = "SELECT pubname FROM pg_publication"
    assert len(place.source.execute(publications)) == 2

    done = document(place, "remove", "items", "--yes")
    assert done["slots"][0]["dropped_slot"] is False
    assert len(place.source.execute(publications)) == 1
    slot_of(place.source)
    place.source.execute("INSERT INTO orders VALUES (10, 1)")
    project.run("orders")
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")

    done = document(place, "remove", "orders", "--yes")
    assert done["slots"][0]["dropped_slot"] is True
    assert slots_in(place) == []
    assert place.source.execute(publications) == []
    assert place.control.execute("SELECT FROM tidegate_control.slots") == []

    project.run("orders")
    assert rows(place.target, "raw.orders") == rows(place.source, "orders")


def test_what_a_killed_removal_left_of_a_slot_goes_with_the_next(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    place.target.execute("DELETE FROM tidegate.etl_state", "DELETE FROM tidegate.watermark_log")

    assert document(place, "remove", "orders", "--yes")["slots"][0]["dropped_slot"] is True
    assert slots_in(place) == []


def test_taking_tidegate_out_waits_until_no_slot_is_left(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    project.close()
    said = words(place, "db", "uninstall", "--yes")
    assert "tidegate remove orders" in said
    assert place.control.execute("SELECT slot FROM tidegate_control.slots")
    document(place, "remove", "orders", "--yes")
    said = words(place, "db", "uninstall", "--yes")
    assert place.control.value("SELECT to_regclass('tidegate_control.slots')") is None, said


@pytest.mark.parametrize("command", ["set", "rewind"])
def test_a_position_in_the_log_is_not_moved_by_hand(
    make_project: MakeProject, command: str
) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    said = words(place, "watermark", command, "orders", "0/0", "--reason", "why")
    assert "not moved by hand" in said
