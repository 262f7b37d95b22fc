"""What postmaster.pid says about a data folder, and whether it is true."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# Above the kernel's limit, so no process ever has it.
_IMPOSSIBLE_PID = 2147483647
_SECONDS_TO_WRITE_THE_FILE = 5


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A server process; the port is 0 while it has not got that far."""

    pid: int
    port: int
    ready: bool


def find_postmaster(data: Path) -> Postmaster | None:
    """Return the server that works on a data folder, whoever has the pid by now left aside."""
    recorded = read_pid_file(data)
    return recorded if recorded and works_on(recorded.pid, data) else None


def read_pid_file(data: Path) -> Postmaster | None:
    """Read the lines pid, folder, start, port, socket, host, key and state, as far as written."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        port = int(lines[3]) if len(lines) > 3 else 0
        ready = len(lines) > 7 and lines[7].strip() == "ready"
        return Postmaster(pid=int(lines[0]), port=port, ready=ready)
    except (FileNotFoundError, IndexError, ValueError):
        return None


def works_on(pid: int, data: Path) -> bool:
    """Say whether a process is a postmaster whose data folder is this one."""
    process = Path("/proc", str(pid))
    arguments: list[bytes] = []
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
        if Path(os.fsdecode(arguments[0])).name != "postgres":
            return False
        # A server stays inside its data folder, wherever that is moved to.
        return (process / "cwd").samefile(data)
    except PermissionError:
        # In a container root may not look so closely at another user's process.
        folder = os.fsencode(data)
        return folder in arguments or b"--tidegate.folder=" + folder in arguments
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that ended and was not reaped does not."""
    try:
        state = Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def disown_stale_pid(data: Path) -> None:
    """Let a start go on when a crash left a pid that some other program has by now.

    Only the pid is replaced. The shared memory key stays, and with it PostgreSQL's own check
    that no backend of the dead server still works on the data.
    """
    path = data / "postmaster.pid"
    try:
        # One handle for looking and writing: a file put in its place meanwhile stays untouched.
        with path.open("r+") as file:
            first, _, rest = file.read().partition("\n")
            if first.isdigit():
                if not works_on(int(first), data):
                    file.seek(0)
                    file.write(f"{_IMPOSSIBLE_PID}\n{rest}")
                    file.truncate()
                return
            age_seconds = time.time() - os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return
    if age_seconds > _SECONDS_TO_WRITE_THE_FILE:
        path.unlink()  # emptied by a power failure, not just being written
