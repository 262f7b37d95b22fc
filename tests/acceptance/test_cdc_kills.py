"""SIGKILL at every point of a sync by its changes; the next run makes everything right."""

from __future__ import annotations

import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.test_named_points import kill_at
from tidegate.core.watermark import lsn_value

CDC = {"changes": "cdc", "cursor": None}
IN_COPY = (
    *("slot.made", "batch.planned", "stage.done", "publish.moved", "publish.committed"),
    *("slot.noted", "slot.advanced"),
)
IN_CHANGES = (
    *("job.submitted", "job.claimed", "fence.raised", "changes.landed", "batch.planned"),
    *("stage.done", "check.done", "publish.fenced", "publish.marked", "publish.applied"),
    *("publish.moved", "publish.committed", "slot.noted", "slot.advanced"),
    *("job.finishing", "job.finished"),
)
SECOND_BATCH = ("changes.landed", "stage.done", "publish.committed", "slot.noted")
# What a run by cursor does not have, or does with other things at stake.
COPY_ONLY = ("slot.made", "publish.moved", "publish.committed", "slot.noted")
CHANGES_ONLY = (
    *("changes.landed", "publish.applied", "publish.committed", "slot.noted", "slot.advanced"),
    "job.finishing",
)


def change(scene: Scene, times: int = 1) -> None:
    """Rows that come, change, go, and take another's key."""
    for _ in range(times):
        scene.change(1)
        scene.at_source(
            "DELETE FROM public.orders WHERE id IN (SELECT min(id) FROM public.orders)",
            "UPDATE public.orders SET id = -id, total = 1"
            " WHERE id IN (SELECT max(id) FROM public.orders)",
        )


def assert_slot(scene: Scene) -> None:
    """One slot is there, the latest load is behind it, and no copy has left its own."""
    query = (
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
    ((slot,),) = oracle.rows(scene.source, query)
    database, schema = scene.ledger
    found = oracle.scalar(database, f"SELECT high_watermark FROM {schema}.etl_state")
    assert lsn_value(slot) == lsn_value(found)


def kill_each(scene: Scene, points: tuple[str, ...], passage: int = 1) -> None:
    """Runs that die one after the other, each over changes of its own; then one that does not."""
    for point in points:
        change(scene, 4 if passage > 1 else 1)
        kill_at(scene, point, passage)
    scene.run()
    scene.assert_exact()
    assert_slot(scene)


def kill_refreshes(scene: Scene, points: tuple[str, ...]) -> None:
    for point in points:
        change(scene)
        scene.kill_at(point, "run", "orders", "--full-refresh")
    scene.run()
    scene.assert_exact()
    assert_slot(scene)


def test_killed_in_copies_in_a_run_of_changes_and_in_a_second_batch(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(2, sync=CDC, batch_rows=20)
    kill_each(scene, COPY_ONLY)
    kill_each(scene, CHANGES_ONLY)
    kill_each(scene, ("publish.committed",), passage=2)
    kill_refreshes(scene, ("slot.made",))
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
def test_killed_at_every_point_of_copies_and_of_runs_of_changes(
    make_scene: MakeScene, databases: int
) -> None:
    scene = make_scene(databases, sync=CDC, batch_rows=10)
    kill_each(scene, IN_COPY)
    kill_refreshes(scene, ("slot.made", "batch.planned", "publish.committed"))
    kill_each(scene, IN_CHANGES)
    for point in IN_CHANGES:
        kill_each(scene, (point,))
    kill_each(scene, SECOND_BATCH, passage=2)
    scene.assert_swept()


@pytest.mark.chaos
def test_killed_on_the_way_into_a_lake(make_scene: MakeScene) -> None:
    scene = make_scene(2, sync=CDC, lake=True)
    kill_each(scene, ("branch.forwarded",))
    kill_each(scene, ("changes.landed", "branch.staged", "branch.forwarded"))
    scene.at_source("TRUNCATE public.orders")
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
    scene.run(*scene.tables)
    scene.assert_exact()
