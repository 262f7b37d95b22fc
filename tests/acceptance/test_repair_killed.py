"""`verify --repair`, `backfill` and `adopt`, killed and repeated, end right."""

from __future__ import annotations

import json

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.processes import Ended

# In the order in which a repair passes them; the second load of one, too.
POINTS = (
    *("job.submitted", "job.claimed", "fence.raised", "batch.planned", "stage.write"),
    *("stage.written", "stage.done", "check.done", "publish.fenced", "publish.marked"),
    *("publish.applied", "publish.moved", "publish.committed", "batch.planned@2"),
    *("publish.applied@2", "publish.committed@2", "job.finishing", "job.finished"),
)
SOME = ("stage.written", "publish.applied", "publish.committed", "publish.committed@2")
INTO_LAKE = ("stage.done", "branch.staged", "intent.noted", "branch.forwarded", "job.finishing")
REPAIR = ("verify", "orders", "--repair")


def repair(scene: Scene) -> Ended:
    return scene.command(*REPAIR)


def damage(scene: Scene) -> None:
    """What no cursor shows: rows deleted, changed and put in below the watermark."""
    scene.at_source(
        "DELETE FROM orders WHERE id % 7 = 0",
        "UPDATE orders SET total = total + 1",
        "INSERT INTO orders (region, id, total, updated_at)"
        " SELECT 'late', coalesce(max(id), 0) + 1, 0, min(updated_at) FROM orders",
    )


def kill_repairs(scene: Scene, points: tuple[str, ...]) -> None:
    for point in points:
        damage(scene)
        scene.kill_at(point, *REPAIR)


def assert_repaired(scene: Scene) -> None:
    damage(scene)
    ended = repair(scene)
    assert ended.code == 0, ended
    scene.assert_exact()
    assert scene.command("verify", "orders").code == 0


@pytest.mark.parametrize(
    "points", [SOME, pytest.param(POINTS, marks=pytest.mark.chaos)], ids=["some", "every"]
)
def test_a_repair_that_is_killed_is_ended_by_the_next_and_runs_go_on(
    make_scene: MakeScene, points: tuple[str, ...]
) -> None:
    scene = make_scene(3)
    scene.change(6)
    scene.run()
    kill_repairs(scene, points)
    assert_repaired(scene)
    kill_repairs(scene, ("publish.moved",))
    scene.change()
    scene.run()
    assert_repaired(scene)
    scene.assert_swept()


@pytest.mark.chaos
def test_a_repair_of_a_lake_that_is_killed_is_ended_by_the_next(make_scene: MakeScene) -> None:
    scene = make_scene(2, lake=True, batch_rows=400)
    scene.run()
    kill_repairs(scene, INTO_LAKE)
    assert_repaired(scene)


@pytest.mark.parametrize(
    ("points", "already"),
    [
        (("publish.moved", "publish.committed"), 1),
        pytest.param(
            ("publish.moved", "publish.committed", "stage.done", "publish.committed@2"),
            3,
            marks=pytest.mark.chaos,
        ),
    ],
    ids=["twice", "often"],
)
def test_a_backfill_that_is_killed_goes_on_with_what_is_missing(
    make_scene: MakeScene, points: tuple[str, ...], already: int
) -> None:
    scene = make_scene(2)
    scene.run()
    scene.at_source(
        "UPDATE orders SET updated_at = timestamptz '2026-01-01' + (id % 4) * interval '1 day'"
    )
    loads = scene.assert_ledger()
    wanted = ("backfill", "orders", "--from", "2026-01-01", "--to", "2026-01-05", "--json")
    for point in points:
        scene.kill_at(point, *wanted)
    ended = scene.command(*wanted)
    assert ended.code == 0, ended
    found = json.loads(ended.out)
    assert (found["chunks"], found["already"], found["loaded"]) == (4, already, 4 - already)
    assert scene.assert_ledger() == loads + 4


def fill(scene: Scene) -> int:
    """Copy the source as a script would, but for a part of the rows with the highest stamp."""
    with (
        psycopg.connect(scene.source, autocommit=True) as source,
        psycopg.connect(scene.destination, autocommit=True) as target,
    ):
        source.execute("UPDATE orders SET updated_at = now() WHERE id % 2 = 0")
        rows = source.execute(
            "SELECT t::text FROM orders t WHERE updated_at < (SELECT max(updated_at) FROM orders)"
            " OR id % 4 = 0"
        ).fetchall()
        target.execute("CREATE SCHEMA raw")
        target.execute(
            "CREATE TABLE raw.orders (region text, id bigint, status text, total numeric(12,2),"
            ' "Note Text" text, payload jsonb, tags text[], seq bigint, updated_at timestamptz,'
            " PRIMARY KEY (region, id))"
        )
        for row in rows:
            target.execute("INSERT INTO raw.orders SELECT (%s::raw.orders).*", row)
    return len(rows)


def recorded(scene: Scene) -> list[tuple[object, ...]]:
    return oracle.rows(
        scene.destination,
        "SELECT s.version, s.rows_synced, l.rows FROM tidegate.etl_state s"
        " LEFT JOIN tidegate.watermark_log l USING (pipeline_name, table_name)",
    )


def test_an_adoption_killed_before_its_commit_leaves_nothing_and_after_it_all(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(3)
    filled = fill(scene)
    adopt = ("adopt", "orders", "--from-target-max")
    scene.kill_at("adopt.moved", *adopt)
    assert recorded(scene) == []
    scene.kill_at("adopt.committed", *adopt)
    assert recorded(scene) == [(1, filled, filled)]
    again = scene.command(*adopt)
    assert again.code == 2
    assert "has a watermark already" in again.err
    scene.change()
    assert "found nothing" not in scene.run().out
    scene.assert_exact()
    oracle.assert_idle(scene.control)
