"""Several processes that run together and stop together."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
