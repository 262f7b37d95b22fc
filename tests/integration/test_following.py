"""`--follow`: a line for each load and change of state until the end, without touching the job."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from acceptance.processes import WarmProcess
from forked import Forked
from integration.commands import DONE, FAILED
from integration.job_store import shared
from integration.orders import ORDERS
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.jobs.job import JobStatus
from tidegate.jobs.queued_job import JobFollower

opened, desk = shared(lambda places: open_desk(places(ORDERS, CUSTOMERS)))


@contextmanager
def following(desk: Desk, *arguments: str) -> Iterator[WarmProcess]:
    command = ["tidegate", *arguments, "--follow"]
    process = WarmProcess(command, desk.place.folder / arguments[0], folder=desk.place.folder)
    try:
        yield process
    finally:
        process.kill_all()


def told(desk: Desk, *job_ids: UUID, react: Mapping[str, Callable[[], object]]) -> list[str]:
    """What a follower says, where each thing said may have an answer."""
    said: list[str] = []
    for step in JobFollower(desk.project.context, job_ids, interval_seconds=0.01).steps():
        job, action = step.job, step.action
        if job is None:
            text = "no answer"
        else:
            text = f"{job.name} {action.action if action else job.state.value}"
        said.append(text)
        react.get(text, lambda: None)()
    return said


def test_a_queued_run_is_followed_through_a_retry_to_its_end(desk: Desk) -> None:
    with following(desk, "run", "orders", "--queue") as process:

        def lines() -> list[str]:
            return process.out.splitlines()

        def said(words: str) -> str:
            process.wait_for(lambda: any(words in line for line in lines()), words)
            return next(line for line in lines() if words in line)

        job_id = UUID(said("queued as job").split()[-1])
        said("orders: waiting")
        claim = desk.claim(job_id)
        running = said("orders: running, attempt 1")
        assert f"process {desk.worker.pid} on {desk.worker.host}" in running
        desk.load(claim, "u1", rows=1500)
        assert "1,500 rows" in said("orders: load 1")
        desk.give_back(claim, "it broke")
        said("orders: waiting: it broke")
        again = desk.claim(job_id)
        said("orders: running, attempt 2")
        desk.load(again, "u2", rows=5)
        assert desk.finish(again, result={"loads": 2, "rows": 1505})
        assert process.wait().code == DONE
        assert lines()[-1] == "orders: done, 2 loads, 1,505 rows"
        assert process.out.count("load 1") == 1


def test_an_interrupt_leaves_the_job_alone(desk: Desk) -> None:
    job_id = desk.submit()
    with following(desk, "job", "show", str(job_id)) as process:
        words = f"to give it up: tidegate job cancel {job_id}"
        process.wait_for(lambda: words in process.out, words)
        before = desk.counts()
        process.send(signal.SIGINT)
        ended = process.wait()
        assert ended.code == 130
        assert "left; the job is not touched by that" in ended.err
        assert "Traceback" not in ended.err
    assert (desk.status(job_id), desk.counts()) == ("pending", before)


def test_on_a_terminal_the_lines_are_the_same_and_a_failure_ends_with_1(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    ours, theirs = pty.openpty()
    process = Forked(
        ["tidegate", "job", "show", str(job_id), "--follow"],
        (theirs, theirs, theirs),
        {**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        desk.place.folder,
    )
    os.close(theirs)
    out = b""
    ended = False
    try:
        while chunk := os.read(ours, 65536):
            out += chunk
            # The spinner is there, so somebody is watching.
            if b"orders: running, " in out and not ended:
                ended = True
                desk.load(claim, "u1", rows=12)
                desk.finish(claim, JobStatus.FAILED, "no more\n  mend it")
    except OSError:
        pass  # what reading from a terminal says when the other side has gone
    finally:
        os.close(ours)
    assert process.wait(60) == FAILED
    assert b"orders: load 1: 12 rows" in out
    assert b"orders: failed: no more;   mend it" in out


def test_several_jobs_are_followed_together_until_the_last_has_ended(desk: Desk) -> None:
    one, other = desk.submit(), desk.submit("customers")

    def work(job_id: UUID, status: JobStatus) -> None:
        claim = desk.claim(job_id)
        desk.load(claim, f"u{job_id}")
        desk.finish(claim, status)

    def cut() -> None:
        desk.control.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid NOT IN (%s, %s)",
            (desk.control.info.backend_pid, desk.own.info.backend_pid),
        )

    react = {
        "customers waiting": cut,
        "no answer": lambda: work(one, JobStatus.DONE),
        "orders done": lambda: work(other, JobStatus.CANCELLED),
    }
    # One that loses its session says so and goes on.
    assert told(desk, one, other, react=react) == [
        "orders waiting",
        "customers waiting",
        "no answer",
        "orders load",
        "orders done",
        "customers load",
        "customers cancelled",
    ]
    done = desk.run("job", "show", str(other), "--follow", "--json")
    assert (done.code, done.document["status"]) == (FAILED, "cancelled")
    assert told(desk, other, react={}) == ["customers load", "customers cancelled"]
