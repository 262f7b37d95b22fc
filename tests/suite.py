"""Runs the checks beside the tests, and says what both took: `python tests/suite.py check|test`.

Everything that a test starts, servers that outlive it included, becomes a child of this process in
the end, so that its CPU time is counted.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy", "--strict"),
    ("lint-imports",),
)
TESTS = {
    "check": ("tests/unit", "-n", "2"),
    # Tests wait for processes and servers a third of the time: three of them keep two cores busy.
    "test": ("-n", "3", "--dist", "worksteal"),
}
BUDGET = {"check": (180, 90), "test": (1400, 720)}
"""core-seconds, and seconds on two quiet cores"""
_PR_SET_CHILD_SUBREAPER = 36
_LEAVING_SECONDS = 10.0


def main() -> int:
    what = sys.argv[1]
    # Started in the background it would be ignored, here and by every command that is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Each of the many Pythons that tests start would else compile all of the source again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    failed: list[str] = []
    checking = threading.Thread(target=_check, args=(failed,))
    checking.start()
    tests = [str(BIN / "pytest"), *TESTS[what], *sys.argv[2:]]
    code = subprocess.run(tests, cwd=ROOT, check=False).returncode
    checking.join()
    _reap()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, core_seconds = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    cores, wall = BUDGET[what]
    print(
        f"{core_seconds:,.0f} core-seconds (budget {cores:,}), {seconds / 60:.1f} minutes"
        f" (budget {wall / 60:g} on two quiet cores)"
    )
    for one in failed:
        print(f"failed: {one}")
    return code or int(bool(failed))


def _check(failed: list[str]) -> None:
    """One after the other, beside the tests; what they print is shown when they fail."""
    for name, *options in CHECKS:
        found = subprocess.run(
            [str(BIN / name), *options], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if found.returncode:
            print(found.stdout + found.stderr, flush=True)
            failed.append(" ".join((name, *options)))


def _reap() -> None:
    """Wait for what the tests left behind; what stays longer is not ours to wait for."""
    deadline = time.monotonic() + _LEAVING_SECONDS
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
