"""SIGKILL in the passes of changes = "snapshot": every key range once, every late row at last."""

from __future__ import annotations

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.test_late_commits import insert_only, open_transaction, watermark
from acceptance.test_named_points import kill_at
from chaos_seeds import chosen, seeds

SNAPSHOT: dict[str, object] = {"changes": "snapshot", "cursor": None}


def position(scene: Scene) -> object:
    database, schema = scene.ledger
    return oracle.scalar(database, f"SELECT position::text FROM {schema}.etl_state")


@pytest.mark.parametrize("point", ["batch.planned", "publish.moved", "publish.committed"])
def test_a_first_load_that_is_killed_goes_on_in_its_key_ranges(
    make_scene: MakeScene, point: str
) -> None:
    scene = make_scene(2, sync=SNAPSHOT, batch_rows=15)
    late = open_transaction(scene)
    insert_only(scene)
    kill_at(scene, point, passage=2)
    assert position(scene) is not None, "it was killed in the middle of its pass"
    assert watermark(scene) is None
    insert_only(scene, 2)
    kill_at(scene, point)
    insert_only(scene, 2)
    scene.run()
    assert position(scene) is None
    late.commit()
    late.close()
    scene.run()
    scene.assert_exact()
    scene.assert_swept()


def test_a_pass_into_a_lake_that_is_killed_about_its_commit_is_finished(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(2, sync=SNAPSHOT, batch_rows=15, lake=True)
    late = open_transaction(scene)
    kill_at(scene, "branch.forwarded", passage=2)
    insert_only(scene)
    scene.run()
    late.commit()
    late.close()
    kill_at(scene, "batch.planned")
    scene.run()
    scene.assert_exact()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", seeds(range(6)))
@pytest.mark.parametrize("window", [False, True])
def test_no_row_is_lost_over_many_overlapping_transactions_and_kills(
    make_scene: MakeScene, seed: int, window: bool
) -> None:
    sync = dict(SNAPSHOT)
    if window:
        sync |= {"cursor": "updated_at", "lookback": "1 hour"}
    scene = make_scene(2, sync=sync, batch_rows=12, seed=chosen(seed))
    rng = scene.rng
    opened: list[psycopg.Connection] = []
    for number in range(12):
        while len(opened) < 3:
            connection = psycopg.connect(scene.source)
            for one in range(rng.randint(1, 3)):
                connection.execute(f"SAVEPOINT s{one}")  # type: ignore[arg-type]
                connection.execute(
                    "INSERT INTO public.orders (region, id, total) VALUES ('late', %s, 1)",
                    (number * 100 + len(opened) * 10 + one,),
                )
            opened.append(connection)
        insert_only(scene, rng.randint(0, 8))
        if rng.random() < 0.6:
            point = rng.choice(
                ["batch.planned", "stage.done", "publish.moved", "publish.committed"]
            )
            scene.start(failpoint=f"{point}@{rng.randint(1, 2)}=kill").wait()
        else:
            scene.run()
        connection = opened.pop(rng.randrange(len(opened)))
        if rng.random() < 0.8:
            connection.commit()
        connection.close()
    for connection in opened:
        connection.commit()
        connection.close()
    scene.run()
    scene.assert_exact()
    scene.assert_swept()
