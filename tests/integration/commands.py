"""Running the command line as its users do: a process in a project's folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import run

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
    given = {**inherited, **(environment or {})}
    done = run(*arguments, folder=folder, stdin=stdin, environment=given)
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)
