"""Who the embedded server runs as: PostgreSQL refuses root."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from tidegate.errors import ConnectionFailed

_CAP_DAC_OVERRIDE = 1 << 1
_CAP_DAC_READ_SEARCH = 1 << 2
_CAP_SETPCAP = 1 << 8


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
    return [
        setpriv,
        f"--reuid={user[0]}",
        f"--regid={user[1]}",
        "--clear-groups",
        "--no-new-privs",
        *_ways_through_closed_folders(executable),
        str(executable),
    ]


def _ways_through_closed_folders(executable: Path) -> list[str]:
    """Keep one capability of root's, so that no parent folder has to be opened to others."""
    status = Path("/proc/self/status").read_text()
    held = int(status.split("CapPrm:")[1].split()[0], 16)
    others_may_run_it = bool(executable.stat().st_mode & 0o001)
    # Reading is enough, unless a container withholds it or a strict umask hid the binaries.
    if held & _CAP_DAC_READ_SEARCH and others_may_run_it:
        capability = "dac_read_search"
    elif held & _CAP_DAC_OVERRIDE:
        capability = "dac_override"
    else:
        return []
    words = [f"--inh-caps=-all,+{capability}", f"--ambient-caps=-all,+{capability}"]
    if held & _CAP_SETPCAP:
        # Else access(2), by which initdb looks for its programs, leaves capabilities out.
        words.append("--securebits=+no_setuid_fixup")
    return words
