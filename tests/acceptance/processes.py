"""Real processes: commands in sessions of their own, to be waited for, held, stopped and killed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import java_archive
from forked import Forked
from tried import count

PATIENCE_SECONDS = 120.0
STOPPED = "T"


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a state to come about; the only place where tests wait."""
    deadline, pause = time.monotonic() + seconds, 0.01
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s for {what}")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended; a negative code is the signal that ended it."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Process:
    """A child that leads a session, so that all its descendants are known and can be reached."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        self._counted = False
        with self._out.open("wb") as out, self._err.open("wb") as err:
            streams = (subprocess.DEVNULL, out.fileno(), err.fileno())
            self._process = self._start(
                command, streams, {**_environment(), **(environment or {})}, folder
            )

    def _start(
        self,
        command: list[str],
        streams: tuple[int, int, int],
        environment: dict[str, str],
        folder: Path | None,
    ) -> subprocess.Popen[bytes] | Forked:
        return subprocess.Popen(
            command,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=environment,
            cwd=folder,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = PATIENCE_SECONDS) -> Ended:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"still running after {seconds:.0f} s:\n{self.err}") from None
        self._count_kill(code)
        return Ended(code, self.out, self.err)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that this process must bring about before it ends."""
        until(lambda: condition() or not self.alive, what)
        assert condition(), f"ended before {what}: {self.wait()}"

    def members(self, command_part: str = "") -> list[int]:
        """This process and its descendants, whatever process groups they made for themselves."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                state, session = fields[0], int(fields[3])
                if session != self.pid or state in "ZX":
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if command_part in command:
                found.append(int(folder.name))
        return found

    def kill(self) -> Ended:
        """SIGKILL the process alone; what it started lives on as long as it likes."""
        self._process.kill()
        return self.wait()

    def send(self, number: signal.Signals) -> None:
        """Signal the process alone."""
        self._process.send_signal(number)

    def kill_all(self) -> None:
        """SIGKILL the process and everything it started."""
        self._signal_all(signal.SIGKILL)
        self._count_kill(self._process.wait())
        until(lambda: not self.members(), "the killed processes to be gone")

    def stop(self) -> None:
        """SIGSTOP everything: a machine that sleeps, or a very long pause."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Wake up what was stopped, or has stopped itself at a failpoint."""
        count(zombies=state_of(self.pid) == STOPPED)
        self._signal_all(signal.SIGCONT)

    def _count_kill(self, code: int) -> None:
        """However it was killed, a process dies once."""
        count(kills=code == -signal.SIGKILL and not self._counted)
        self._counted = True

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self.members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def state_of(pid: int) -> str:
    """The letter that Linux has for it; none when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class WarmProcess(Process):
    """`tidegate` or a script, in a process forked from a warm one."""

    def _start(
        self,
        command: list[str],
        streams: tuple[int, int, int],
        environment: dict[str, str],
        folder: Path | None,
    ) -> subprocess.Popen[bytes] | Forked:
        with Path(os.devnull).open("rb") as nothing:
            return Forked(command, (nothing.fileno(), *streams[1:]), environment, folder)


@dataclass(slots=True)
class Commands:
    """What is started, held and killed in the folder of a project; all of it ends with `close`."""

    folder: Path
    _started: list[Process] = field(default_factory=list, init=False)
    _numbers: itertools.count[int] = field(default_factory=itertools.count, init=False)

    @property
    def environment(self) -> dict[str, str]:
        """What its processes need to know besides."""
        return {}

    def start_command(self, *words: str, failpoint: str | None = None) -> Process:
        """Any command of Tidegate in the project."""
        command = ["tidegate", *words, "--project", str(self.folder)]
        return self.start_process(command, failpoint=failpoint)

    def start_process(
        self, command: Sequence[str], *, failpoint: str | None = None, warm: bool = True
    ) -> Process:
        """`tidegate` or a script, forked from a warm process; or else any program."""
        armed = {"TIDEGATE_FAILPOINT": failpoint} if failpoint else {}
        log = self.folder / f"process-{self.number()}"
        kind = WarmProcess if warm else Process
        process = kind(list(command), log, {**armed, **self.environment})
        self._started.append(process)
        return process

    def hold(
        self, point: str, start: Callable[[str], Process], passage: int = 1
    ) -> tuple[Process, Path]:
        """What is started waits at a failpoint until the returned file is removed."""
        flag = self.flag(f"{point}-{self.number()}")
        process = start(f"{point}@{passage}=wait:{flag}")
        process.wait_for(flag.exists, point)
        return process, flag

    def kill_at(self, point: str, *words: str) -> Ended:
        """A command that dies at a failpoint by its own hand."""
        return assert_killed(self.start_command(*words, failpoint=f"{point}=kill"), point)

    def number(self) -> int:
        """Another one every time, for the names of files."""
        return next(self._numbers)

    def flag(self, name: str) -> Path:
        """A file by which a failpoint announces itself and is let go."""
        return self.folder / f"{name}.flag"

    def close(self) -> None:
        for process in self._started:
            # What is stopped would not even hear a SIGTERM that its dead parent left for it.
            process.kill_all()


def assert_killed(process: Process, point: str) -> Ended:
    ended = process.wait()
    assert ended.code == -signal.SIGKILL, f"at {point}: {ended}"
    return ended


def _environment() -> dict[str, str]:
    """Ours, without what would steer the run."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TIDEGATE_", "SPARK_", "PYSPARK_")) or name in java_archive.USED
    }
