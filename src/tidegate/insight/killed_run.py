"""A run in a process of its own that is killed at a chosen point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.errors import TidegateError

_PATIENCE_SECONDS = 300.0


def kill_run(
    root: Path, arguments: Sequence[str], point: str, look: Callable[[], None], log: Path
) -> int:
    """Start `tidegate run`, let it come to `point`, call `look`, send SIGKILL; returns the pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    flag = log.with_suffix(".reached")
    flag.unlink(missing_ok=True)
    environment = {**plain_environment(), "TIDEGATE_FAILPOINT": f"{point}=wait:{flag}"}
    command = [sys.executable, "-m", "tidegate.cli.main", "run", *arguments, "--project", str(root)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not flag.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise TidegateError(
                    f"the run that was to be killed never came to {point}",
                    "it said: " + ("\n  ".join(lines[-5:]) or "nothing"),
                )
            time.sleep(0.02)
        look()
    finally:
        process.kill()
        code = process.wait()
        flag.unlink(missing_ok=True)
    if code != -signal.SIGKILL:
        raise TidegateError(f"the run ended by itself with code {code} before it could be killed")
    return process.pid


def plain_environment() -> dict[str, str]:
    """The environment without settings of Tidegate, which are meant for other projects."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
