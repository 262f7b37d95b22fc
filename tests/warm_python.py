"""A Python for Spark whose daemons are forked from a process that is warm."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tidegate
from acceptance.processes import Process

DAEMONS = Path(__file__).with_name("worker_daemons.py")
SCRIPT = """#!/bin/sh
case "$2" in pyspark.daemon | tidegate.spark.daemon)
    if [ ! -d "{broken}" ] && [ -S "{daemons}" ]; then
        exec "{python}" -IS "{script}" ask "{daemons}"
    fi
esac
export PYTHONPATH="{broken}:$PYTHONPATH"
exec "{python}" "$@"
"""


class WarmPython:
    """What to name as PYSPARK_PYTHON; it starts with what `broken` asks for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "python"
        self._folder = folder
        self._broken = folder / "broken"
        self._process: Process | None = None

    def start(self) -> None:
        """Daemons that are asked for before it is up are started the usual way."""
        if self._process is not None:
            return
        daemons = self._folder / "daemons"
        self.path.write_text(
            SCRIPT.format(
                broken=self._broken, daemons=daemons, python=sys.executable, script=DAEMONS
            )
        )
        self.path.chmod(0o755)
        self._process = Process(
            [sys.executable, str(DAEMONS), "serve", str(daemons)],
            daemons,
            {"PYTHONPATH": str(Path(tidegate.__file__).parents[1])},
            folder=self._folder,
        )

    @contextmanager
    def broken(self, code: str) -> Iterator[None]:
        """New workers run this code first."""
        file = self._broken / "sitecustomize.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
        try:
            yield
        finally:
            shutil.rmtree(file.parent)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill_all()
