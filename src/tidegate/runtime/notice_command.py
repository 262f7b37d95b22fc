"""A message to a program of the user's: on its standard input and in its environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.runtime.delivery import NotDelivered

TIMEOUT_SECONDS = 30.0
# Not TIDEGATE_, which stands for settings wherever the program calls tidegate itself.
_PREFIX = "NOTICE_"
_NAMED = ("id", "event", "project", "kind", "name", "job_id", "error", "failures", "text")


def call(
    command: Sequence[str],
    document: dict[str, Any],
    folder: Path,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """Run the program, without a shell; raises NotDelivered unless it ends with 0 in time."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **_environment(document)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise NotDelivered(
            f"{command[0]} cannot be started: {error.strerror or type(error).__name__}"
        ) from None
    except ValueError:
        raise NotDelivered(f"{command[0]} cannot be given this message") from None
    with process:
        try:
            process.communicate(json.dumps(document).encode() + b"\n", timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            raise NotDelivered(
                f"{command[0]} did not end within {timeout_seconds:g} seconds"
            ) from None
        finally:
            # Those it started too: they are in a session of their own.
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise NotDelivered(f"{command[0]} ended with {process.returncode}")


def _environment(document: dict[str, Any]) -> dict[str, str]:
    return {
        f"{_PREFIX}{name.upper()}": "" if document.get(name) is None else _text(document[name])
        for name in _NAMED
    }


def _text(value: object) -> str:
    return str(value).replace("\0", "")
