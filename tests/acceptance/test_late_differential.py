"""Random writers, and pgbench: under runs that are killed, target and source end equal."""

from __future__ import annotations

import random
import signal

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.late_workload import EXTRA, Workload
from acceptance.processes import Process, until
from acceptance.test_random_kills import kill_after
from acceptance.test_repair_killed import repair
from chaos_seeds import chosen, seeds
from tidegate.postgres.embedded import EmbeddedServer

CDC: dict[str, object] = {"changes": "cdc", "cursor": None}
SNAPSHOT: dict[str, object] = {"changes": "snapshot", "cursor": None}
# What a seed is about, by its last digit.
CDC_INTO_LAKE = (4, 9)
BY_SNAPSHOT = (2, 5)
BY_SNAPSHOT_AND_REPAIRED = (7,)
SEEDS = seeds((0,))
MORE_SEEDS = seeds(range(1, 210))
KILLS = 3
STEPS = 60
COMMITS = 10
POINTS = (
    "job.claimed",
    "batch.planned",
    "stage.done",
    "publish.applied",
    "publish.moved",
    "publish.committed",
    "job.finishing",
)
POINTS_OF_CDC = (*POINTS, "slot.made", "changes.landed", "slot.noted", "slot.advanced")
# Of these small tables, all of it warm.
RUN_SECONDS = 1.5
LAKE_RUN_SECONDS = 4.0
TRIES = 12
BENCHED = {
    "pgbench_accounts": ("aid", "bid", "abalance", "filler"),
    "pgbench_tellers": ("tid", "bid", "tbalance", "filler"),
    "pgbench_branches": ("bid", "bbalance", "filler"),
}
# Rows of other clients are met: they are waited for, or gone by then.
ORDERS = r"""
\set old random(1, 400)
BEGIN;
INSERT INTO orders (region, id, total) VALUES ('bench', nextval('bench_ids'), :client_id);
SAVEPOINT a;
UPDATE orders SET total = total + 1, updated_at = now() WHERE (region, id) = ('bench', :old);
ROLLBACK TO SAVEPOINT a;
DELETE FROM orders WHERE (region, id) = ('bench', :old);
UPDATE orders SET id = nextval('bench_ids') WHERE (region, id) = ('bench', :old + 1);
COMMIT;
"""


def kill_once(scene: Scene, rng: random.Random, points: tuple[str, ...], *, soon: bool) -> bool:
    """One run, killed at a moment or at a point; False when it got through.

    With `soon` at a point, the first time that it is reached.
    """
    if not soon and rng.random() < 0.5:
        seconds = LAKE_RUN_SECONDS if scene.lake else RUN_SECONDS
        return kill_after(scene.start(), rng.uniform(0.02, seconds))
    point = f"{rng.choice(points)}@{1 if soon else rng.choice([1, 1, 2])}"
    ended = scene.start(failpoint=f"{point}=kill").wait()
    assert ended.code in (0, -signal.SIGKILL), ended
    return ended.code != 0


def work_and_compare(make_scene: MakeScene, seed: int) -> None:
    rng = random.Random(f"kills {seed}")
    kind = seed % 10
    repaired = kind in BY_SNAPSHOT_AND_REPAIRED
    cdc = not repaired and kind not in BY_SNAPSHOT
    scene = make_scene(
        rng.choice([1, 2, 2, 3]),
        seed=seed,
        sync=CDC if cdc else SNAPSHOT,
        batch_rows=rng.choice([30, 100, 400]),
        lake=kind in CDC_INTO_LAKE,
    )
    with Workload(scene.source, seed, removes=cdc or repaired) as workload:
        workload.write(STEPS)
        if rng.random() < 0.5:
            scene.run()
        kills = tries = 0
        while kills < KILLS and tries < TRIES:
            tries += 1
            workload.write(STEPS)
            soon = not kills and tries > TRIES // 2
            kills += kill_once(scene, rng, POINTS_OF_CDC if cdc else POINTS, soon=soon)
            if kills >= KILLS // 2:
                workload.add_column()
        until(lambda: workload.write(1) or workload.commits > COMMITS, "enough commits")
    assert kills, "no run was killed"
    scene.columns = (*scene.columns, EXTRA)
    scene.wait_until_left()
    scene.run()
    if repaired:
        ended = repair(scene)
        assert ended.code == 0, ended
    loads = scene.assert_exact()
    assert "found nothing new" in scene.run().out
    assert scene.assert_exact() == loads


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in MORE_SEEDS)]
)
def test_target_equals_source_after_a_random_workload_under_kills(
    make_scene: MakeScene, seed: int
) -> None:
    work_and_compare(make_scene, chosen(seed))


def pgbench(scene: Scene, server: EmbeddedServer, *words: str) -> Process:
    program = str(server.bin_directory / "pgbench")
    return scene.start_process([program, *words, scene.source], warm=False)


@pytest.mark.chaos
def test_target_equals_source_after_pgbench(make_scene: MakeScene, server: EmbeddedServer) -> None:
    """Many clients at once, while runs read their tables by their changes."""
    syncs = {
        f"sync.{table}": {
            "source": f"source:public.{table}",
            "target": f"warehouse:raw.{table}",
            "changes": "cdc",
        }
        for table in BENCHED
    }
    scene = make_scene(2, sync=CDC, sections=dict(syncs), batch_rows=2000)
    script = scene.folder / "orders.sql"
    script.write_text(ORDERS, encoding="utf-8")
    made = pgbench(scene, server, "-i", "-q").wait()
    assert made.code == 0, made
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE bench_ids")
        # A few rows that are written often rather than many that nobody writes.
        connection.execute("DELETE FROM pgbench_accounts WHERE aid % 20 > 0")
    clients = ("-n", "-c", "4", "-j", "2", "-R", "150", "-T", "10")
    names = ("orders", *BENCHED)
    scene.run(*names)
    writer = pgbench(scene, server, *clients, "-b", "tpcb-like", "-f", str(script))
    while writer.alive:
        scene.run(*names)
        killed = scene.start("pgbench_branches", failpoint="publish.moved=kill").wait()
        assert killed.code in (0, -signal.SIGKILL), killed
    ended = writer.wait()
    assert ended.code == 0, ended
    assert "number of failed transactions: 0 " in ended.out, ended
    scene.run(*names)
    assert scene.assert_exact() > len(names), "nothing was read but the first copies"
    for table, columns in BENCHED.items():
        oracle.assert_same_rows(
            oracle.read_rows(scene.source, ("public", table), columns, columns[:1]),
            oracle.read_rows(scene.destination, ("raw", table), columns, columns[:1]),
        )
