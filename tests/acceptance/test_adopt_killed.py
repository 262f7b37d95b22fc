"""SIGKILL while a filled table is adopted: before the commit nothing is there, after it all is."""

from __future__ import annotations

import signal

import psycopg

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.processes import Ended, WarmProcess


def adopt(scene: Scene, failpoint: str | None = None) -> Ended:
    log = scene.folder / f"adopt-{failpoint}"
    command = ["tidegate", "adopt", "orders", "--from-target-max"]
    armed = {"TIDEGATE_FAILPOINT": f"{failpoint}=kill"} if failpoint else {}
    return WarmProcess([*command, "--project", str(scene.folder)], log, armed).wait()


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
    with psycopg.connect(scene.destination) as connection:
        return connection.execute(
            "SELECT s.version, s.rows_synced, l.rows FROM tidegate.etl_state s"
            " LEFT JOIN tidegate.watermark_log l USING (pipeline_name, table_name)"
        ).fetchall()


def test_killed_before_the_commit_it_leaves_nothing_and_can_be_repeated(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(3)
    filled = fill(scene)
    assert adopt(scene, "adopt.moved").code == -signal.SIGKILL
    assert recorded(scene) == []
    done = adopt(scene)
    assert done.code == 0, done
    assert recorded(scene) == [(1, filled, filled)]
    oracle.assert_idle(scene.control)
    scene.change()
    loads = scene.run().out
    assert "found nothing" not in loads
    scene.assert_exact()


def test_killed_after_the_commit_the_next_run_goes_on_from_there(make_scene: MakeScene) -> None:
    scene = make_scene(2)
    filled = fill(scene)
    assert adopt(scene, "adopt.committed").code == -signal.SIGKILL
    assert recorded(scene) == [(1, filled, filled)]
    again = adopt(scene)
    assert again.code == 2
    assert "has a watermark already" in again.err
    scene.change()
    scene.run()
    scene.assert_exact()
