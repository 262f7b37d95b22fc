"""`--follow`: a line for each load and change of state until the end, without touching the job."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from uuid import UUID

import pytest

from integration.commands import DONE, FAILED
from integration.conftest import MakePlace
from integration.orders import ORDERS
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.insight.following import Follower
from tidegate.insight.jobs import show_job
from tidegate.model.job import JobStatus


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS)) as opened:
        yield opened


@contextmanager
def following(desk: Desk, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tidegate.cli.main", *arguments]
    with subprocess.Popen(
        command,
        cwd=desk.place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], words: str) -> str:
    """The next line of output that has these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it ended without {words!r}")


def told(desk: Desk, *job_ids: UUID, react: dict[str, Callable[[], object]]) -> list[str]:
    """What a follower says, where each thing said may have an answer."""
    said: list[str] = []
    for step in Follower(desk.project.context, job_ids, interval_seconds=0.01).steps():
        assert step.job is not None
        text = f"{step.job.name} {step.action.action if step.action else step.job.state.value}"
        said.append(text)
        react.get(text, lambda: None)()
    return said


def test_a_queued_run_is_followed_from_its_submission_to_its_end(desk: Desk) -> None:
    with following(desk, "run", "orders", "--queue", "--follow") as process:
        job_id = UUID(until(process, "queued as job").split()[-1])
        until(process, "orders: waiting")
        claim = desk.claim(job_id)
        running = until(process, "orders: running, attempt 1")
        assert f"process {desk.worker.pid} on {desk.worker.host}" in running

        def work() -> None:
            desk.load(claim, "u1", rows=1500)
            desk.load(claim, "u2", rows=5)
            result = {"loads": 2, "rows": 1505}
            assert desk.jobs.finish(
                desk.control, claim, JobStatus.DONE, actor="tester", result=result
            )

        thread = Thread(target=work)
        thread.start()
        assert "1,500 rows" in until(process, "orders: load 1")
        assert "5 rows" in until(process, "orders: load 2")
        assert until(process, "orders: done") == "orders: done, 2 loads, 1,505 rows\n"
        thread.join()
        assert process.wait(timeout=60) == DONE


def test_a_shown_job_is_followed_without_telling_twice_and_a_failure_ends_with_1(
    desk: Desk,
) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.load(claim, "u1")
    with following(desk, "job", "show", str(job_id), "--follow") as process:
        until(process, f"to stop it: tidegate job cancel {job_id}")
        desk.give_back(claim, "it broke")
        assert process.stdout is not None
        assert process.stdout.readline() == "orders: waiting: it broke\n"
        again = desk.claim(job_id)
        assert "orders: running, attempt 2" in process.stdout.readline()
        desk.jobs.finish(
            desk.control, again, JobStatus.FAILED, actor="x", error="no more\n  mend it"
        )
        assert process.stdout.readline() == "orders: failed: no more;   mend it\n"
        assert process.wait(timeout=60) == FAILED


def test_an_interrupt_leaves_the_job_alone(desk: Desk) -> None:
    job_id = desk.submit()
    with following(desk, "job", "show", str(job_id), "--follow") as process:
        until(process, f"to give it up: tidegate job cancel {job_id}")
        before = desk.counts()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "left; the job is not touched by that" in err
        assert "Traceback" not in err
    assert (desk.status(job_id), desk.counts()) == ("pending", before)


def test_on_a_terminal_the_lines_are_the_same(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.main", "job", "show", str(job_id), "--follow"],
        cwd=desk.place.folder,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
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
                desk.jobs.finish(desk.control, claim, JobStatus.DONE, actor="x")
    except OSError:
        pass  # what reading from a terminal says when the other side has gone
    finally:
        os.close(ours)
    assert process.wait(timeout=60) == DONE
    assert b"orders: load 1: 12 rows" in out
    assert b"orders: done" in out


def test_several_jobs_are_followed_together_until_the_last_has_ended(desk: Desk) -> None:
    one, other = desk.submit(), desk.submit("customers")

    def work(job_id: UUID, status: JobStatus) -> None:
        claim = desk.claim(job_id)
        desk.load(claim, f"u{job_id}")
        desk.jobs.finish(desk.control, claim, status, actor="x")

    said = told(
        desk,
        one,
        other,
        react={
            "customers waiting": lambda: work(one, JobStatus.DONE),
            "orders done": lambda: work(other, JobStatus.CANCELLED),
        },
    )
    assert said == [
        "orders waiting",
        "customers waiting",
        "orders load",
        "orders done",
        "customers load",
        "customers cancelled",
    ]


def test_a_follower_that_loses_its_session_says_so_and_goes_on(desk: Desk) -> None:
    job_id = desk.submit()
    said: list[str] = []

    def cut() -> None:
        desk.control.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid NOT IN (%s, %s)",
            (desk.control.info.backend_pid, desk.session.info.backend_pid),
        )

    for step in Follower(desk.project.context, [job_id], interval_seconds=0.01).steps():
        said.append("no answer" if step.job is None else step.job.state.value)
        if said == ["waiting"]:
            cut()
        elif step.job is None:
            claim = desk.claim(job_id)
            desk.jobs.finish(desk.control, claim, JobStatus.DONE, actor="x")
    assert said == ["waiting", "no answer", "done"]


def test_a_job_that_has_ended_is_followed_at_once_to_its_end(desk: Desk) -> None:
    job_id = desk.end(JobStatus.CANCELLED, "by ana")
    done = desk.run("job", "show", str(job_id), "--follow", "--json")
    assert (done.code, done.document["status"]) == (FAILED, "cancelled")
    assert told(desk, job_id, react={}) == ["orders cancelled"]
    assert show_job(desk.project.context, str(job_id)).record.status is JobStatus.CANCELLED
