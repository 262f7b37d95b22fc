"""Who is killed between a job's end and the release of those who wait for it forgets nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acceptance.conftest import MakeQueue
from acceptance.harness import NO_SPARK
from acceptance.oracle import rows, scalar
from acceptance.queueing import Queue
from tidegate.jobs.job import NOTHING, JobRequest, LockAt
from tidegate.jobs.queue import Jobs

PIPELINES = """
from datetime import date
from pathlib import Path
import tidegate as tg

HERE = Path(__file__).parent

def note(name):
    with (HERE / "calls").open("a") as calls:
        calls.write(name + "\\n")

@tg.task(retries=0)
def first(ctx):
    note("first")
    if (HERE / "broken").exists():
        raise ValueError("broken")

@tg.task(requires=[first])
def second(ctx):
    note("second")

@tg.task(requires=[second])
def third(ctx):
    note("third")

@tg.task(requires=[first], schedule="0 0 1 1 *")
def yearly(ctx):
    note("yearly")

@tg.task(schedule="0 0 * * *", catch_up="all")
def daily(ctx, day: date):
    note(f"daily {day}")
"""
NAMES = ["first", "second", "third"]


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue:
    # Nobody sweeps unless told to: it must be the one who is named who goes on.
    worker = {"poll": "1s", "sweep": "1 hour", "lease": "2s", "heartbeat": "0.5s"}
    return make_queue(1, tables=(), pipelines=PIPELINES, spark=NO_SPARK, worker=worker)


def states(queue: Queue) -> dict[str, tuple[str, bool]]:
    """The status of each job, and whether it waits for others."""
    query = (
        "SELECT j.name, j.status, coalesce(q.visible_at = 'infinity', false)"
        " FROM tidegate_control.jobs j LEFT JOIN tidegate_control.job_queue q USING (job_id)"
    )
    return {name: (status, waits) for name, status, waits in rows(queue.scene.control, query)}


def calls(queue: Queue) -> list[str]:
    file = queue.scene.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def submit_task(queue: Queue) -> None:
    with queue.opened() as project:
        project.submit_task("third")


def schedule(queue: Queue) -> None:
    """One look of a scheduler."""
    with queue.opened() as project, project.context.plane.connect() as control:
        project.scheduler("test").run_once(control)


def submit_chain(queue: Queue) -> None:
    """Jobs that do nothing; a worker ends them in the statement that claims the next."""
    with queue.opened() as project, project.context.plane.connect() as control:
        request = JobRequest(project.name, NOTHING, "", None, lock_at=LockAt.NEVER)
        before: tuple[()] | tuple[object] = ()
        for name in NAMES:
            wanted = replace(request, name=name, needs=before)  # type: ignore[arg-type]
            before = (Jobs(project.context.plane).submit(control, wanted, "test").job_id,)


def once(queue: Queue, command: str) -> None:
    if command == "sweeper":
        queue.sweep()
    else:
        schedule(queue)


def test_a_killed_worker_leaves_a_task_done_with_its_marker_and_those_behind_it_free_or_nothing(
    queue: Queue,
) -> None:
    """Each worker takes up the task that the last one left, and dies a point later."""
    submit_task(queue)
    before_its_end = ("job.finishing", "job.settling", "publish.marked")
    for point in (*before_its_end, "job.finished"):
        queue.scene.kill_at(point, "worker")
        done = [name for name, (status, _) in states(queue).items() if status == "done"]
        assert done == ([] if point in before_its_end else ["first"]), point
        marked = rows(queue.scene.control, "SELECT name FROM tidegate_control.task_markers")
        assert sorted(name for (name,) in marked) == sorted(done), point
        waits = [name for name, (_, waiting) in states(queue).items() if waiting]
        assert waits == NAMES[len(done) + 1 :], point
    queue.burst()
    assert {status for status, _ in states(queue).values()} == {"done"}
    # Killed before its end was written, it was done again, as docs/guides/tasks.md says.
    assert sorted(calls(queue)) == sorted(NAMES + ["first"] * len(before_its_end))
    queue.assert_ended_once()


@pytest.mark.parametrize("command", ["sweeper", pytest.param("scheduler", marks=pytest.mark.chaos)])
def test_those_behind_a_job_whose_worker_was_killed_at_its_end_are_released_by_the_next(
    queue: Queue, command: str
) -> None:
    submit_chain(queue)
    queue.scene.kill_at("job.settling", "worker")
    assert states(queue) == {
        "first": ("done", False),
        "second": ("pending", True),
        "third": ("pending", True),
    }
    # Whoever would tell them is killed before it can, and then another does.
    queue.scene.kill_at("job.settling", command, "--once")
    assert states(queue)["second"] == ("pending", True)
    once(queue, command)
    assert states(queue)["second"] == ("pending", False)
    queue.burst()
    assert set(states(queue).values()) == {("done", False)}
    queue.assert_ended_once()


@pytest.mark.parametrize("command", ["scheduler", pytest.param("sweeper", marks=pytest.mark.chaos)])
def test_those_behind_a_failure_whose_worker_was_killed_fail_by_the_next_though_it_is_killed_too(
    queue: Queue, command: str
) -> None:
    (queue.scene.folder / "broken").touch()
    submit_task(queue)
    queue.scene.kill_at("job.settling", "worker")
    assert states(queue) == {
        "first": ("failed", False),
        "second": ("pending", True),
        "third": ("pending", True),
    }
    queue.scene.kill_at("job.settling@2", command, "--once")
    assert states(queue)["second"] == ("failed", False)
    assert states(queue)["third"] == ("pending", True)
    once(queue, command)
    assert set(states(queue).values()) == {("failed", False)}
    queue.assert_ended_once()
    assert calls(queue) == ["first"]


def look_back(queue: Queue, name: str, since: str) -> None:
    """As if no scheduler had been there for so long."""
    schedule(queue)
    rows(
        queue.scene.control,
        "UPDATE tidegate_control.schedules SET seen_until = now() - %s::interval WHERE name = %s",
        since,
        name,
    )


def test_a_scheduler_killed_in_a_tick_leaves_the_whole_graph_with_it_or_nothing(
    queue: Queue,
) -> None:
    look_back(queue, "yearly", "1 year")
    control = queue.scene.control
    for point in ("tick.queued", "tick.noted", "tick.committed"):
        queue.scene.kill_at(point, "scheduler")
        ticks = rows(control, "SELECT outcome FROM tidegate_control.schedule_ticks")
        needs = scalar(control, "SELECT count(*) FROM tidegate_control.job_needs")
        if point != "tick.committed":
            assert (ticks, needs, states(queue)) == ([], 0, {}), point
    assert (ticks, needs) == ([("queued",)], 1)
    assert states(queue) == {"first": ("pending", False), "yearly": ("pending", True)}
    schedule(queue)
    queue.burst()
    assert calls(queue) == ["first", "yearly"]
    queue.assert_ended_once()


def test_a_scheduler_killed_while_it_catches_up_goes_on_where_it_was(queue: Queue) -> None:
    look_back(queue, "daily", "10 days")
    queue.scene.kill_at("tick.queued@4", "scheduler")
    counted = "SELECT count(*) FROM tidegate_control.schedule_ticks WHERE outcome = 'queued'"
    assert scalar(queue.scene.control, counted) == 3
    schedule(queue)
    assert scalar(queue.scene.control, counted) == 10
    queue.burst()
    assert len(set(calls(queue))) == len(calls(queue)) == 10
    queue.assert_ended_once()
