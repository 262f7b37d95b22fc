"""Running the command line as its users do: a process in a project's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE, FAILED, USAGE, BUSY = 0, 1, 2, 75


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def said(self) -> str:
        return self.out + self.err


def tidegate(
    folder: Path, *arguments: str, stdin: str = "", environment: dict[str, str] | None = None
) -> Done:
    """Run one command in `folder`, away from any terminal."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", *arguments],
        cwd=folder,
        env={**inherited, **(environment or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)
