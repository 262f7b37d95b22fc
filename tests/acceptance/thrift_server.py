"""Spark's own HiveServer2, which stands in for Kyuubi as well."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from pyhive import hive
from thrift.transport.TTransport import TTransportException

from acceptance.processes import Process
from java_archive import class_path
from tidegate.iceberg.jars import find_jars, lake_conf

HOST = "127.0.0.1"
_CLASS = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
# It says what it would say anywhere, so that a secret in it is found.
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
"""


class ThriftServer:
    """One server from the pip package, on a port of its own, with its metastore in its folder."""

    def __init__(self, folder: Path, conf: Mapping[str, str]) -> None:
        """`conf`: what it is started with besides, such as a catalog."""
        self.port = _free_port()
        self._folder = folder
        self._conf = conf
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Where it is; the first one to ask waits for it to be up."""
        if self._process is None:
            self._process = self._start()
            self._process.wait_for(self._answers, "the Spark Thrift server")
        return f"thrift://{HOST}:{self.port}"

    @property
    def log(self) -> str:
        """All that it has said."""
        assert self._process is not None
        return self._process.out + self._process.err

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill_all()

    def _start(self) -> Process:
        package = importlib.util.find_spec("pyspark")
        assert package is not None
        assert package.origin is not None
        settings = self._folder / "conf"
        settings.mkdir()
        (settings / "log4j2.properties").write_text(_LOG4J)
        # Not in its command, since a catalog has a password.
        (settings / "spark-defaults.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in self._conf.items())
        )
        conf = {
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self._folder),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={self._folder / 'metastore'};create=true"
            ),
            "spark.hadoop.hive.server2.thrift.bind.host": HOST,
            "spark.hadoop.hive.server2.thrift.port": str(self.port),
            **lake_conf({}, postgres=True),
        }
        # Its statements see the class path that it was started with, and not what is added later.
        jars = map(str, find_jars({}, postgres=True).files)
        command = [
            str(Path(package.origin).parent / "bin" / "spark-submit"),
            *("--class", _CLASS, "--master", "local[2]"),
            *("--driver-class-path", os.pathsep.join([class_path(), *jars])),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]
        return Process(
            command,
            self._folder / "thrift",
            {"SPARK_CONF_DIR": str(settings)},
            folder=self._folder,
        )

    def _answers(self) -> bool:
        """Whether it opens a session: the port alone is there a little earlier."""
        with socket.socket() as probe:
            if probe.connect_ex((HOST, self.port)) != 0:
                return False
        try:
            with closing(hive.connect(HOST, self.port, auth="NONE")):
                return True
        except (TTransportException, hive.Error):
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
