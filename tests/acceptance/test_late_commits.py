"""Rows stamped when their transaction began, or numbered then, and committed long after.

By a cursor, and by the passes of changes = "snapshot": every key range once, every late row at
last, whoever is killed.
"""

from __future__ import annotations

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.test_named_points import kill_at
from chaos_seeds import chosen, seeds

SNAPSHOT: dict[str, object] = {"changes": "snapshot", "cursor": None}
KINDS: dict[str, dict[str, object]] = {
    "stamp": {"cursor": "updated_at"},
    "number": {"cursor": "seq"},
    "snapshot": SNAPSHOT,
    "snapshot and window": {**SNAPSHOT, "cursor": "updated_at", "lookback": "1 hour"},
}
POINTS = ("batch.planned", "stage.done", "publish.moved", "publish.committed")


def watermarks(scene: Scene) -> list[str | None]:
    query = "SELECT high_watermark FROM tidegate.etl_state ORDER BY table_name"
    return [value for (value,) in oracle.rows(scene.destination, query)]


def position(scene: Scene) -> object:
    return oracle.scalar(scene.destination, "SELECT position::text FROM tidegate.etl_state")


def open_transaction(scene: Scene) -> psycopg.Connection:
    """Rows in a transaction that stays open, some of them under savepoints."""
    connection = psycopg.connect(scene.source)
    scene.change_in(connection, "orders", rows=2)
    connection.execute("SAVEPOINT a")
    scene.change_in(connection, "orders", rows=2)
    connection.execute("SAVEPOINT b")
    scene.change_in(connection, "orders", rows=2)
    connection.execute("ROLLBACK TO SAVEPOINT b")
    connection.execute("RELEASE SAVEPOINT a")
    return connection


def insert_only(scene: Scene, transactions: int = 1) -> None:
    """New rows only: an update could wait for a row that an open transaction has changed."""
    insert = (
        "INSERT INTO public.orders (region, id, total) SELECT 'later', coalesce(max(id), 0) + 1, 1"
        " FROM public.orders WHERE region = 'later'"
    )
    scene.at_source(*[insert] * transactions)


def commit(*connections: psycopg.Connection) -> None:
    for connection in connections:
        connection.commit()
        connection.close()


def test_no_row_is_lost_when_transactions_commit_late_and_out_of_order(
    make_scene: MakeScene,
) -> None:
    """By a stamp and by a number."""
    numbered = {"source": "source:public.orders", "target": "warehouse:raw.numbered"}
    scene = make_scene(2, sections={"sync.numbered": {**numbered, "cursor": "seq"}})
    names = ("orders", "numbered")
    scene.run(*names)
    before = watermarks(scene)
    assert len(before) == 2
    first = open_transaction(scene)
    insert_only(scene)
    second = psycopg.connect(scene.source)
    second.execute("INSERT INTO public.orders (region, id, total) VALUES ('second', 1, 2)")
    insert_only(scene)
    held = scene.run(*names)
    assert held.out.count("held back by") == 2, held
    second.execute("SAVEPOINT s")
    second.execute("INSERT INTO public.orders (region, id, total) VALUES ('second', 2, 2)")
    commit(second)  # began after the first, commits before it
    held = scene.run(*names)
    assert held.out.count("held back by") == 2, held
    assert watermarks(scene) == before, "it passed rows that were not committed yet"
    commit(first)
    scene.run(*names)
    scene.assert_exact()
    oracle.assert_same_rows(scene.read_target("orders"), scene.read_target("numbered"))
    scene.assert_swept()


def test_a_first_pass_that_is_killed_goes_on_in_its_key_ranges(make_scene: MakeScene) -> None:
    scene = make_scene(2, sync=SNAPSHOT, batch_rows=15)
    late = open_transaction(scene)
    for point, passage in (("batch.planned", 2), ("publish.moved", 1), ("publish.committed", 1)):
        insert_only(scene, 2)
        kill_at(scene, point, passage)
        assert position(scene) is not None, "it was killed in the middle of its pass"
        assert watermarks(scene) == [None]
    insert_only(scene, 2)
    scene.run()
    assert position(scene) is None
    commit(late)
    scene.run()
    scene.assert_swept()


@pytest.mark.chaos
def test_a_pass_into_a_lake_that_is_killed_about_its_commit_is_finished(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(2, sync=SNAPSHOT, batch_rows=15, lake=True)
    late = open_transaction(scene)
    kill_at(scene, "branch.forwarded", passage=2)
    insert_only(scene)
    scene.run()
    commit(late)
    kill_at(scene, "batch.planned")
    scene.run()
    scene.assert_exact()


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("seed", seeds(range(4)))
@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_lost_over_many_overlapping_transactions_and_kills(
    make_scene: MakeScene, kind: str, seed: int, databases: int
) -> None:
    scene = make_scene(databases, sync=KINDS[kind], batch_rows=12, seed=chosen(seed))
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
            point = rng.choice(POINTS)
            scene.start(failpoint=f"{point}@{rng.randint(1, 2)}=kill").wait()
        else:
            scene.run()
        connection = opened.pop(rng.randrange(len(opened)))
        if rng.random() < 0.8:
            connection.commit()
        connection.close()
    commit(*opened)
    oracle.wait_until_left(scene.source)
    scene.run()
    scene.assert_swept()
