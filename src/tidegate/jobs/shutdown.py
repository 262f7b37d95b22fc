"""Stop on a signal, release jobs, run several processes together."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from tidegate.core.errors import UsageError
from tidegate.core.log import log
from tidegate.jobs.cancel import cancel_job
from tidegate.jobs.context import JobContext
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.history.writer import record_lost_attempts
from tidegate.jobs.job import LOADS, Claim, JobStatus
from tidegate.jobs.lease import Lease
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import is_published, raise_fence_above, target_of_job
from tidegate.jobs.worker_records import user_name
from tidegate.postgres.connection import Connection

PATIENCE_SECONDS = 2.0
# Of a parent that died the kernel tells once for each of its threads.
_ECHO_SECONDS = 0.3
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """A thread that waits for a signal to end, has the work given back, and ends the process.

    The signal's number reaches it through a socket that the C handler writes to, so no Python
    code of the main thread has to run for it. A second signal ends the process at once.
    """

    def __init__(
        self,
        leave: Callable[[str], int],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        signals: Sequence[signal.Signals] = SIGNALS,
    ) -> None:
        self._leave = leave
        self._patience = patience_seconds
        self._signals = tuple(signals)
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        self._before: dict[int, object] = {}
        self._thread = threading.Thread(target=self._watch, name="tidegate-shutdown", daemon=True)

    def __enter__(self) -> Shutdown:
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for number in self._signals:
            self._before[number] = signal.signal(number, lambda *_: None)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._told.send(b"\0")
        self._thread.join()
        self._heard.close()
        self._told.close()

    def _watch(self) -> None:
        number = self._next()
        if number is None:
            return
        name = signal.Signals(number).name
        log.warning("told_to_stop", signal=name)
        going = threading.Thread(target=self._go, args=(name,), daemon=True)
        going.start()
        deadline = time.monotonic() + self._patience
        again_from = time.monotonic() + _ECHO_SECONDS
        try:
            if self._next(deadline, again_from) is None:
                # The work has ended by itself; leaving it, which has begun, says how.
                going.join(self._patience)
            else:
                log.warning("told_twice")
        except TimeoutError:
            log.warning("leaves_work_behind", after_seconds=self._patience)
        _end(1)

    def _next(self, deadline: float | None = None, from_: float = 0.0) -> int | None:
        """The next signal that counts; None when the work has ended."""
        while True:
            if deadline is not None:
                self._heard.settimeout(max(0.001, deadline - time.monotonic()))
            number = self._heard.recv(1)[0]
            if number == 0:
                return None
            if number in self._signals and time.monotonic() >= from_:
                return number

    def _go(self, name: str) -> None:
        code = 1
        try:
            code = self._leave(f"Worker received {name}")
        except Exception as error:
            log.warning("left_untidily", error=f"{type(error).__name__}: {error}")
        _end(code)


def _end(code: int) -> None:
    """End without waiting for any thread; Spark's JVM goes when its pipe to us closes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody may read it any more
            stream.flush()
    os._exit(code)


_QUICK_DEATH_SECONDS = 10.0
_QUICK_DEATHS = 5
_STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
# Looked up here: between fork and exec nothing may be loaded.
_prctl = ctypes.CDLL(None).prctl


@dataclass(slots=True)
class Supervised:
    """One process, what starts it, and how often it died young."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[str] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    quick_deaths: int = 0
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Starts processes, starts those that die again, and ends them all when told to."""

    def __init__(self, members: Sequence[Supervised], *, say: Callable[[str], None]) -> None:
        self._members = members
        self._say = say
        self._told = threading.Event()
        self._hard = threading.Event()

    def run(self) -> int:
        """Until a signal, or until one cannot be kept alive; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)
        # A child that ends wakes the wait below.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        failed = False
        while not self._told.is_set() and not failed:
            kept = [self._keep(member) for member in self._members]
            failed = not all(kept)
            if not failed:
                self._told.wait(0.2)
        return self._stop() or int(failed)

    def _hear(self, *_: object) -> None:
        if self._told.is_set():
            self._hard.set()
        self._told.set()

    def _keep(self, member: Supervised) -> bool:
        """See that a member runs; False when there is no point in starting it again."""
        if member.alive:
            return True
        now = time.monotonic()
        if member.process is not None and member.start_at <= member.started_at:
            code = member.process.returncode
            young = now - member.started_at < _QUICK_DEATH_SECONDS
            member.quick_deaths = member.quick_deaths + 1 if young else 0
            if member.quick_deaths >= _QUICK_DEATHS:
                self._say(f"{member.name}: ended {_QUICK_DEATHS} times in a row; giving up")
                return False
            pause = min(0.5 * 2**member.quick_deaths, 10.0) if young else 0.0
            member.start_at = max(now + pause, member.started_at + 1e-6)
            self._say(f"{member.name}: ended with {code}; starting it again in {pause:.1f} s")
        if now >= member.start_at:
            self._start(member)
        return True

    def _start(self, member: Supervised) -> None:
        member.process = subprocess.Popen(
            member.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        member.started_at = member.start_at = time.monotonic()
        reader = threading.Thread(target=self._relay, args=(member.name, member.process))
        reader.daemon = True
        reader.start()
        member.readers.append(reader)

    def _relay(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._say(f"{name} | {line.rstrip()}")

    def _stop(self) -> int:
        """Ask all at once, wait, and end those that did not hear; the worst of their codes."""
        living = [member for member in self._members if member.alive]
        for member in living:
            assert member.process is not None
            member.process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        while any(member.alive for member in living):
            if time.monotonic() > deadline or self._hard.is_set():
                break
            self._hard.wait(0.05)
        worst = 0
        for member in living:
            assert member.process is not None
            if member.alive:
                os.killpg(member.process.pid, signal.SIGKILL)
            worst = max(worst, int(member.process.wait() != 0))
            for reader in member.readers:
                reader.join(timeout=1.0)
        return worst


def _die_with_parent() -> None:
    """Even a killed supervisor leaves nothing running."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def release_jobs(context: JobContext, heartbeat: Heartbeat, reason: str, *, cancel: bool) -> int:
    """Leave the jobs of a process that works its own; returns how many were still its own.

    A person who presses Ctrl-C wants the work to end: it is cancelled. Whoever stops the machine
    does not: the jobs go back, for the next run or a worker to take up.
    """
    leases = heartbeat.leases()

    def leave(lease: Lease) -> bool:
        actor = f"{user_name()} ({heartbeat.worker.command})"
        if not cancel:
            return release_job(context, lease.claim, actor=actor, reason=reason)
        with context.plane.connect() as control, suppress(UsageError):
            cancel_job(context, control, lease.claim.job_id, actor=f"{actor}: {reason}")
            return True
        return False

    with ThreadPoolExecutor(max(1, len(leases))) as pool:
        return sum(pool.map(leave, leases))


def release_job(context: JobContext, claim: Claim, *, actor: str, reason: str) -> bool:
    """Give a load back, end anything else; False when the attempt was not ours any more.

    A load that is just being published is found published by whoever takes the job up. Other
    work ends as failed, but never over a possible publish: the fence is raised and the marker
    read before. Where that does not succeed, the job is left to its lease.
    """
    with context.plane.connect() as control:
        left = _leave(context, control, claim, actor, reason)
        record_lost_attempts(context.plane, control, claim.job_id)
        return left


def _leave(context: JobContext, control: Connection, claim: Claim, actor: str, reason: str) -> bool:
    jobs = Jobs(context.plane)
    if claim.kind in LOADS:
        return jobs.give_back(control, claim, actor=f"{actor}: {reason}")
    published = False
    destination = target_of_job(context, claim.kind, claim.payload)
    if destination is not None:
        raise_fence_above(context.plane, control, context.control_id(), destination)
        published = is_published(destination, claim.attempt_id, claim.plan, claim.payload)
    return jobs.finish(
        control,
        claim,
        JobStatus.DONE if published else JobStatus.FAILED,
        actor=actor,
        error=None if published else reason,
    )
