"""SIGKILL at every point of a sync by its changes; the next run makes everything right."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.test_named_points import kill_at
from tidegate.model.lsn import lsn_value

CDC = {"changes": "cdc", "cursor": None}
IN_COPY = (
    "slot.made",
    "batch.planned",
    "stage.done",
    "publish.moved",
    "publish.committed",
    "slot.noted",
    "slot.advanced",
)
IN_CHANGES = (
    "job.submitted",
    "job.claimed",
    "fence.raised",
    "changes.landed",
    "batch.planned",
    "stage.done",
    "check.done",
    "publish.fenced",
    "publish.marked",
    "publish.applied",
    "publish.moved",
    "publish.committed",
    "slot.noted",
    "slot.advanced",
    "job.finishing",
    "job.finished",
)


def change(scene: Scene) -> None:
    """Rows that come, change, go, and take another's key."""
    scene.change(1)
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute(
            "DELETE FROM public.orders WHERE id IN (SELECT min(id) FROM public.orders)"
        )
        connection.execute(
            "UPDATE public.orders SET id = -id, total = 1 WHERE id IN"
            " (SELECT max(id) FROM public.orders)"
        )


def assert_slot(scene: Scene) -> None:
    """One slot is there, the latest load is behind it, and no copy has left its own."""
    with psycopg.connect(scene.source) as connection:
        slots = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
            " WHERE database = current_database()"
        ).fetchall()
    assert len(slots) == 1
    database, schema = scene.ledger
    statement = sql.SQL("SELECT high_watermark FROM {}").format(sql.Identifier(schema, "etl_state"))
    with psycopg.connect(database) as connection:
        found = connection.execute(statement).fetchone()
    assert found is not None
    assert lsn_value(slots[0][0]) == lsn_value(found[0])


def test_killed_in_its_first_copy_and_in_that_of_a_refresh(make_scene: MakeScene) -> None:
    scene = make_scene(2, sync=CDC)
    for point in IN_COPY:
        change(scene)
        kill_at(scene, point)
    scene.run()
    scene.assert_exact()
    for point in ("slot.made", "batch.planned", "publish.committed"):
        change(scene)
        killed = scene.start(failpoint=f"{point}=kill", options=("--full-refresh",)).wait()
        assert killed.code == -9, killed
    scene.run()
    scene.assert_exact()
    assert_slot(scene)
    scene.assert_swept()


@pytest.mark.parametrize("databases", [1, 2])
def test_killed_at_every_point_of_a_run_of_changes(make_scene: MakeScene, databases: int) -> None:
    scene = make_scene(databases, sync=CDC)
    scene.run()
    for point in IN_CHANGES:
        change(scene)
        kill_at(scene, point)
        if point in ("publish.applied", "slot.noted"):
            scene.run()
            scene.assert_exact()
    scene.run()
    scene.assert_exact()
    assert_slot(scene)
    scene.assert_swept()


def test_killed_in_the_second_of_several_batches(make_scene: MakeScene) -> None:
    scene = make_scene(2, sync=CDC, batch_rows=10)
    scene.run()
    for point in ("changes.landed", "stage.done", "publish.committed", "slot.noted"):
        for _ in range(4):
            change(scene)
        kill_at(scene, point, 2)
    scene.run()
    scene.assert_exact()
    assert_slot(scene)
    scene.assert_swept()


def test_killed_on_the_way_into_a_lake(make_scene: MakeScene) -> None:
    scene = make_scene(2, sync=CDC, lake=True)
    kill_at(scene, "branch.forwarded")
    scene.run()
    scene.assert_exact()
    for point in ("changes.landed", "branch.staged", "branch.forwarded"):
        change(scene)
        kill_at(scene, point)
    scene.run()
    scene.assert_exact()
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("TRUNCATE public.orders")
    scene.run()
    scene.change(1)
    scene.run()
    scene.assert_exact()
    assert_slot(scene)
    scene.assert_nothing_staged()


def test_others_do_not_advance_the_slot_past_a_copy_that_is_under_way(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(2, sync=CDC, tables=("orders", "items"))
    scene.run("orders")
    copying, flag = scene.start_and_hold("stage.done", "items")
    scene.change()
    scene.run("orders")
    flag.unlink()
    assert copying.wait().code == 0
    scene.change()
    for table in scene.tables:
        scene.run(table)
    scene.assert_exact()
