"""Who is killed between a job's end and the release of those who wait for it forgets nobody."""

from __future__ import annotations

import signal
from dataclasses import replace

import psycopg
import pytest

from acceptance.conftest import MakeQueue
from acceptance.queueing import Queue
from tidegate.control.jobs import Jobs
from tidegate.model.job import NOTHING, JobRequest, LockAt

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
    return make_queue(
        1, tables=(), pipelines=PIPELINES, spark={"master": "local[1]"}, worker=worker
    )


def states(queue: Queue) -> dict[str, tuple[str, bool]]:
    """The status of each job, and whether it waits for others."""
    with psycopg.connect(queue.scene.control, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT j.name, j.status, coalesce(q.visible_at = 'infinity', false)"
            " FROM tidegate_control.jobs j LEFT JOIN tidegate_control.job_queue q USING (job_id)"
        )
        return {name: (status, waits) for name, status, waits in rows}


def calls(queue: Queue) -> list[str]:
    file = queue.scene.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def submit_task(queue: Queue, name: str = "third") -> None:
    with queue.opened() as project:
        project.submit_task(name)


def submit_chain(queue: Queue) -> None:
    """Jobs that do nothing; a worker ends them in the statement that claims the next."""
    with queue.opened() as project, project.context.plane.connect() as control:
        request = JobRequest(project.name, NOTHING, "", None, lock_at=LockAt.NEVER)
        before: tuple[()] | tuple[object] = ()
        for name in NAMES:
            wanted = replace(request, name=name, needs=before)  # type: ignore[arg-type]
            before = (Jobs(project.context.plane).submit(control, wanted, "test").job_id,)


def kill_at(queue: Queue, point: str, command: str = "worker", *options: str) -> None:
    process = queue.start_command(command, *options, failpoint=f"{point}=kill")
    assert process.wait().code == -signal.SIGKILL


def once(queue: Queue, command: str) -> None:
    ended = queue.start_command(command, "--once").wait()
    assert ended.code == 0, ended


@pytest.mark.parametrize(
    "point", ["job.finishing", "job.settling", "publish.marked", "job.finished"]
)
def test_a_killed_worker_leaves_a_task_done_with_its_marker_and_those_behind_it_free_or_nothing(
    queue: Queue, point: str
) -> None:
    submit_task(queue)
    kill_at(queue, point)
    done = [name for name, (status, _) in states(queue).items() if status == "done"]
    with psycopg.connect(queue.scene.control, autocommit=True) as connection:
        marked = connection.execute("SELECT name FROM tidegate_control.task_markers").fetchall()
    assert sorted(name for (name,) in marked) == sorted(done)
    waits = [name for name, (_, waiting) in states(queue).items() if waiting]
    assert waits == NAMES[len(done) + 1 :]
    queue.burst()
    assert {status for status, _ in states(queue).values()} == {"done"}
    # Killed before its end was written, it was done again, as docs/tasks.md says.
    again = [] if point == "job.finished" else ["first"]
    assert sorted(calls(queue)) == sorted(NAMES + again)
    queue.assert_ended_once()


@pytest.mark.parametrize("command", ["scheduler", "sweeper"])
def test_those_behind_a_job_whose_worker_was_killed_at_its_end_are_released_by_the_next(
    queue: Queue, command: str
) -> None:
    submit_chain(queue)
    kill_at(queue, "job.settling")
    assert states(queue) == {
        "first": ("done", False),
        "second": ("pending", True),
        "third": ("pending", True),
    }
    # Whoever would tell them is killed before it can, and then another does.
    kill_at(queue, "job.settling", command, "--once")
    assert states(queue)["second"] == ("pending", True)
    once(queue, command)
    assert states(queue)["second"] == ("pending", False)
    queue.burst()
    assert set(states(queue).values()) == {("done", False)}
    queue.assert_ended_once()


@pytest.mark.parametrize("command", ["scheduler", "sweeper"])
def test_those_behind_a_failure_whose_worker_was_killed_fail_by_the_next_though_it_is_killed_too(
    queue: Queue, command: str
) -> None:
    (queue.scene.folder / "broken").touch()
    submit_task(queue)
    kill_at(queue, "job.settling")
    assert states(queue) == {
        "first": ("failed", False),
        "second": ("pending", True),
        "third": ("pending", True),
    }
    kill_at(queue, "job.settling@2", command, "--once")
    assert states(queue)["second"] == ("failed", False)
    assert states(queue)["third"] == ("pending", True)
    once(queue, command)
    assert set(states(queue).values()) == {("failed", False)}
    queue.assert_ended_once()
    assert calls(queue) == ["first"]


def look_back(queue: Queue, name: str, since: str) -> None:
    """As if no scheduler had been there for so long."""
    once(queue, "scheduler")
    with psycopg.connect(queue.scene.control, autocommit=True) as connection:
        connection.execute(
            "UPDATE tidegate_control.schedules SET seen_until = now() - %s::interval"
            " WHERE name = %s",
            (since, name),
        )


@pytest.mark.parametrize("point", ["tick.queued", "tick.noted", "tick.committed"])
def test_a_scheduler_killed_in_a_tick_leaves_the_whole_graph_with_it_or_nothing(
    queue: Queue, point: str
) -> None:
    look_back(queue, "yearly", "1 year")
    with psycopg.connect(queue.scene.control, autocommit=True) as connection:
        kill_at(queue, point, "scheduler")
        ticks = connection.execute("SELECT outcome FROM tidegate_control.schedule_ticks").fetchall()
        needs = connection.execute("SELECT count(*) FROM tidegate_control.job_needs").fetchone()
    if point == "tick.committed":
        assert (ticks, needs) == ([("queued",)], (1,))
        assert states(queue) == {"first": ("pending", False), "yearly": ("pending", True)}
    else:
        assert (ticks, needs, states(queue)) == ([], (0,), {})
    once(queue, "scheduler")
    queue.burst()
    assert calls(queue) == ["first", "yearly"]
    queue.assert_ended_once()


def test_a_scheduler_killed_while_it_catches_up_goes_on_where_it_was(queue: Queue) -> None:
    look_back(queue, "daily", "10 days")
    kill_at(queue, "tick.queued@4", "scheduler")
    counted = "SELECT count(*) FROM tidegate_control.schedule_ticks WHERE outcome = 'queued'"
    with psycopg.connect(queue.scene.control, autocommit=True) as connection:
        assert connection.execute(counted).fetchone() == (3,)
        once(queue, "scheduler")
        assert connection.execute(counted).fetchone() == (10,)
    queue.burst()
    assert len(set(calls(queue))) == len(calls(queue)) == 10
    queue.assert_ended_once()
