"""An executor dies with a shuffle under way: partitions are written twice and counted once."""

from __future__ import annotations

import os
import signal

import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.processes import until

CLUSTER = {"master": "local-cluster[2,1,1024]"}

PIPELINES = """\
import tidegate as tg
from pyspark.sql import functions as F


@tg.sync(source="source:public.orders", target="warehouse:raw.orders",
         key=["region", "id"], cursor="updated_at", partitions=2)
def orders(df):
    shuffled = df.repartition(4, "id").groupBy("region", "id").agg(
        F.max("status").alias("status"), F.max("total").alias("total"),
        F.max("seq").alias("seq"), F.max("updated_at").alias("updated_at"))
    return shuffled.withColumn("doubled", (F.col("seq") * 2).cast("bigint"))
"""
COLUMNS = ("region", "id", "status", "total", "seq", "updated_at")


@pytest.mark.chaos
def test_an_executor_is_lost_in_the_middle_of_a_shuffle(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(2, spark=CLUSTER, pipelines=PIPELINES, columns=COLUMNS)
    scene.change(6)
    # Every Python worker waits after its first write, which is committed but not yet reported.
    flag = scene.flag("written")
    process = scene.start(failpoint=f"stage.written=wait:{flag}")
    process.wait_for(flag.exists, "the first write")
    process.wait_for(
        lambda: len(oracle.staging_tables(scene.destination)) >= 2, "a write on each executor"
    )
    executors = process.members("CoarseGrainedExecutorBackend")
    assert len(executors) == 2
    os.kill(executors[0], signal.SIGKILL)
    until(lambda: executors[0] not in process.members("CoarseGrainedExecutorBackend"), "its death")

    def over() -> bool:
        """New workers, such as those of the executor that takes its place, wait as well."""
        flag.unlink(missing_ok=True)
        return not process.alive

    until(over, "the run to end")
    ended = process.wait()
    assert ended.code == 0, ended
    until(lambda: not process.members(), "its executors to leave")
    scene.assert_exact()
    doubled = oracle.scalar(
        scene.destination, "SELECT count(*) FROM raw.orders WHERE doubled IS DISTINCT FROM seq * 2"
    )
    assert doubled == 0
    scene.assert_swept()
