"""A Spark Connect server that stays warm while its clients are killed."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tidegate
from acceptance.processes import Process
from few_rows import FEW_ROWS
from java_archive import class_path
from tidegate.iceberg.jars import lake_conf
from warm_python import WarmPython

HOST = "127.0.0.1"


class SparkServer:
    """One server from the pip package, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._folder = folder
        self._process: Process | None = None
        self._python = WarmPython(folder)

    @property
    def url(self) -> str:
        """Where it is; the first one to ask waits for it to be up."""
        if self._process is None:
            self._python.start()
            self._process = self._start()
        self._process.wait_for(self._answers, "the Spark Connect server")
        return f"sc://{HOST}:{self.port}"

    @contextmanager
    def broken(self, code: str) -> Iterator[None]:
        """The Python workers of new sessions run this code first."""
        with self._python.broken(code):
            yield

    @contextmanager
    def armed(self, failpoint: str) -> Iterator[None]:
        """The Python workers of new sessions pass an armed failpoint."""
        with self.broken(f"import os; os.environ['TIDEGATE_FAILPOINT'] = {failpoint!r}"):
            yield

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill_all()
        self._python.stop()

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
            **FEW_ROWS,
            **lake_conf({}, postgres=True),
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
                "PYSPARK_PYTHON": str(self._python.path),
                "PYTHONPATH": str(Path(tidegate.__file__).parents[1]),
            },
            folder=self._folder,
        )

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
