"""pgbench writes, many clients at once, while runs read its tables by their changes."""

from __future__ import annotations

import signal

import psycopg

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.processes import Process
from tidegate.postgres.embedded import EmbeddedServer

SECONDS = 5
CDC: dict[str, object] = {"changes": "cdc", "cursor": None}
TABLES = {
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


def test_target_equals_source_after_pgbench(make_scene: MakeScene, server: EmbeddedServer) -> None:
    syncs = {
        f"sync.{table}": {
            "source": f"source:public.{table}",
            "target": f"warehouse:raw.{table}",
            "changes": "cdc",
        }
        for table in TABLES
    }
    scene = make_scene(2, sync=CDC, sections=dict(syncs), batch_rows=2000)
    script = scene.folder / "orders.sql"
    script.write_text(ORDERS, encoding="utf-8")
    pgbench = str(server.bin_directory / "pgbench")
    made = Process([pgbench, "-i", "-q", scene.source], scene.folder / "made")
    scene.ends(made)
    assert made.wait().code == 0, made.err
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE bench_ids")
        # A few rows that are written often rather than many that nobody writes.
        connection.execute("DELETE FROM pgbench_accounts WHERE aid % 20 > 0")
    clients = ["-n", "-c", "4", "-j", "2", "-R", "150", "-T", str(SECONDS)]
    writer = Process(
        [pgbench, *clients, "-b", "tpcb-like", "-f", str(script), scene.source],
        scene.folder / "pgbench",
    )
    scene.ends(writer)
    names = ("orders", *TABLES)
    rounds = 0
    while writer.alive or rounds == 0:
        for name in names:
            scene.run(name)
        killed = scene.start("pgbench_branches", failpoint="publish.moved=kill").wait()
        assert killed.code in (0, -signal.SIGKILL), killed
        rounds += 1
    ended = writer.wait()
    assert ended.code == 0, ended
    assert "number of failed transactions: 0 " in ended.out, ended
    for name in names:
        scene.run(name)
    assert scene.assert_exact() > len(names), "nothing was read but the first copies"
    for table, columns in TABLES.items():
        oracle.assert_same_rows(
            oracle.read_rows(scene.source, ("public", table), columns, columns[:1]),
            oracle.read_rows(scene.destination, ("raw", table), columns, columns[:1]),
        )
