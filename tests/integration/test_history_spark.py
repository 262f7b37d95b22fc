"""What a run has cost Spark is remembered with it, told by Spark itself, and fails nothing."""

from __future__ import annotations

from typing import Any

import pytest

from integration.commands import DONE
from integration.commands import tidegate as command
from integration.conftest import MakePlace, MakeProject
from integration.orders import CREATE, FILL, ORDERS
from integration.queued import run_here
from tidegate.jobs.history.record import RunStatus, TaskRecord
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.spark.tags import shared, spark_measures, tagged, work_tag

pytestmark = pytest.mark.usefixtures("spark_copies")

PIPELINES = """
import tidegate as tg

@tg.task
def shuffled(ctx, partitions: int, fails: bool = False):
    found = ctx.spark.range(0, 1_000, 1, partitions).selectExpr("id % 7 AS k")
    assert found.groupBy("k").count().count() == 7
    if fails:
        raise ValueError("the disk is full")

@tg.task
def idle(ctx): ...

@tg.task
def kills_spark(ctx):
    assert ctx.spark.range(10).count() == 10
    ctx.spark.sparkContext._gateway.proc.kill()
    ctx.spark.sparkContext._gateway.proc.wait()

@tg.task
def stops_spark(ctx):
    assert ctx.spark.range(10).count() == 10
    ctx.spark.stop()
"""


def newest(project: Project, name: str) -> TaskRecord:
    return next(iter(project.history.find_all_by_name(name)))


def cost(project: Project, name: str) -> Any:
    return (newest(project, name).metrics or {}).get("spark")


def test_each_sync_and_task_is_remembered_with_its_own_cost_whether_it_is_done_or_fails(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, pipelines=PIPELINES, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    sync = cost(project, "orders")
    assert min(sync["jobs"], sync["stages"], sync["tasks"], sync["executor_run_ms"]) >= 1
    assert sync["failed_tasks"] == 0
    assert not {"shared_jobs", "partial"} & set(sync)

    assert project.run_task("shuffled", partitions=2).exit_code == 0
    small = cost(project, "shuffled")
    assert project.run_task("shuffled", partitions=9, fails=True).exit_code == 1
    large = cost(project, "shuffled")
    assert newest(project, "shuffled").status is RunStatus.FAILED
    assert large["tasks"] - small["tasks"] == 7, "the tasks of one are not the other's"
    for found in (small, large):
        assert found["shuffle_write_bytes"] > 0
        assert found["shuffle_read_bytes"] > 0
        assert found["executor_cpu_ms"] <= found["executor_run_ms"] + 50
        assert found["peak_memory_bytes"] > 0
    project.run_task("idle")
    assert cost(project, "idle") is None

    out = run_here(place, "history", "--id", str(newest(project, "shuffled").id)).out
    assert "  spark:     1 job, " in out
    assert f", {large['tasks']} tasks\n             run " in out
    assert "\n             shuffle read " in out
    assert all(len(line) <= 80 for line in out.partition("what happened")[0].splitlines())


def test_shared_jobs_and_many_stages_are_said_to_be_so(
    warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = warm_spark.get()

    def run(partitions: int) -> None:
        session.sparkContext._jsc.sc().range(0, 10, 1, partitions).count()

    assert spark_measures("nobody") is None
    before = session.sparkContext.getLocalProperty("spark.job.tags")
    with shared(session, ["first", "second"]):
        run(3)
    assert session.sparkContext.getLocalProperty("spark.job.tags") == before
    with tagged(session, work_tag("first")), shared(session, ["first"]):
        run(5)
    first, second = spark_measures("first"), spark_measures("second")
    assert first is not None
    assert second is not None
    assert (first["jobs"], first["tasks"], first["shared_jobs"]) == (2, 8, 1)
    assert (second["jobs"], second["tasks"], second["shared_jobs"]) == (1, 3, 1)

    monkeypatch.setattr("tidegate.spark.tags._MOST_STAGES", 2)
    with tagged(session, work_tag("many")):
        for partitions in (2, 3, 4):
            run(partitions)
    found = spark_measures("many")
    assert found is not None
    assert (found["jobs"], found["stages"], found["tasks"]) == (3, 2, 7)
    assert found["partial"] is True

    # A context that was stopped beneath us has none of what is asked.
    monkeypatch.setattr(session.sparkContext, "_jsc", None)
    assert spark_measures("many") is None


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["kills_spark", "stops_spark"])
def test_a_spark_that_is_gone_at_the_end_fails_no_job(make_place: MakePlace, name: str) -> None:
    place = make_place(ORDERS, pipelines=PIPELINES, databases=2)
    done = command(place.folder, "run", name)
    assert done.code == DONE, done.err
    with place.open() as project:
        assert newest(project, name).status is RunStatus.DONE
        assert cost(project, name) is None
