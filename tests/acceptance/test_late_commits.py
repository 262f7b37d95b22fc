"""Rows stamped when their transaction began, or numbered then, and committed long after."""

from __future__ import annotations

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from chaos_seeds import chosen


def watermark(scene: Scene) -> str | None:
    value = oracle.scalar(scene.destination, "SELECT high_watermark FROM tidegate.etl_state")
    return None if value is None else str(value)


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
    with psycopg.connect(scene.source, autocommit=True) as connection:
        for _ in range(transactions):
            connection.execute(
                "INSERT INTO public.orders (region, id, total)"
                " SELECT 'later', coalesce(max(id), 0) + 1, 1 FROM public.orders"
                " WHERE region = 'later'"
            )


@pytest.mark.parametrize("cursor", ["updated_at", "seq"])
def test_no_row_is_lost_when_transactions_commit_late_and_out_of_order(
    make_scene: MakeScene, cursor: str
) -> None:
    scene = make_scene(2, cursor=cursor, key=("region", "id"))
    scene.run()
    before = watermark(scene)
    first = open_transaction(scene)
    insert_only(scene)
    second = psycopg.connect(scene.source)
    second.execute("INSERT INTO public.orders (region, id, total) VALUES ('second', 1, 2)")
    insert_only(scene)
    held = scene.run()
    assert "held back by" in held.out, held
    second.execute("SAVEPOINT s")
    second.execute("INSERT INTO public.orders (region, id, total) VALUES ('second', 2, 2)")
    second.commit()  # began after the first, commits before it
    held = scene.run()
    assert "held back by" in held.out, held
    assert watermark(scene) == before, "it passed rows that were not committed yet"
    first.commit()
    first.close()
    second.close()
    scene.run()
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("cursor", ["updated_at", "seq"])
def test_no_row_is_lost_over_many_overlapping_transactions(
    make_scene: MakeScene, cursor: str, databases: int
) -> None:
    scene = make_scene(databases, cursor=cursor, seed=chosen(8))
    rng = scene.rng
    number = 0
    opened: list[psycopg.Connection] = []
    for _ in range(12):
        while len(opened) < 3:
            connection = psycopg.connect(scene.source)
            for _ in range(rng.randint(1, 3)):
                number += 1
                connection.execute(f"SAVEPOINT s{number}")  # type: ignore[arg-type]
                connection.execute(
                    "INSERT INTO public.orders (region, id, total) VALUES ('late', %s, 1)",
                    (number,),
                )
            opened.append(connection)
        insert_only(scene, rng.randint(0, 3))
        if rng.random() < 0.5:
            scene.start(failpoint="publish.moved=kill").wait()
        scene.run()
        for _ in range(rng.randint(1, 2)):
            connection = opened.pop(rng.randrange(len(opened)))
            connection.commit()
            connection.close()
    for connection in opened:
        connection.commit()
        connection.close()
    oracle.wait_until_left(scene.source)
    scene.run()
    scene.assert_exact()
    scene.assert_swept()
