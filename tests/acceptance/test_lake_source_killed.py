"""SIGKILL while a lake is read: the next run makes everything right."""

from __future__ import annotations

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.test_named_points import kill_at

FEED = """
[sync.feed]
source = "source:public.orders"
target = "lake:raw.orders"
mode = "replace"
"""
PIPELINES = """
import tidegate as tg
from unchanged_status import unchanged

@tg.sync(source="lake:raw.orders", target="warehouse:raw.orders", key=["region", "id"],
         batch_rows=20, partitions=2)
def orders(df):
    from pyspark.sql.functions import udf

    return df.withColumn("status", udf(unchanged, "string")("status"))
"""
POINTS = ("stage.done", "publish.applied", "publish.committed")


def make(make_scene: MakeScene) -> Scene:
    """A source that goes into a lake, and from there through Python into the warehouse."""
    scene = make_scene(2, pipelines=PIPELINES)
    (scene.folder / "unchanged_status.py").write_text("def unchanged(status): return status\n")
    file = scene.folder / "tidegate.toml"
    text = file.read_text().replace(
        "[connections]\n", '[connections]\nlake = { type = "iceberg" }\n'
    )
    file.write_text(text + FEED)
    return scene


def change(scene: Scene, commits: int = 1) -> None:
    """Commits to the lake: rows that come, change and go."""
    for _ in range(commits):
        scene.change(1)
        with psycopg.connect(scene.source, autocommit=True) as connection:
            connection.execute(
                "DELETE FROM public.orders WHERE (region, id) IN"
                " (SELECT region, id FROM public.orders ORDER BY md5(id::text) LIMIT 2)"
            )
        scene.run("feed")


@pytest.mark.chaos
def test_killed_between_staging_and_the_end_and_run_again(make_scene: MakeScene) -> None:
    scene = make(make_scene)
    scene.run("feed")
    kill_at(scene, "batch.planned")
    for point in POINTS:
        change(scene)
        kill_at(scene, point)
    # The table goes on while nobody reads it.
    change(scene)
    scene.run()
    scene.assert_exact()
    assert oracle.staging_tables(scene.destination) == []
