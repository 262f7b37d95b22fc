"""A Spark Connect server that stays warm while its clients are killed."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

from acceptance.processes import Process

HOST = "127.0.0.1"


class SparkServer:
    """One server from the pip package, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._folder = folder
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Where it is; the first one to ask waits for it to be up."""
        if self._process is None:
            self._process = self._start()
        self._process.wait_for(self._answers, "the Spark Connect server")
        return f"sc://{HOST}:{self.port}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill_all()

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
            "spark.sql.session.timeZone": "UTC",
            "spark.local.dir": str(self._folder),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        command = [
            str(Path(package.origin).parent / "bin" / "spark-submit"),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master",
            "local[2]",
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]
        # Its Python workers must find Tidegate, as on any cluster.
        return Process(
            command,
            self._folder / "connect",
            {"PYSPARK_PYTHON": sys.executable, "PATH": os.environ["PATH"]},
        )

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
