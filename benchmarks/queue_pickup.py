"""How long an idle worker takes to pick a job up, beside a bare NOTIFY.

A job's clock starts when its submitter's commit has returned. What a queue records as a job's start
is the start of the claim's transaction, before anything is claimed, and would look quick however
slow the claim; so the bar is held against the next stamp, that of the end of a job that does
nothing. Both are printed. A bare NOTIFY is timed from its sending until another process has it.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import psycopg

from benchmarks.queue_side import Stamps
from benchmarks.report import Report
from tidegate.postgres.connection import Connection

CHANNEL = "bare"
SPACING_SECONDS = (0.02, 0.06)
BAR = 5.0


class Waiting(Protocol):
    """A queue that a worker can wait at."""

    def empty(self) -> None: ...
    def wait(self) -> None: ...
    def submit(self) -> tuple[str, float]: ...
    def stamps(self) -> dict[str, Stamps]: ...


def run(
    report: Report, queues: Mapping[str, Waiting], conninfo: str, notifier: Connection, times: int
) -> None:
    """All workers idle at once; submits and bare notifications by turns, so noise hits all."""
    listener = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert listener.stdin is not None
    assert listener.stdout is not None
    listener.stdin.write(conninfo + "\n")
    listener.stdin.flush()
    listener.stdout.readline()
    try:
        for queue in queues.values():
            queue.empty()
            queue.wait()
        for queue in queues.values():
            _until(lambda queue=queue: queue.submit()[0] in _soon(queue))  # type: ignore[misc]
        sent: list[float] = []
        submitted: dict[str, dict[str, float]] = {name: {} for name in queues}
        for _ in range(times):
            sent.append(time.time())
            notifier.execute(f"NOTIFY {CHANNEL}")
            _pause()
            for name, queue in queues.items():
                job_id, committed_at = queue.submit()
                submitted[name][job_id] = committed_at
                _pause()
        received = [float(listener.stdout.readline()) for _ in range(times)]
        bare = [there - here for here, there in zip(sent, received, strict=True)]
        _print(report, "bare NOTIFY", bare)
        for name, queue in queues.items():
            _until(lambda queue=queue, name=name: submitted[name].keys() <= queue.stamps().keys())  # type: ignore[misc]
            stamps = queue.stamps()
            started = [stamps[job].started - at for job, at in submitted[name].items()]
            ended = [stamps[job].finished - at for job, at in submitted[name].items()]
            _print(report, f"{name}, until its claim", started)
            _print(report, f"{name}, until its end", ended)
            if name == "tidegate":
                ratio = _percentile(ended, 95) / _percentile(bare, 95)
                report.ratio("pick-up p95 / bare NOTIFY p95", ratio, at_most=BAR)
    finally:
        listener.kill()
        listener.wait()


def _soon(queue: Waiting) -> set[str]:
    time.sleep(0.5)
    return set(queue.stamps())


def _pause() -> None:
    time.sleep(random.uniform(*SPACING_SECONDS))


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError("a job was not picked up within a minute")
        time.sleep(0.1)


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _print(report: Report, name: str, values: list[float]) -> None:
    p50, p95 = (_percentile(values, percent) * 1000 for percent in (50, 95))
    report.note(f"pick-up, {name}: p50 {p50:.2f} ms, p95 {p95:.2f} ms")


def listen() -> None:
    """The other process: print when each notification came."""
    with psycopg.connect(sys.stdin.readline().strip(), autocommit=True) as session:
        session.execute(f"LISTEN {CHANNEL}")
        print("listening", flush=True)
        for _ in session.notifies():
            print(time.time(), flush=True)


if __name__ == "__main__":
    listen()
