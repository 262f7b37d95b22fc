"""A Spark Connect server that stays warm while its clients are killed."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tidegate
from acceptance.processes import Process
from java_archive import class_path

HOST = "127.0.0.1"
DAEMONS = Path(__file__).with_name("worker_daemons.py")


class SparkServer:
    """One server from the pip package, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._folder = folder
        self._process: Process | None = None
        self._daemons: Process | None = None

    @property
    def url(self) -> str:
        """Where it is; the first one to ask waits for it to be up."""
        if self._process is None:
            self._process, self._daemons = self._start(), self._start_daemons()
        self._process.wait_for(self._answers, "the Spark Connect server")
        return f"sc://{HOST}:{self.port}"

    @contextmanager
    def broken(self, code: str) -> Iterator[None]:
        """The Python workers of new sessions run this code first."""
        file = self._folder / "broken" / "sitecustomize.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
        try:
            yield
        finally:
            shutil.rmtree(file.parent)

    def stop(self) -> None:
        for process in (self._process, self._daemons):
            if process is not None:
                process.kill_all()

    def _start(self) -> Process:
        package = importlib.util.find_spec("pyspark")
        assert package is not None
        assert package.origin is not None
        conf = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
            "spark.ui.enabled": "false",
            # What it is set to must not show in any result.
            "spark.sql.session.timeZone": "Asia/Kolkata",
            "spark.local.dir": str(self._folder),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        command = [
            str(Path(package.origin).parent / "bin" / "spark-submit"),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master",
            "local[2]",
            *("--driver-class-path", class_path()),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]
        # Its Python workers must find Tidegate, as on any cluster, and nothing else of ours.
        return Process(
            command,
            self._folder / "connect",
            {
                "PYSPARK_PYTHON": str(self._write_python()),
                "PYTHONPATH": str(Path(tidegate.__file__).parents[1]),
            },
            folder=self._folder,
        )

    def _start_daemons(self) -> Process:
        return Process(
            [sys.executable, str(DAEMONS), "serve", str(self._folder / "daemons")],
            self._folder / "daemons",
            {"PYTHONPATH": str(Path(tidegate.__file__).parents[1])},
            folder=self._folder,
        )

    def _write_python(self) -> Path:
        """A Python that starts with what `broken` asks for; else its daemons are forked."""
        python, broken = self._folder / "python", self._folder / "broken"
        daemons = self._folder / "daemons"
        python.write_text(
            f"""#!/bin/sh
if [ "$2" = pyspark.daemon ] && [ ! -d "{broken}" ] && [ -S "{daemons}" ]; then
    exec "{sys.executable}" -IS "{DAEMONS}" ask "{daemons}"
fi
export PYTHONPATH="{broken}:$PYTHONPATH"
exec "{sys.executable}" "$@"
"""
        )
        python.chmod(0o755)
        return python

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
